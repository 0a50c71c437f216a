"""Plans of a real GPU on real torch tensors: values, streams, capture and replay, threads."""

import os
import threading

import pytest
import verglas

torch = pytest.importorskip("torch") if "torch" not in os.environ.get("VERGLAS_REQUIRE", "") else __import__("torch")
if not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9:
    if "gpu" in os.environ.get("VERGLAS_REQUIRE", ""):
        raise RuntimeError("VERGLAS_REQUIRE names gpu, and torch sees no Hopper device")
    pytest.skip("torch sees no device of compute capability 9.0", allow_module_level=True)

M, N, K = 300, 520, 136


def plan_of(m=M, n=N, k=K):
    graph = verglas.Graph(io_data_type="bf16", device="cuda:0")
    a = graph.tensor(name="a", dim=(1, m, k), stride=(m * k, k, 1))
    b = graph.tensor(name="b", dim=(1, k, n), stride=(k * n, 1, k))
    graph.matmul(a, b).set_output(True).set_name("d")
    graph.build()
    assert graph.plan.name.startswith("sm90")
    return graph.plan


def integers(*shape, seed=0):
    generator = torch.Generator(device="cuda").manual_seed(seed)
    return torch.randint(-3, 4, shape, generator=generator, device="cuda").to(torch.bfloat16)


def operands(seed=0, m=M):
    a, b = integers(1, m, K, seed=seed), integers(1, N, K, seed=seed + 1).transpose(1, 2)
    return a, b, torch.full((1, m, N), float("nan"), dtype=torch.bfloat16, device="cuda")


def right(a, b):
    return (a.double() @ b.double()).to(torch.bfloat16)


def test_a_product_of_integers_is_exact_by_every_way_to_call():
    plan = plan_of()
    for seed, call in enumerate(
        [
            lambda a, b, d: plan.execute({"a": a, "b": b, "d": d}),
            lambda a, b, d: plan.execute([a, b, d]),
            lambda a, b, d: plan(a, b, d),
            lambda a, b, d: plan.bind(a, b, d)(),
        ]
    ):
        a, b, d = operands(seed)
        call(a, b, d)
        assert torch.equal(d, right(a, b))


def test_live_extents_rule():
    plan = plan_of()
    for m in (1, 63, 301, 1000):
        a, b, d = operands(m, m)
        plan(a, b, d)
        assert torch.equal(d, right(a, b))


def test_the_work_goes_to_torchs_current_stream():
    plan = plan_of()
    a, b, d = operands()
    late = torch.empty_like(a)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(20_000_000)  # a wrong stream would read `late` before it is filled
        late.copy_(a)
        plan(late, b, d)
        done = torch.cuda.Event()
        done.record()
    done.synchronize()
    assert torch.equal(d, right(a, b))


def test_capture_holds_one_kernel_and_replays_on_new_values():
    plan = plan_of()
    a, b, d = operands()
    plan(a, b, d)  # nothing is left for the first call inside a capture
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        plan(a, b, d)
    d.fill_(float("nan"))
    for seed in range(20):
        a.copy_(integers(1, M, K, seed=100 + seed))
        graph.replay()
        assert torch.equal(d, right(a, b))


def test_programmatic_launches_wait_for_what_they_read():
    """Each call reads what the one before wrote, without a word between them; a launch that begins early must not read early."""
    n = 256
    graph = verglas.Graph(io_data_type="bf16", device="cuda:0")
    a = graph.tensor(name="a", dim=(1, n, n), stride=(n * n, n, 1))
    b = graph.tensor(name="b", dim=(1, n, n), stride=(n * n, 1, n))
    graph.matmul(a, b).set_output(True).set_name("d")
    graph.create_execution_plans()
    records = [graph.get_engine_and_knobs_at_index(i) for i in range(graph.get_execution_plan_count())]
    programmatic = [i for i, (_, knobs) in enumerate(records) if knobs.get("PROGRAMMATIC") == 1]
    assert programmatic
    shift = torch.roll(torch.eye(n, device="cuda"), 1, 0).to(torch.bfloat16)  # a product with it moves columns, exactly
    start = integers(n, n, seed=9)
    for index in programmatic[:4]:
        x, y = start.clone(), torch.empty_like(start)
        for _ in range(400):
            graph.execute_plan_at_index([x, shift.t(), y], None, index)
            graph.execute_plan_at_index([y, shift.t(), x], None, index)
        assert torch.equal(x, torch.roll(start, -800 % n, 1)) or torch.equal(x, torch.roll(start, 800 % n, 1))


def test_threads_share_one_plan():
    plan = plan_of()
    wrong = []

    def work(seed):
        with torch.cuda.stream(torch.cuda.Stream()):
            for i in range(20):
                a, b, d = operands(1000 * seed + i)
                plan(a, b, d)
                if not torch.equal(d, right(a, b)):
                    wrong.append((seed, i))

    threads = [threading.Thread(target=work, args=(t,)) for t in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_a_host_tensor_is_refused_by_name():
    plan = plan_of()
    a, b, d = operands()
    with pytest.raises(verglas.Error, match=r"\[call.operand_device\] a 'a': got memory on the host, wanted memory on cuda:0"):
        plan(a.cpu(), b, d)


def test_a_parameter_is_read_without_its_graph():
    plan = plan_of()
    a, b, d = operands()
    weight = torch.nn.Parameter(b.transpose(1, 2).contiguous()).transpose(1, 2)
    plan(a, weight, d)
    assert torch.equal(d, right(a, weight.detach()))
