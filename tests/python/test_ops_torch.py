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
from ops_torch import F32, operands, probabilities, scaled, scaled_forms, tensor
from support import lacking
from verglas import ops

try:
    import torch
except ImportError:
    lacking("torch", "torch is not installed", module=True)

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


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
