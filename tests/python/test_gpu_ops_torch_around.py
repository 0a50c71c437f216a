"""Operations on a real GPU inside what torch has around calls: fakes, maps, autocast, capture, threads, copies, streams."""

import copy
import gc
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import verglas
from test_gpu_ops_torch import BF16, F32, K, M, N, operands, tensor, torch  # skips where there is no such device
from verglas import ops

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
E4M3 = torch.float8_e4m3fn


def four():
    a, b = operands()
    return a, b, tensor((M, 1, 1), F32, seed=3), tensor((M, N, 1), BF16, "n", 4)


def calls():
    return [
        lambda a, b, p, g: list(ops.gemm_amax_forward(a, b))[:2],
        lambda a, b, p, g: list(ops.gemm_swiglu_forward(a, b, 0.5, c_dtype=F32))[:2],
        lambda a, b, p, g: list(ops.gemm_srelu_forward(a, b, None, None, p, 2.0, "n", F32, F32))[:2],
        lambda a, b, p, g: list(ops.gemm_srelu_backward(a, b, g, None, None, p, 1.0, "n", F32))[:2],
    ]


@pytest.mark.parametrize("call", calls())
def test_fakes_look_like_results_and_refuse_alike(call):
    given = four()
    want = call(*given)
    with torch._subclasses.FakeTensorMode() as mode:
        fake = [mode.from_tensor(t) for t in given]
        for f, w in zip(call(*fake), want, strict=True):
            assert (f.shape, f.stride(), f.dtype, f.device) == (w.shape, w.stride(), w.dtype, w.device)
        for wrong in ((fake[0], fake[1][:, :8].clone()), (fake[0].half(), fake[1]), (fake[0][::2], fake[1])):
            with pytest.raises(verglas.Error):
                call(*wrong, *fake[2:])
    with pytest.raises(verglas.Error):
        call(given[0].half(), *given[1:])


@pytest.mark.parametrize("axis", [0, 3])
@pytest.mark.parametrize("call", calls())
def test_maps(call, axis):
    given = four()
    many = [torch.stack([t, -t, 2 * t]) for t in given]
    each = [call(*one) for one in zip(*many, strict=True)]
    got = torch.func.vmap(call, axis)(*(t.movedim(0, axis).contiguous() for t in many))
    for g, want in zip(got, zip(*each, strict=True), strict=True):
        assert torch.equal(g, torch.stack(want))


@pytest.mark.parametrize("which", [ops.gemm_srelu_forward, ops.gemm_swiglu_forward])
def test_gradients_under_autocast_checkpoints_and_on_a_side_stream(which):
    a, b = (t.float().requires_grad_() for t in operands(F32))
    loss = lambda a, b: list(which(a, b, c_dtype=F32).values())[1].float().square().mean()  # noqa: E731
    want = torch.autograd.grad(loss(a, b), (a, b))
    with torch.autocast("cuda", dtype=BF16):
        for g, w in zip(torch.autograd.grad(loss(a, b), (a, b)), want, strict=True):
            assert torch.equal(g, w)
    for reentrant in (False, True):
        y = torch.utils.checkpoint.checkpoint(loss, a, b, use_reentrant=reentrant)
        a.grad = b.grad = None
        y.backward()
        assert torch.equal(a.grad, want[0]) and torch.equal(b.grad, want[1])
    side = torch.cuda.Stream()
    big = torch.ones(4096, 4096, device="cuda", dtype=BF16)
    with torch.cuda.stream(side):
        for _ in range(20):
            big = (big @ big) * 0 + 1
        late = a * big[0, 0].float()
        got = torch.autograd.grad(loss(late, b), (a, b))
    side.synchronize()
    assert torch.equal(got[0], want[0]) and torch.equal(got[1], want[1])


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda op: pickle.loads(pickle.dumps(op))])
def test_copies_of_classes(copied):
    a, b = operands()
    want = ops.gemm_amax_forward(a, b)
    outputs = torch.full_like(want.c_tensor, 7), torch.full_like(want.amax_tensor, 7)
    op = ops.GemmAmax(a, b, None, None, *outputs)
    op.compile()
    copied(op).execute(a, b, None, None, *outputs)
    assert torch.equal(outputs[0], want.c_tensor) and torch.equal(outputs[1], want.amax_tensor)


def test_streams_by_address_protocol_and_number():
    a, b = operands()
    want = ops.gemm_amax_forward(a, b).c_tensor
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    handle = side.cuda_stream
    kinds = [
        side,
        handle,
        type("Protocol", (), {"__cuda_stream__": lambda self: (0, handle)})(),
        type("Number", (), {"__index__": lambda self: handle})(),
    ]
    for x in (a, a.clone().requires_grad_()):
        for kind in kinds:
            got = ops.gemm_amax_forward(x, b, stream=kind).c_tensor
            side.synchronize()
            assert torch.equal(got.detach(), want)


def test_a_refused_call_leaves_a_capture_whole():
    a, b = operands()
    op = ops.GemmAmax(a, b, None, None, torch.empty(M, N, 1, device="cuda"), torch.empty(1, 1, 1, device="cuda"))
    op.compile()
    ops.gemm_amax_forward(a, b)
    out = torch.zeros(M, N, 1, device="cuda"), torch.zeros(1, 1, 1, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for wrong in (b[:, :8], b.half()):
            with pytest.raises(verglas.Error):
                ops.gemm_amax_forward(a, wrong)
            with pytest.raises(verglas.Error):
                op.execute(a, wrong, None, None, *out)
        made = ops.gemm_amax_forward(a, b)
        op.execute(a, b, None, None, *out)
    a.mul_(2)
    graph.replay()
    want = ops.gemm_amax_forward(a, b)
    assert torch.equal(made.c_tensor, want.c_tensor) and torch.equal(out[0], want.c_tensor)
    assert torch.equal(out[1], want.amax_tensor)


def test_quantised_outputs_of_nothing_and_pairs_of_fp4():
    from test_ops_scaled import FORMATS, operand

    def moved(array, kind):
        order = np.argsort([-s for s in array.strides], kind="stable")
        dense = torch.from_numpy(np.ascontiguousarray(array.transpose(order)).view(np.uint8)).view(kind)
        return dense.cuda().permute(*np.argsort(order).tolist())

    for m, n, k in ((8, 0, 64), (0, 64, 64), (0, 0, 0), (8, 64, 0)):
        (a, sfa, _), (b, sfb, _) = operand(m, k, 1, FORMATS[0], 1), operand(n, k, 1, FORMATS[0], 2)
        given = moved(a, E4M3), moved(b, E4M3), moved(sfa, torch.uint8), moved(sfb, torch.uint8)
        one = torch.ones(1, device="cuda")
        r = ops.gemm_srelu_forward(*given, d_dtype=E4M3, norm_const_tensor=one, sf_vec_size=32)
        assert r.d_tensor.shape == (m, n, 1) and not r.d_tensor.float().any() and not r.sfd_tensor.view(torch.uint8).any()
    form = FORMATS[4]
    (a, sfa, x), (b, sfb, y) = operand(6, 2, 1, form, 1), operand(8, 2, 1, form, 2)
    for kind in {torch.uint8, getattr(torch, "float4_e2m1fn_x2", torch.uint8)}:
        given = moved(a, kind), moved(b, kind), moved(sfa, E4M3), moved(sfb, E4M3)
        c = ops.gemm_amax_forward(*given, sf_vec_size=16).c_tensor
        np.testing.assert_allclose(c.cpu().numpy(), np.einsum("mkl,nkl->mnl", x, y), rtol=1e-6)


def test_threads_and_memory():
    wanted = {}
    for m in range(1, 130, 9):
        a = tensor((m, K, 1), BF16, seed=m)
        wanted[m] = a, ops.gemm_swiglu_forward(a, operands()[1], c_dtype=F32)
    b = operands()[1]

    def work(seed):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for m, (a, want) in wanted.items():
                x = a.clone().requires_grad_(seed % 2 == 1)
                got = ops.gemm_swiglu_forward(x, b, c_dtype=F32)
                stream.synchronize()
                assert torch.equal(got.c_tensor.detach(), want.c_tensor), m

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(24)))
    gc.collect()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for _ in range(2000):
        ops.gemm_swiglu_forward(b, b, c_dtype=F32)
        with pytest.raises(verglas.Error):
            ops.gemm_swiglu_forward(b, b[:32], c_dtype=F32)
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == before
