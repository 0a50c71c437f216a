"""Operations as torch's custom operators: values, fakes, autograd, compilation, views whose bytes are not their values."""

import copy
import os
import subprocess
import sys

import numpy as np
import ops_oracle as oracle
import pytest
import verglas
from ops_oracle import matrix
from support import lacking
from verglas import ops

try:
    import torch
except ImportError:
    lacking("torch", "torch is not installed", module=True)

import verglas.torch

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


def tensor(array, dtype=torch.float32):
    """With the strides of the array."""
    order = np.argsort([-s for s in array.strides], kind="stable")
    dense = torch.from_numpy(np.ascontiguousarray(array.transpose(order))).to(dtype)
    return dense.permute(*np.argsort(order).tolist())


F32 = torch.float32


def operands(m=5, n=64, k=7, batch=2, dtype=torch.float32, **options):
    a = matrix((m, k, batch), np.float32, seed=1)
    b = matrix((n, k, batch), np.float32, seed=2)
    return a, b, tensor(a, dtype), tensor(b, dtype)


def probabilities(m=5, batch=2):
    prob = matrix((m, 1, batch), np.float32, "n", 5)
    return prob, tensor(prob)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("major", "nm")
def test_values_and_layouts(dtype, major):
    a, b, ta, tb = operands(dtype=dtype)
    prob, tprob = probabilities()
    dy = matrix((5, 64, 2), np.float32, major, 6)
    r = ops.gemm_swiglu_forward(ta, tb, 0.5, c_major=major, c_dtype=torch.float32)
    x = ops.gemm_amax_forward(ta, tb, c_major=major, c_dtype=torch.float16)
    s = ops.gemm_srelu_forward(ta, tb, prob_tensor=tprob, c_major=major, d_dtype="fp32")
    g = ops.gemm_srelu_backward(ta, tb, tensor(dy), prob_tensor=tprob, d_major=major, d_dtype=torch.float32)
    np.testing.assert_array_equal(r.ab12_tensor.numpy(), oracle.swiglu(a, b, 0.5)[0])
    np.testing.assert_allclose(r.c_tensor.numpy(), oracle.swiglu(a, b, 0.5)[1], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(x.c_tensor.numpy(), oracle.product(a, b))
    assert x.amax_tensor.item() == oracle.amax(a, b)[1] and x.amax_tensor.shape == (1, 1, 1)
    np.testing.assert_array_equal(s.d_tensor.numpy(), oracle.srelu(a, b, prob, 1.0)[1])
    np.testing.assert_array_equal(g.d_tensor.numpy(), oracle.dsrelu(a, b, dy, prob, 1.0)[0])
    np.testing.assert_array_equal(g.dprob_tensor.numpy(), oracle.dsrelu(a, b, dy, prob, 1.0)[1])
    assert x.c_tensor.dtype == torch.float16 and s.c_tensor.dtype == torch.bfloat16
    assert r.sfc_tensor is None and list(r.keys())[3] == "amax_tensor"
    want = (64, 1, 320) if major == "n" else (1, 5, 320)
    for out in (r.ab12_tensor, x.c_tensor, s.c_tensor, s.d_tensor, g.d_tensor):
        assert out.stride() == want


def cases():
    _, _, a, b = operands()
    _, prob = probabilities()
    dy = tensor(matrix((5, 64, 2), np.float32, "n", 6))
    f32, bf16 = torch.float32, torch.bfloat16
    return {
        "gemm_amax": (a, b, bf16),
        "gemm_swiglu": (a, b, 0.5, f32, bf16, "m"),
        "gemm_srelu": (a, b, prob, 2.0, bf16, f32),
        "gemm_dsrelu": (a, b, dy, prob, 2.0, f32, "m"),
    }


@pytest.mark.parametrize("name", cases())
def test_opcheck(name):
    operator = getattr(torch.ops.verglas, name).default
    torch.library.opcheck(operator, cases()[name])


@pytest.mark.parametrize("name", ["gemm_swiglu", "gemm_srelu"])
def test_opcheck_with_gradients(name):
    arguments = [x.clone().requires_grad_() if isinstance(x, torch.Tensor) else x for x in cases()[name]]
    torch.library.opcheck(getattr(torch.ops.verglas, name).default, tuple(arguments))


def plain_srelu(a, b, prob, alpha):
    c = alpha * torch.einsum("mkl,nkl->mnl", a, b)
    return c, prob * torch.relu(c) ** 2


def plain_swiglu(a, b, alpha):
    ab12 = alpha * torch.einsum("mkl,nkl->mnl", a, b)
    m, n, batch = ab12.shape
    up, gate = ab12.reshape(m, n // 64, 2, 32, batch).unbind(2)
    return ab12, (up * torch.nn.functional.silu(gate)).reshape(m, n // 2, batch)


@pytest.mark.parametrize("which", [0, 1])
def test_gradients_are_those_of_plain_torch(which):
    torch.manual_seed(0)
    a, b, prob = torch.randn(2, 5, 7), torch.randn(2, 64, 7) / 3, torch.randn(2, 5, 1)
    a, b, prob = (x.permute(1, 2, 0).detach().requires_grad_() for x in (a, b, prob))
    for fused, plain, inputs in [
        (
            lambda: ops.gemm_srelu_forward(a, b, prob_tensor=prob, alpha=1.5, c_dtype="fp32", d_dtype="fp32"),
            plain_srelu,
            (a, b, prob),
        ),
        (lambda: ops.gemm_swiglu_forward(a, b, 1.5, c_dtype="fp32"), plain_swiglu, (a, b)),
    ]:
        weight = torch.randn(64 if which == 0 or plain is plain_srelu else 32)[None, :, None]
        got = torch.autograd.grad((list(fused())[which] * weight).sum(), inputs, allow_unused=True, materialize_grads=True)
        want = torch.autograd.grad((plain(*inputs, 1.5)[which] * weight).sum(), inputs, allow_unused=True, materialize_grads=True)
        for g, w in zip(got, want, strict=True):
            torch.testing.assert_close(g, w, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("which", [ops.gemm_srelu_forward, ops.gemm_swiglu_forward])
def test_gradients_are_products_in_fp32_under_autocast_too(which):
    torch.manual_seed(0)
    a, b = (torch.randn(1, rows, 40).permute(1, 2, 0).requires_grad_() for rows in (6, 64))
    loss = lambda: list(which(a, b, c_dtype=F32).values())[1].float().square().sum()  # noqa: E731
    want = torch.autograd.grad(loss(), (a, b))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = torch.autograd.grad(loss(), (a, b))
    assert all(torch.equal(g, w) for g, w in zip(got, want, strict=True))


def test_a_quantised_d_has_no_gradient():
    from test_ops_scaled import FORMATS, operand

    (a, sfa, _), (b, sfb, _) = operand(5, 64, 1, FORMATS[0], 1), operand(64, 64, 1, FORMATS[0], 2)
    a, b = (tensor(x.astype(np.float32), torch.float8_e4m3fn) for x in (a, b))
    sfa, sfb = (tensor(x.view(np.uint8), torch.uint8) for x in (sfa, sfb))
    prob = torch.ones(5, 1, 1, requires_grad=True)
    call = lambda d: ops.gemm_srelu_forward(a, b, sfa, sfb, prob, d_dtype=d, sf_vec_size=32)  # noqa: E731
    call(F32).d_tensor.sum().backward()
    assert prob.grad.shape == prob.shape
    quantised = ops.gemm_srelu_forward(
        a, b, sfa, sfb, prob, d_dtype=torch.float8_e4m3fn, sf_vec_size=32, norm_const_tensor=torch.ones(1)
    )
    with pytest.raises(RuntimeError, match="a quantised d has no gradient"):
        quantised.d_tensor.float().sum().backward()


def test_no_gradient_where_there_is_no_formula():
    _, _, a, b = operands()
    c = ops.gemm_amax_forward(a.requires_grad_(), b).c_tensor
    with pytest.raises(RuntimeError, match="autograd"):
        c.sum().backward()
    with torch.no_grad():
        assert not ops.gemm_amax_forward(a, b).c_tensor.requires_grad


def test_compiles_without_a_break():
    _, _, a, b = operands()
    _, prob = probabilities()

    def model(a, b, prob):
        d = ops.gemm_srelu_forward(a, b, prob_tensor=prob, d_dtype=torch.float32)["d_tensor"]
        return verglas.gemm_swiglu_forward(a, b, c_dtype=torch.float32)[1].sum() + d.sum()

    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(a, b, prob), model(a, b, prob))
    a.requires_grad_()
    compiled(a, b, prob).backward()
    got = a.grad.clone()
    a.grad = None
    model(a, b, prob).backward()
    torch.testing.assert_close(got, a.grad)


@pytest.mark.skipif(not hasattr(torch, "float4_e2m1fn_x2"), reason="torch has no type of its own for fp4")
@pytest.mark.parametrize("name", ["fp4_e2m1", "float4_e2m1fn_x2", "uint8"])
def test_compiled_functions_and_repeated_ones_store_fp4(name):
    from test_ops_scaled import FORMATS, operand

    (a, sfa, _), (b, sfb, _) = operand(6, 64, 2, FORMATS[4], 1), operand(32, 64, 2, FORMATS[4], 2)
    a, b = (tensor(x, torch.uint8) for x in (a, b))
    sfa, sfb = (tensor(x.view(np.uint8), torch.uint8).view(torch.float8_e4m3fn) for x in (sfa, sfb))
    call = lambda a, b, x, y: ops.gemm_amax_forward(a, b, x, y, c_dtype=name, sf_vec_size=16).c_tensor  # noqa: E731
    want = call(a, b, sfa, sfb)
    assert want.shape == (6, 16, 2) and want.dtype == getattr(torch, name.replace("fp4_e2m1", "float4_e2m1fn_x2"))
    torch._dynamo.reset()
    compiled = torch.compile(call, backend="eager", fullgraph=True)
    for again in (call, call, compiled):
        got = again(a, b, sfa, sfb)
        assert torch.equal(got.view(torch.uint8), want.view(torch.uint8)) and got.stride() == want.stride()


def test_compiled_functions_call_classes():
    """The compiler breaks its graph there, and had called `execute` without its object."""
    _, _, a, b = operands()
    new = lambda: (torch.zeros(2, 5, 64).permute(1, 2, 0), torch.zeros(1, 1, 1))  # noqa: E731
    op = copy.deepcopy(ops.GemmAmax(a, b, None, None, *new()))
    op.compile()
    want = ops.gemm_amax_forward(2 * a, b)
    for call in (op, op.execute, lambda *t: op.execute(*t)):

        def function(a, b, call=call):
            c, amax = new()
            call(2 * a, b, None, None, c, amax)
            return c + 1, amax

        torch._dynamo.reset()
        c, amax = torch.compile(function, backend="eager")(a, b)
        assert torch.equal(c, want.c_tensor + 1) and torch.equal(amax, want.amax_tensor)


def test_compiled_functions_take_types_by_name():
    _, _, a, b = operands()
    kinds = verglas.data_type
    for names, dtype in [
        (("bf16", "bfloat16", "BFLOAT16", kinds.BFLOAT16), torch.bfloat16),
        (("fp32", "float32", "FLOAT", kinds.FLOAT), torch.float32),
        (("fp16", "float16", "HALF", kinds.HALF), torch.float16),
        (("fp8_e5m2", "float8_e5m2", "FP8_E5M2", kinds.FP8_E5M2), torch.float8_e5m2),
    ]:
        for name in names:
            call = lambda a, b, name=name: ops.gemm_amax_forward(a, b, c_dtype=name).c_tensor.float()  # noqa: E731
            torch._dynamo.reset()
            got = torch.compile(call, backend="eager", fullgraph=True)(a, b)
            assert torch.equal(got, call(a, b)) and ops.gemm_amax_forward(a, b, c_dtype=name).c_tensor.dtype == dtype


def test_cases_a_65_views_whose_bytes_are_not_their_values():
    a, b, ta, tb = operands()
    negative = torch._neg_view(ta)
    np.testing.assert_array_equal(ops.gemm_amax_forward(negative, tb).c_tensor.numpy(), oracle.product(-a, b))
    parameter = torch.nn.Parameter(tb)
    np.testing.assert_array_equal(ops.gemm_amax_forward(ta, parameter).c_tensor.detach().numpy(), oracle.product(a, b))
    out, amax = torch.empty(2, 5, 64).permute(1, 2, 0), torch.empty(1, 1, 1)
    op = ops.GemmAmax(ta, parameter, None, None, out, amax)
    op(ta, parameter, None, None, out, amax)
    np.testing.assert_array_equal(out.numpy(), oracle.product(a, b))
    with pytest.raises(ValueError, match=r"pack\.lazy_view"):
        op(negative, parameter, None, None, out, amax)
    with pytest.raises(ValueError, match=r"pack\.recorded_output"):
        op(ta, tb, None, None, out.requires_grad_(), amax)


def test_frameworks_do_not_mix_and_jax_is_not_loaded():
    a, _, _, tb = operands()
    with pytest.raises(ValueError, match=r"op\.framework"):
        ops.gemm_amax_forward(a, tb)
    code = "import sys, torch, verglas; x = torch.ones(2, 3, 1); verglas.gemm_amax_forward(x, x); assert 'jax' not in sys.modules"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


def test_refusals_have_the_same_rules():
    _, _, a, b = operands()
    for rule, call in [
        ("op.rank", lambda: ops.gemm_amax_forward(a[..., 0], b)),
        ("op.dtype", lambda: ops.gemm_amax_forward(a, b.double().half())),
        ("op.layout", lambda: ops.gemm_amax_forward(a[:, ::2], b[:, ::2])),
        ("op.option", lambda: ops.gemm_amax_forward(a, b, acc_dtype=torch.bfloat16)),
        ("op.dtype", lambda: ops.gemm_amax_forward(a, b, sfa_tensor=a, sfb_tensor=b)),
    ]:
        with pytest.raises(verglas.Error) as caught:
            call()
        assert caught.value.rule == rule


def scaled(form, columns=64):
    """Operands with scales as torch's tensors and as numbers; small M and K are no multiples of anything."""
    from test_ops_scaled import operand

    def moved(array):
        order = np.argsort([-s for s in array.strides], kind="stable")
        dense = torch.from_numpy(np.ascontiguousarray(array.transpose(order)).view(np.uint8)).view(
            getattr(torch, str(array.dtype))
        )
        return dense.permute(*np.argsort(order).tolist())

    (a, sfa, wide_a), (b, sfb, wide_b) = operand(5, 96, 2, form, 1), operand(columns, 96, 2, form, 2)
    return [moved(t) for t in (a, b, sfa, sfb)], wide_a, wide_b


def scaled_forms():
    from test_ops_scaled import FORMATS

    return FORMATS


@pytest.mark.parametrize("form", scaled_forms(), ids=str)
def test_operands_with_scales(form):
    (a, b, sfa, sfb), wide_a, wide_b = scaled(form)
    prob, tprob = probabilities()
    block = {"sf_vec_size": form[2]}
    c, amax = ops.gemm_amax_forward(a, b, sfa, sfb, **block)
    product = oracle.product(wide_a, wide_b)
    np.testing.assert_array_equal(c.numpy(), product)
    assert amax.item() == np.abs(product).max()
    r = ops.gemm_srelu_forward(a, b, sfa, sfb, tprob.requires_grad_(), d_dtype=torch.float32, **block)
    want = oracle.srelu(wide_a, wide_b, prob, 1.0)[1]
    np.testing.assert_allclose(r.d_tensor.detach().numpy(), want, rtol=1e-6)
    fp4 = form[0] == "fp4"
    assert r.sfd_tensor is None and (r.amax_tensor is not None) == fp4
    if fp4:
        np.testing.assert_allclose(r.amax_tensor.item(), np.abs(want).max(), rtol=1e-6)
        assert not r.amax_tensor.requires_grad
    pairs = {"sfa_tensor": sfa, "sfb_tensor": sfb, "c_dtype": torch.bfloat16, **block}
    run = [ops.gemm_swiglu_forward, torch.compile(ops.gemm_swiglu_forward, fullgraph=True, backend="aot_eager")]
    for s in (f(a, b, 0.5, **pairs) for f in run):
        ab12, halves = oracle.swiglu(wide_a, wide_b, 0.5)
        np.testing.assert_array_equal(s.ab12_tensor.numpy(), ab12)
        assert s.sfc_tensor is None and (s.amax_tensor is not None) == fp4
        if fp4:
            np.testing.assert_allclose(s.amax_tensor.item(), np.abs(halves).max(), rtol=1e-5)
    dy = matrix((5, 64, 2), np.float32, "n", 6)
    (got,) = torch.autograd.grad((r.d_tensor * tensor(dy)).sum(), [tprob])
    of_prob = oracle.dsrelu(wide_a, wide_b, dy, prob, 1.0)[1]
    np.testing.assert_allclose(got.numpy(), of_prob, rtol=1e-4, atol=1e-5 * np.abs(of_prob).max())
    if not fp4:
        with pytest.raises(RuntimeError, match="block scales have no gradient"):
            ops.gemm_srelu_forward(a.clone().requires_grad_(), b, sfa, sfb, **block).c_tensor.float().sum().backward()
        with pytest.raises(RuntimeError, match="block scales have no gradient"):
            ops.gemm_swiglu_forward(a.clone().requires_grad_(), b, **pairs).ab12_tensor.sum().backward()


def test_opcheck_with_scales():
    _, prob = probabilities()
    dy = tensor(matrix((5, 64, 2), np.float32, "n", 6))
    check, of = torch.library.opcheck, torch.ops.verglas
    (a, b, sfa, sfb), _, _ = scaled(scaled_forms()[2])
    scales = {"sfa": sfa.view(torch.uint8), "sfb": sfb.view(torch.uint8), "sf_vec_size": 32}
    check(of.gemm_amax.default, (a, b, F32), scales)
    check(of.gemm_swiglu.default, (a, b, 1.0, F32, torch.bfloat16, "m"), scales)
    for p in (prob, prob.clone().requires_grad_()):
        check(of.gemm_srelu.default, (a, b, p, 1.0, torch.bfloat16, F32, "m"), scales)
    check(of.gemm_dsrelu.default, (a, b, dy, prob, 1.0, F32), scales)
    (a, b, sfa, sfb), _, _ = scaled(scaled_forms()[0])
    scales = {"sfa": sfa, "sfb": sfb, "sf_vec_size": 32, "norm_const": torch.ones(1)}
    tests = ("test_faketensor",)  # the others compare inputs, which torch does not for fp8
    check(of.gemm_srelu.default, (a, b, prob, 1.0, F32, torch.float8_e4m3fn, "m"), scales, test_utils=tests)
    check(of.gemm_swiglu.default, (a, b, 1.0, F32, torch.float8_e4m3fn, "m"), scales, test_utils=tests)
    check(of.gemm_dsrelu.default, (a, b, dy, prob, 1.0, torch.float8_e4m3fn), scales, test_utils=tests)


def test_quantised_outputs_and_the_projection_compile_without_a_break():
    from test_ops_proj_rope import inputs

    (a, b, sfa, sfb), _, _ = scaled(scaled_forms()[0])
    _, prob = probabilities()
    narrow = {"d_dtype": torch.float8_e4m3fn, "norm_const_tensor": torch.ones(1), "sf_vec_size": 32}
    (x, w, cos, sin), _, _ = inputs(64, 32, 2, False)
    given = [torch.from_numpy(t.astype(np.float32)).bfloat16() for t in (x, w, cos, sin)]

    def model(a, b, sfa, sfb, prob, *given):
        r, p = ops.gemm_srelu_forward(a, b, sfa, sfb, prob, **narrow), ops.gemm_proj_rope_mxfp8_forward(*given)
        return (*[r[i] for i in range(4)], *[p[i] for i in range(4)])  # torch.compile knows no unpacking of a dict's values

    want = model(a, b, sfa, sfb, prob, *given)
    got = torch.compile(model, fullgraph=True, backend="aot_eager")(a, b, sfa, sfb, prob, *given)
    assert want[2] is got[2] is None and want[3].dtype == torch.float8_e8m0fnu
    for g, w in zip(got, want, strict=True):
        assert g is w is None or (g.dtype == w.dtype and g.stride() == w.stride() and torch.equal(g.float(), w.float()))
    operator = torch.ops.verglas.gemm_proj_rope_mxfp8.default
    torch.library.opcheck(operator, tuple(given), test_utils=("test_schema", "test_faketensor"))


@pytest.mark.skipif(not hasattr(torch, "float4_e2m1fn_x2"), reason="torch has no type of its own for fp4")
@pytest.mark.parametrize(("m", "k", "batch"), [(6, 64, 1), (6, 2, 1), (1, 2, 2), (6, 0, 1), (1, 2, 1)])
def test_fp4_is_bytes_or_torch_s_pairs(m, k, batch):
    from test_ops_scaled import FORMATS, operand

    form = FORMATS[4]
    (a, sfa, _), (b, sfb, _) = operand(m, k, batch, form, 1), operand(8, k, batch, form, 2)
    want = ops.gemm_amax_forward(a, b, sfa, sfb, sf_vec_size=16)
    a, b = (tensor(x, torch.uint8) for x in (a, b))
    sfa, sfb = (tensor(x.view(np.uint8), torch.uint8).view(torch.float8_e4m3fn) for x in (sfa, sfb))
    for kind in (torch.uint8, torch.float4_e2m1fn_x2):
        got = ops.gemm_amax_forward(a.view(kind), b.view(kind), sfa, sfb, sf_vec_size=16)
        assert np.array_equal(got.c_tensor.numpy(), want.c_tensor) and got.amax_tensor.item() == want.amax_tensor.item()


def test_pairs_of_fp4_are_unpacked_from_arrays_of_bytes():
    unpack = verglas.scale_layout.unpack_fp4
    pairs = np.arange(256, dtype=np.uint8)
    for kind in (torch.uint8, getattr(torch, "float4_e2m1fn_x2", torch.uint8)):
        np.testing.assert_array_equal(unpack(torch.from_numpy(pairs).view(kind)), unpack(pairs))
    for wrong in (np.ones(4, np.int32), torch.ones(4), [1, 2]):
        with pytest.raises(ValueError, match="one byte"):
            unpack(wrong)


def test_modes_of_torch_see_the_operator():
    _, _, a, b = operands()
    seen = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    want = ops.gemm_amax_forward(a, b).c_tensor
    with Watch():
        assert torch.equal(ops.gemm_amax_forward(a, b).c_tensor, want)
    assert any("verglas.gemm_amax" in name for name in seen)
    with torch._subclasses.FakeTensorMode() as mode:
        fake = ops.gemm_swiglu_forward(mode.from_tensor(a), mode.from_tensor(b))
        assert fake.c_tensor.shape == (5, 32, 2) and fake.c_tensor.dtype == torch.float16


def functions(a, b, dy, prob, **options):
    """Each function with what it takes, and the places of its outputs in float64."""
    wide = [x.double().numpy() for x in (a, b, dy, prob)]
    return [
        (lambda: ops.gemm_amax_forward(a, b, **options), oracle.amax(*wide[:2])),
        (lambda: ops.gemm_swiglu_forward(a, b, 0.5, c_dtype=F32, **options), oracle.swiglu(*wide[:2], 0.5)),
        (lambda: ops.gemm_srelu_forward(a, b, prob_tensor=prob, c_dtype=F32, d_dtype=F32), oracle.srelu(*wide[:2], wide[3], 1.0)),
        (lambda: ops.gemm_srelu_backward(a, b, dy, prob_tensor=prob, d_dtype=F32), oracle.dsrelu(*wide, 1.0)),
    ]


def drawn(m, n, k, batch, seed):
    """Small integers: a, b, a gradient and prob."""
    shapes = ((m, k), (n, k), (m, n), (m, 1))
    return [tensor(matrix((*shape, batch), np.float32, "k", seed + i)) for i, shape in enumerate(shapes)]


def whole_way(*_, **__):
    raise AssertionError("this call need not take Python's way")


@pytest.mark.parametrize("batch", [1, 2])
def test_a_function_takes_the_short_way_for_other_sizes_and_values(batch, monkeypatch):
    for call, _ in functions(*drawn(5, 64, 7, batch, 1)):
        call()
    monkeypatch.setattr("verglas.ops._torch.run", whole_way)
    for seed, (m, n, k) in enumerate([(5, 64, 7), (5, 64, 7), (9, 128, 3), (5, 64, 7), (9, 128, 3)]):
        for call, want in functions(*drawn(m, n, k, batch, 7 * seed)):
            for got, exact in zip(call(), want, strict=False):
                np.testing.assert_allclose(got.numpy().squeeze(), np.squeeze(exact), rtol=1e-6)


def test_a_function_tells_its_options_apart(monkeypatch):
    a, b, _, _ = drawn(5, 64, 7, 1, 1)
    ops.gemm_amax_forward(a, b)
    monkeypatch.setattr("verglas.ops._torch.run", whole_way)
    n, m = "nm"
    for _ in range(2):
        for name, dtype in (("bf16", torch.bfloat16), (torch.float16, torch.float16), (None, F32), (np.float32, F32)):
            for major, stride in ((n, (64, 1, 320)), ("".join([m]), (1, 5, 320))):
                tile = tuple(int(x) for x in (128, 128))
                r = ops.gemm_amax_forward(a, b, None, None, major, name, mma_tiler_mn=tile, sf_vec_size=16)
                assert r.c_tensor.dtype == dtype and r.c_tensor.stride() == stride
        tile = [256, 256]  # can change, so that it is looked at each time
        ops.gemm_amax_forward(a, b, mma_tiler_mn=tile)
        tile[0] = 96
        with pytest.raises(verglas.Error, match=r"op\.option"):
            ops.gemm_amax_forward(a, b, mma_tiler_mn=tile)
    for wrong in ({"c_major": "k"}, {"c_dtype": torch.int8}, {"sf_vec_size": 7}, {"mma_tiler_mn": (96, 96)}):
        with pytest.raises(verglas.Error):
            ops.gemm_amax_forward(a, b, **wrong)


def test_streams_are_what_has_an_address():
    a, b, _, _ = drawn(5, 64, 7, 1, 1)
    kinds = [
        type("Torchs", (), {"cuda_stream": 0}),
        type("Protocol", (), {"__cuda_stream__": lambda self: (0, 0)}),
        type("Number", (), {"__index__": lambda self: 0}),
    ]
    inputs = [(a, b), (a.clone().requires_grad_(), b), (a.to("meta"), b.to("meta")), (a.numpy(), b.numpy())]
    for x, w in inputs:
        for kind in (*kinds, int):
            ops.gemm_amax_forward(x, w, stream=kind())
        for wrong in ("none", object(), 0.5):
            with pytest.raises(verglas.Error, match=r"pack\.stream"):
                ops.gemm_amax_forward(x, w, stream=wrong)


def test_a_function_says_what_python_says_of_wrong_arguments():
    a, b, _, _ = drawn(5, 64, 7, 1, 1)
    for _ in range(2):
        ops.gemm_swiglu_forward(a, b)
        with pytest.raises(TypeError, match="missing 1 required positional argument: 'b_tensor'"):
            ops.gemm_swiglu_forward(a)
        with pytest.raises(TypeError, match="unexpected keyword argument 'nonsense'"):
            ops.gemm_swiglu_forward(a, b, nonsense=1)
        with pytest.raises(TypeError, match="multiple values for argument 'a_tensor'"):
            ops.gemm_swiglu_forward(a, b, a_tensor=a)
        with pytest.raises(ValueError, match="ab12_stages"):
            ops.gemm_swiglu_forward(a, b, ab12_stages=0)
        with pytest.raises(verglas.Error, match=r"pack\.stream"):
            ops.gemm_swiglu_forward(a, b, stream="none")
        with pytest.raises(verglas.InvalidCallError, match=r"op\.option.*gemm_swiglu, alpha: got 'two', wanted a number"):
            ops.gemm_swiglu_forward(a, b, alpha="two")
        with pytest.raises(verglas.Error, match=r"op\.missing"):
            ops.gemm_swiglu_forward(a, None)


def test_a_function_goes_pythons_way_where_torch_looks_at_calls():
    a, b, _, _ = drawn(5, 64, 7, 2, 1)
    want = ops.gemm_swiglu_forward(a, b, c_dtype=F32)

    class Own(torch.Tensor):
        pass

    own = ops.gemm_swiglu_forward(a.as_subclass(Own), b, c_dtype=F32)
    assert torch.equal(own.c_tensor, want.c_tensor)
    x = a.clone().requires_grad_()
    assert ops.gemm_swiglu_forward(x, b, c_dtype=F32).c_tensor.requires_grad
    with torch.no_grad():
        assert not ops.gemm_swiglu_forward(x, b, c_dtype=F32).c_tensor.requires_grad
    with torch.inference_mode():
        assert torch.equal(ops.gemm_swiglu_forward(x, b, c_dtype=F32).c_tensor, want.c_tensor)
    negative = ops.gemm_swiglu_forward(torch._neg_view(a), b, c_dtype=F32)
    assert torch.equal(negative.ab12_tensor, -want.ab12_tensor)


@pytest.mark.filterwarnings("ignore:`torch.jit")
@pytest.mark.filterwarnings("ignore:.*torch.jit.*is deprecated")
def test_a_tracer_records_the_operator_and_no_constant():
    a, b = (
        torch.from_numpy(np.ascontiguousarray(matrix(shape, np.float32, seed=i)))
        for i, shape in enumerate([(8, 16, 1), (64, 16, 1)])
    )
    function = lambda a, b: a.sum() + ops.gemm_swiglu_forward(a, b, 0.5, c_dtype=torch.float32).c_tensor  # noqa: E731
    function(a, b)
    traced = torch.jit.trace(function, (a, b), check_trace=False)
    assert "verglas::gemm_swiglu" in str(traced.graph)
    for x in (a, 2 * a, a[:3].contiguous()):
        torch.testing.assert_close(traced(x, b), function(x, b))


def test_an_emptied_cache_has_no_plan_for_the_short_way():
    from verglas import _verglas

    a, b, _, _ = drawn(5, 64, 7, 1, 1)
    for _ in range(3):
        ops.gemm_amax_forward(a, b)
    before = _verglas.plan_cache()
    ops.gemm_amax_forward(a, b)
    found = _verglas.plan_cache()
    assert (found["compiled"], found["found"]) == (before["compiled"], before["found"] + 1)
    _verglas.clear_plan_cache()
    ops.gemm_amax_forward(a, b)
    assert _verglas.plan_cache()["compiled"] == before["compiled"] + 1


def test_a_function_serves_many_sizes_and_threads():
    from concurrent.futures import ThreadPoolExecutor

    def work(seed):
        for m in range(1 + seed, 150, 7):
            a, b, _, _ = drawn(m, 64, 3, 1, m)
            r = ops.gemm_amax_forward(a, b)
            assert torch.equal(r.c_tensor, torch.einsum("mkl,nkl->mnl", a, b)), m

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(8)))


def test_an_operator_takes_the_short_way_below_autograd(monkeypatch):
    a, b, _, _ = drawn(5, 64, 7, 1, 1)
    ops.gemm_swiglu_forward(a, b)  # brings the operators in
    call = lambda: torch.ops.verglas.gemm_swiglu(a, b, 0.5, F32, F32)  # noqa: E731
    want = call()
    monkeypatch.setattr("verglas.ops._torch.OperationOptions", whole_way)
    a.requires_grad_()
    for got, exact in zip(call()[:2], want[:2], strict=True):  # the third would be amax
        assert got.requires_grad and torch.equal(got, exact)


def test_outputs_are_tensors_of_their_own():
    a, b, _, _ = drawn(5, 64, 7, 1, 1)
    for again in range(2):  # the second by the short way
        made = [t for t in ops.gemm_swiglu_forward(a, b).values() if t is not None]
        assert all(t._base is None and t.untyped_storage().resizable() and not t.is_inference() for t in made), again
        assert len({t.untyped_storage().data_ptr() for t in made}) == len(made)
    with torch.inference_mode():
        assert all(t.is_inference() for t in ops.gemm_swiglu_forward(a, b).values() if t is not None)


def test_transforms_of_functions():
    a, b, _, _ = drawn(5, 64, 7, 1, 1)
    srelu = lambda x, w: ops.gemm_srelu_forward(x, w, d_dtype="fp32").d_tensor.square().sum()  # noqa: E731
    swiglu = lambda x, w: ops.gemm_swiglu_forward(x, w, c_dtype="fp32").c_tensor.square().sum()  # noqa: E731
    for loss in (srelu, swiglu):
        x, w = a.clone().requires_grad_(), b.clone().requires_grad_()
        loss(x, w).backward()
        got = torch.func.grad(loss, argnums=(0, 1))(a, b)
        assert torch.equal(got[0], x.grad) and torch.equal(got[1], w.grad)
        many = torch.stack([a, -a, 2 * a])
        each = torch.stack([torch.func.grad(loss)(one, b) for one in many])
        torch.testing.assert_close(torch.func.vmap(torch.func.grad(loss), (0, None))(many, b), each)
    with pytest.raises(RuntimeError, match="no derivative"):
        torch.func.grad(lambda x: ops.gemm_amax_forward(x, b).c_tensor.sum())(a)


@pytest.mark.parametrize("axis", [0, 1, 2, 3])
def test_mapped_axes_lie_anywhere(axis):
    """Where an axis is mapped, elements lie as torch has put them, which is no packed matrix."""
    torch.manual_seed(0)
    a, b, dy, prob = (
        torch.randn(batch, 2, *shape).permute(0, 2, 3, 1)
        for batch, shape in [(3, (5, 7)), (3, (64, 7)), (3, (5, 64)), (3, (5, 1))]
    )
    calls = [
        lambda a, b, dy, prob: list(ops.gemm_amax_forward(a, b))[:2],
        lambda a, b, dy, prob: list(ops.gemm_swiglu_forward(a, b, 0.5, "m"))[:2],
        lambda a, b, dy, prob: list(ops.gemm_srelu_forward(a, b, prob_tensor=prob))[:2],
        lambda a, b, dy, prob: list(ops.gemm_srelu_backward(a, b, dy, prob_tensor=prob))[:2],
    ]
    moved = [x.movedim(0, axis).contiguous() for x in (a, b, dy, prob)]
    for call in calls:
        each = [call(*one) for one in zip(a, b, dy, prob, strict=True)]
        for got, want in zip(torch.func.vmap(call, axis)(*moved), zip(*each, strict=True), strict=True):
            assert torch.equal(got, torch.stack(want))
        if axis == 0:  # and with weights that are not mapped
            each = [call(x, b[0], y, p) for x, y, p in zip(a, dy, prob, strict=True)]
            for got, want in zip(torch.func.vmap(call, (0, None, 0, 0))(a, b[0], dy, prob), zip(*each, strict=True), strict=True):
                assert torch.equal(got, torch.stack(want))


def test_results_pass_through_maps_and_programs():
    class Module(torch.nn.Module):
        def forward(self, a, b):
            return ops.gemm_swiglu_forward(a, b, c_dtype=F32)

    a, b, _, _ = drawn(5, 64, 7, 1, 1)
    want = Module()(a, b)
    for got in (
        torch.export.export(Module(), (a, b)).module()(a, b),
        torch.func.vmap(Module(), (0, None))(a[None], b),
        torch.utils._pytree.tree_map(lambda x: x.clone(), want),
        torch.compile(Module(), fullgraph=True, backend="eager")(a, b),
    ):
        assert type(got) is ops.TupleDict and list(got.keys()) == list(want.keys())
        assert torch.equal(got.c_tensor.reshape(5, 32, 1), want.c_tensor) and got.sfc_tensor is None and got.amax_tensor is None


def test_nothing_is_mapped_to_nothing():
    a, b, dy, prob = (torch.zeros(0, *shape, 1) for shape in ((5, 7), (64, 7), (5, 64), (5, 1)))
    swiglu = lambda x, w: ops.gemm_swiglu_forward(x, w).c_tensor  # noqa: E731
    assert torch.func.vmap(swiglu)(a, b).shape == (0, 5, 32, 1)
    assert torch.func.vmap(swiglu, (0, None))(a, torch.zeros(64, 7, 1)).shape == (0, 5, 32, 1)
    of_prob = torch.func.vmap(lambda x, w, y, p: ops.gemm_srelu_backward(x, w, y, prob_tensor=p).dprob_tensor)
    assert of_prob(a, b, dy, prob).shape == (0, 5, 1, 1)


def test_mapped_scales_and_tokens():
    from test_ops_proj_rope import inputs
    from test_ops_scaled import FORMATS, operand

    bytes_of = lambda x, kind: tensor(np.ascontiguousarray(x).view(np.uint8), torch.uint8).view(kind)  # noqa: E731
    (a, sfa, _), (b, sfb, _) = operand(130, 160, 3, FORMATS[0], 1), operand(64, 160, 3, FORMATS[0], 2)
    a, b = bytes_of(a, torch.float8_e4m3fn), bytes_of(b, torch.float8_e4m3fn)
    sfa, sfb = bytes_of(sfa, torch.uint8), bytes_of(sfb, torch.uint8)
    packed = lambda x: x.permute(2, 0, 1).contiguous().permute(1, 2, 0)  # noqa: E731
    atoms = lambda x: x.permute(5, 2, 4, 0, 1, 3).contiguous()  # noqa: E731
    call = lambda a, b, x, y: ops.gemm_srelu_forward(a, b, x, y, sf_vec_size=32).d_tensor  # noqa: E731
    want = call(packed(a), packed(b), atoms(sfa), atoms(sfb))
    for form in (lambda x: x.unsqueeze(-2), lambda x: atoms(x).unsqueeze(1).movedim(0, -1)):
        given = *(x.unsqueeze(-2) for x in (a, b)), form(sfa), form(sfb)
        got = torch.func.vmap(call, -1, -1)(*given)
        assert torch.equal(got.squeeze(-2), want)
    x, w, cos, sin = (torch.from_numpy(t.astype(np.float32)).bfloat16() for t in inputs(64, 32, 1, False)[0])
    rows = lambda *t: list(ops.gemm_proj_rope_mxfp8_forward(*t))  # noqa: E731
    halves = lambda t: t.reshape(2, 32, -1)  # noqa: E731
    mapped = torch.func.vmap(rows, (1, None, 1, 1))(*(t if t is w else halves(t).transpose(0, 1) for t in (x, w, cos, sin)))
    each = [rows(x, w, y, z) for x, y, z in zip(*map(halves, (x, cos, sin)), strict=True)]
    for got, want in zip(mapped, zip(*each, strict=True), strict=True):
        assert torch.equal(got.view(torch.uint8), torch.stack(want).view(torch.uint8))


def test_gradients_of_many_at_once():
    a, b, _, _ = drawn(5, 64, 7, 2, 1)
    for call in (lambda x: ops.gemm_srelu_forward(x, b, d_dtype="fp32"), lambda x: ops.gemm_swiglu_forward(x, b, c_dtype="fp32")):
        x = a.clone().requires_grad_()
        y = list(call(x))[1]
        many = torch.randn(3, *y.shape)
        (got,) = torch.autograd.grad(y, x, many, is_grads_batched=True, retain_graph=True)
        for g, one in zip(got, many, strict=True):
            torch.testing.assert_close(g, torch.autograd.grad(y, x, one, retain_graph=True)[0])


def test_no_derivative_in_forward_mode_is_said():
    from torch.autograd import forward_ad

    a, b, _, _ = drawn(5, 64, 7, 1, 1)
    calls = [lambda x: ops.gemm_swiglu_forward(x, b).c_tensor, lambda x: ops.gemm_amax_forward(x, b).c_tensor]
    for call in calls:
        call(a)  # brings the short way in, which would have none of it
        with pytest.raises(RuntimeError, match="forward mode"):
            torch.func.jvp(call, (a,), (a,))
        with forward_ad.dual_level():
            assert torch.equal(call(a), call(a))
            with pytest.raises(RuntimeError, match="forward mode"):
                call(forward_ad.make_dual(a, a))


def without_memory(tensor):
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def wrong_calls():
    """Rule, and a call of tensors."""
    a, b, dy, prob = drawn(5, 64, 7, 2, 1)
    narrow, e4m3 = b[:33].clone(), torch.float8_e4m3fn
    half = torch.float16
    x, w, turns = (torch.zeros(s, dtype=torch.bfloat16) for s in ((32, 64), (192, 64), (32, 64)))
    amax, swiglu = ops.gemm_amax_forward, ops.gemm_swiglu_forward
    srelu, dsrelu, rope = ops.gemm_srelu_forward, ops.gemm_srelu_backward, ops.gemm_proj_rope_mxfp8_forward
    return [
        ("op.extent", amax, (a, b[:, :6].clone()), {}),
        ("op.dtype", amax, (a, b.to(half)), {}),
        ("op.dtype", amax, (a.double(), b.double()), {}),
        ("op.dtype", amax, (a, b), {"c_dtype": torch.int8}),
        ("op.layout", amax, (a[::2], b), {}),
        ("op.rank", amax, (a[..., 0], b), {}),
        ("op.missing", amax, (a.to(e4m3), b.to(e4m3), prob), {}),
        ("op.extent", swiglu, (a, narrow), {}),
        ("op.dtype", swiglu, (a, b), {"c_dtype": e4m3}),
        ("op.extent", srelu, (a, b, None, None, prob[:4]), {}),
        ("op.dtype", srelu, (a, b, None, None, prob.to(half)), {}),
        ("op.dtype", srelu, (a, b), {"d_dtype": e4m3}),
        ("op.extent", dsrelu, (a, b, dy[:4].clone()), {}),
        ("op.missing", rope, (x.to(e4m3), w.to(e4m3), turns, turns), {}),
        ("op.extent", rope, (x, w[:191], turns, turns), {}),
        ("op.option", rope, (x, w, turns, turns), {"head_dim": 100}),
    ]


@pytest.mark.parametrize(("rule", "function", "tensors", "options"), wrong_calls())
def test_tensors_without_memory_are_refused_as_others_are(rule, function, tensors, options):
    def refused(call):
        with pytest.raises(verglas.Error) as caught:
            call()
        return caught.value.rule

    if rule != "op.dtype":  # of what is no type at all the buffer is refused
        assert refused(lambda: function(*tensors, **options)) == rule
    meta = [t if t is None else without_memory(t) for t in tensors]
    assert refused(lambda: function(*meta, **options)) == rule
    with torch._subclasses.FakeTensorMode() as mode:
        fake = [t if t is None else mode.from_tensor(t) for t in tensors]
        assert refused(lambda: function(*fake, **options)) == rule
    torch._dynamo.reset()
    with pytest.raises(Exception, match=rule.replace(".", r"\.")):
        torch.compile(lambda *t: function(*t, **options)[0], backend="eager", dynamic=True)(*tensors)


def test_tensors_without_memory_have_outputs_likewise():
    a, b, _, prob = drawn(5, 64, 7, 2, 1)
    for call in (lambda *t: ops.gemm_swiglu_forward(*t[:2]), lambda *t: ops.gemm_srelu_forward(t[0], t[1], None, None, t[2])):
        want, got = call(a, b, prob), call(*(t.to("meta") for t in (a, b, prob)))
        for w, g in zip(want, got, strict=True):
            assert (w is None) == (g is None)
            if w is not None:
                assert g.is_meta and (g.shape, g.stride(), g.dtype) == (w.shape, w.stride(), w.dtype)


@pytest.mark.parametrize("place", range(3))
def test_tensors_without_memory_beside_others_are_refused(place):
    """Outputs would be of memory that nobody has written."""
    tensors = drawn(5, 64, 7, 2, 1)
    tensors = [tensors[0], tensors[1], None, None, tensors[3]]
    tensors[(0, 1, 4)[place]] = tensors[(0, 1, 4)[place]].to("meta")
    with pytest.raises(verglas.InvalidCallError, match=r"op\.device.*(prob|b).*as the first tensor"):
        ops.gemm_srelu_forward(*tensors)


class Before210(torch.Tensor):
    """A tensor as torch had them before 2.10: without a table of C functions, and no export of narrow types."""

    __module__ = "torch"
    __dlpack_c_exchange_api__ = None

    def __dlpack__(self, **options):
        if "float8" in str(self.dtype) or "float4" in str(self.dtype):
            raise BufferError("narrow types are not supported by dlpack")
        return super().__dlpack__(**options)


@pytest.mark.parametrize("narrow", ["float8_e4m3fn", "float8_e5m2", "float4_e2m1fn_x2"])
def test_narrow_tensors_are_read_where_torch_does_not_export_them(narrow):
    if not hasattr(torch, narrow):
        pytest.skip(f"this torch has no {narrow}")
    is_pair = narrow.startswith("float4")
    a, b = (
        torch.full((rows, 32, 1), 0x22 if is_pair else 0x38, dtype=torch.uint8).view(getattr(torch, narrow)) for rows in (5, 8)
    )
    one = torch.full((1, 1, 1, 32, 4, 4), 127, dtype=torch.uint8).view(torch.float8_e8m0fnu)
    c, amax = torch.empty(5, 8, 1), torch.empty(1)
    a, b, one = (t.as_subclass(Before210) for t in (a, b, one))
    ops.GemmAmax(a, b, one, one, c, amax, sf_vec_size=32)(a, b, one, one, c, amax)
    each = {"float8_e4m3fn": 1, "float8_e5m2": 0.25, "float4_e2m1fn_x2": 2}[narrow]
    assert (c == 32 * each).all() and amax.item() == 32 * each
