"""Operations on torch's tensors of a real GPU: values, layouts, gradients, compilation, streams, classes; the CPU agrees."""

import os

import ml_dtypes
import numpy as np
import ops_oracle as oracle
import pytest
import verglas
from verglas import ops

torch = pytest.importorskip("torch") if "torch" not in os.environ.get("VERGLAS_REQUIRE", "") else __import__("torch")
if not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9:
    if "gpu" in os.environ.get("VERGLAS_REQUIRE", ""):
        raise RuntimeError("VERGLAS_REQUIRE names gpu, and torch sees no Hopper device")
    pytest.skip("torch sees no device of compute capability 9.0", allow_module_level=True)

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
M, N, K = 130, 192, 72


def tensor(shape, dtype, major="k", seed=0, low=-3, high=4):
    """Small integers, packed, the batch outermost."""
    generator = torch.Generator().manual_seed(seed)
    rows, columns, batch = shape
    outer = (batch, rows, columns) if major in "kn" else (batch, columns, rows)
    dense = torch.randint(low, high, outer, generator=generator).to(dtype)
    return (dense.permute(1, 2, 0) if major in "kn" else dense.permute(2, 1, 0)).cuda()


def wide(x):
    return x.detach().double().cpu().numpy()


def operands(dtype=BF16, batch=1, major="k"):
    return tensor((M, K, batch), dtype, major, 1), tensor((N, K, batch), dtype, major, 2)


def calls(a, b, prob, dy, major="n"):
    """Each operation, and its outputs in float64."""
    x, y, p, g = wide(a), wide(b), wide(prob), wide(dy)
    return {
        "amax": (lambda a, b, p, g: ops.gemm_amax_forward(a, b, c_major=major), oracle.amax(x, y)),
        "swiglu": (lambda a, b, p, g: ops.gemm_swiglu_forward(a, b, 0.5, major, c_dtype=F32), oracle.swiglu(x, y, 0.5)),
        "srelu": (
            lambda a, b, p, g: ops.gemm_srelu_forward(a, b, None, None, p, 2.0, major, F32, F32),
            oracle.srelu(x, y, p, 2.0),
        ),
        "dsrelu": (
            lambda a, b, p, g: ops.gemm_srelu_backward(a, b, g, None, None, p, 1.0, major, F32),
            oracle.dsrelu(x, y, g, p, 1.0),
        ),
    }


@pytest.mark.parametrize("name", ["amax", "swiglu", "srelu", "dsrelu"])
@pytest.mark.parametrize("dtype, batch, major", [(BF16, 1, "n"), (BF16, 3, "m"), (F16, 3, "n"), (F16, 1, "m")])
def test_values(name, dtype, batch, major):
    a, b = operands(dtype, batch, "k" if major == "n" else "m")
    prob, dy = tensor((M, 1, batch), F32, seed=3), tensor((M, N, batch), dtype, major, 4)
    call, want = calls(a, b, prob, dy, major)[name]
    got = [t for t in call(a, b, prob, dy) if t is not None]
    host = [t for t in call(a.cpu(), b.cpu(), prob.cpu(), dy.cpu()) if t is not None]
    for g, h, w in zip(got, host, want, strict=True):
        assert g.is_cuda and g.stride() == h.stride() and g.dtype == h.dtype
        if name == "swiglu" and g is got[1]:  # its exponential is not the CPU's to the last bit
            np.testing.assert_allclose(wide(g), w, rtol=2e-6, atol=1e-5)
        else:
            np.testing.assert_allclose(wide(g), w if np.ndim(w) else np.full((1, 1, 1), w), rtol=1e-6)
            assert torch.equal(g.cpu(), h)


def test_narrow_outputs_are_rounded_once():
    a, b = operands()
    for dtype in (BF16, F16):
        got = ops.gemm_srelu_forward(a, b, c_dtype=dtype, d_dtype=dtype)
        want = ops.gemm_srelu_forward(a.cpu(), b.cpu(), c_dtype=dtype, d_dtype=dtype)
        for i in range(2):
            assert torch.equal(got[i].cpu(), want[i])


def test_the_same_bits_in_every_run():
    generator = torch.Generator(device="cuda").manual_seed(0)
    a, b, dy = (
        torch.randn(1, r, c, generator=generator, device="cuda", dtype=BF16).permute(1, 2, 0) for r, c in [(M, K), (N, K), (M, N)]
    )
    first = ops.gemm_srelu_backward(a, b, dy)
    for _ in range(20):
        again = ops.gemm_srelu_backward(a, b, dy)
        assert torch.equal(first[0], again[0]) and torch.equal(first[1], again[1])


def arguments():
    a, b = operands(batch=2)
    prob, dy = tensor((M, 1, 2), F32, seed=3), tensor((M, N, 2), BF16, "n", 4)
    return {
        "gemm_amax": (a, b, BF16),
        "gemm_swiglu": (a, b, 0.5, F32, BF16, "m"),
        "gemm_srelu": (a, b, prob, 2.0, BF16, F32),
        "gemm_dsrelu": (a, b, dy, prob, 2.0, F32, "m"),
    }


@pytest.mark.parametrize("name", ["gemm_amax", "gemm_swiglu", "gemm_srelu", "gemm_dsrelu"])
def test_opcheck(name):
    torch.library.opcheck(getattr(torch.ops.verglas, name).default, arguments()[name])


def plain_srelu(a, b, prob, alpha):
    c = alpha * torch.einsum("mkl,nkl->mnl", a, b)
    return c, prob * torch.relu(c) ** 2


def plain_swiglu(a, b, alpha):
    ab12 = alpha * torch.einsum("mkl,nkl->mnl", a, b)
    up, gate = ab12.reshape(M, N // 64, 2, 32, -1).unbind(2)
    return ab12, (up * torch.nn.functional.silu(gate)).reshape(M, N // 2, -1)


@pytest.mark.parametrize("which", [0, 1])
def test_gradients_are_those_of_plain_torch(which):
    torch.manual_seed(0)
    a, b = (torch.randn(2, r, K, device="cuda").mul(0.3).bfloat16().permute(1, 2, 0).requires_grad_() for r in (M, N))
    prob = torch.randn(2, M, 1, device="cuda").permute(1, 2, 0).requires_grad_()
    x, y = a.detach().double().requires_grad_(), b.detach().double().requires_grad_()
    for fused, plain, inputs, reference in [
        (
            lambda: ops.gemm_srelu_forward(a, b, prob_tensor=prob, alpha=1.5, c_dtype=F32, d_dtype=F32),
            plain_srelu,
            (a, b, prob),
            (x, y, prob.detach().double().requires_grad_()),
        ),
        (lambda: ops.gemm_swiglu_forward(a, b, 1.5, c_dtype=F32), plain_swiglu, (a, b), (x, y)),
    ]:
        got = torch.autograd.grad(list(fused())[which].sum(), inputs, allow_unused=True, materialize_grads=True)
        want = torch.autograd.grad(plain(*reference, 1.5)[which].sum(), reference, allow_unused=True, materialize_grads=True)
        for g, w in zip(got, want, strict=True):
            torch.testing.assert_close(g.double(), w, rtol=1e-2, atol=1e-2 * max(1.0, float(w.abs().max())))


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiles_without_a_break(backend):
    a, b = operands()
    prob = tensor((M, 1, 1), F32, seed=3)

    def model(a, b, prob):
        d = ops.gemm_srelu_forward(a, b, prob_tensor=prob, d_dtype=F32)["d_tensor"]
        top = ops.gemm_amax_forward(a, b)
        return verglas.gemm_swiglu_forward(a, b, c_dtype=F32)[1].sum() + d.sum() + top[0].sum() + top["amax_tensor"].sum()

    compiled = torch.compile(model, fullgraph=True, backend=backend)
    torch.testing.assert_close(compiled(a, b, prob), model(a, b, prob))


def test_the_current_stream_is_the_launchs():
    a, b = operands()
    want = ops.gemm_amax_forward(a, b).c_tensor
    side = torch.cuda.Stream()
    big = torch.ones(4096, 4096, device="cuda", dtype=BF16)
    for how in ("current", "named"):
        with torch.cuda.stream(side):
            for _ in range(20):
                big = (big @ big) * 0 + 1
            late = a + (big[0, 0] - 1)
            if how == "current":
                got = ops.gemm_amax_forward(late, b).c_tensor
        if how == "named":
            got = ops.gemm_amax_forward(late, b, stream=side.cuda_stream).c_tensor
        side.synchronize()
        assert torch.equal(got, want)


def test_classes_take_other_sizes_and_capture():
    a, b = operands()
    ab12, c = torch.empty(M, N, 1, device="cuda", dtype=BF16), torch.empty(M, N // 2, 1, device="cuda", dtype=BF16)
    op = ops.GemmSwiglu(a, b, ab12, c, alpha=0.5)
    assert op.check_support()
    op(a, b, ab12, c)
    want = ops.gemm_swiglu_forward(a, b, 0.5, ab12_dtype=BF16, c_dtype=BF16)
    assert torch.equal(ab12, want[0]) and torch.equal(c, want[1])
    few = [t[:64].contiguous() for t in (a, ab12, c)]
    op.execute(few[0], b, few[1], few[2])
    assert torch.equal(few[2], want[1][:64])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        op.execute(a, b, ab12, c)
    ab12.fill_(float("nan"))
    graph.replay()
    assert torch.equal(ab12, want[0])


def test_a_model_with_swapped_blocks():
    from verglas.torch import swap_mlp

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.gate_proj, self.up_proj = torch.nn.Linear(64, 128, bias=False), torch.nn.Linear(64, 128, bias=False)
            self.down_proj, self.act_fn = torch.nn.Linear(128, 64), torch.nn.SiLU()

        def forward(self, x):
            return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))

    class Squared(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.up_proj, self.down_proj = torch.nn.Linear(64, 128, bias=False), torch.nn.Linear(128, 64)
            self.act_fn = lambda x: torch.relu(x).square()

        def forward(self, x):
            return self.down_proj(self.act_fn(self.up_proj(x)))

    torch.manual_seed(0)
    model = torch.nn.Sequential(Block(), Block(), Squared()).to("cuda", BF16)
    x = torch.randn(3, 50, 64, device="cuda", dtype=BF16)
    want = model(x)
    assert swap_mlp(model) == 3
    torch.testing.assert_close(model(x), want, rtol=3e-2, atol=3e-2)
    model(x).sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_devices_do_not_mix():
    a, b = operands()
    with pytest.raises(verglas.Error, match=r"op\.device"):
        ops.gemm_amax_forward(a, b.cpu())


def served(call):
    """What an engine has to learn first is skipped, with its words."""
    try:
        return call()
    except verglas.UnsupportedError as error:
        pytest.skip(str(error).splitlines()[0][:200])


def test_the_projection():
    from test_ops_proj_rope import inputs

    for scaled in (False, True):
        passed, _, _ = inputs(64, 64, 2, scaled)
        want = ops.gemm_proj_rope_mxfp8_forward(*passed)
        tensors = [
            torch.from_numpy(t.view(np.uint8)).view(BF16 if t.dtype == ml_dtypes.bfloat16 else torch.float8_e4m3fn)
            if t.dtype != np.uint8
            else torch.from_numpy(t)
            for t in passed
        ]
        got = served(lambda given=tensors: ops.gemm_proj_rope_mxfp8_forward(*[t.cuda() for t in given]))
        for g, w in zip(got, want, strict=True):
            assert g.view(torch.uint8).cpu().numpy().tobytes() == w.tobytes()


@pytest.mark.parametrize("name", ["e4m3", "fp4"])
def test_block_scales(name):
    from test_ops_scaled import FORMATS, operand

    form = FORMATS[0] if name == "e4m3" else FORMATS[4]
    (a, sfa, wide_a), (b, sfb, wide_b) = operand(M, 128, 1, form, 1), operand(N, 128, 1, form, 2)

    def moved(array):
        kind = getattr(torch, str(array.dtype))
        order = np.argsort([-s for s in array.strides], kind="stable")
        dense = torch.from_numpy(np.ascontiguousarray(array.transpose(order)).view(np.uint8)).view(kind)
        return dense.cuda().permute(*np.argsort(order).tolist())

    given = [moved(t) for t in (a, b, sfa, sfb)]
    c, amax = served(lambda: ops.gemm_amax_forward(*given, sf_vec_size=form[2]))
    want = oracle.product(wide_a, wide_b)
    np.testing.assert_allclose(wide(c), want, rtol=1e-6)
    np.testing.assert_allclose(amax.item(), np.abs(want).max(), rtol=1e-6)


@pytest.mark.parametrize("name", ["amax", "swiglu", "srelu", "dsrelu"])
def test_a_second_call_takes_the_short_way(name, monkeypatch):
    a, b = operands()
    given = a, b, tensor((M, 1, 1), F32, seed=3), tensor((M, N, 1), BF16, "n", 4)
    call, want = calls(*given)[name]
    call(*given)
    monkeypatch.setattr("verglas.ops._torch.run", None)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    for stream in (torch.cuda.current_stream(), side):
        with torch.cuda.stream(stream):
            result = call(*given)
        stream.synchronize()
        np.testing.assert_allclose(wide(result[0]), want[0], rtol=1e-6)
        assert result[0].device == a.device
    with pytest.raises(verglas.Error, match=r"op\.device"):
        call(a, b.cpu(), *given[2:])
