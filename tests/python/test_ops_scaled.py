"""Operations on operands with block scales: MXFP8, MXFP4, NVFP4 against float64; poisoned padding; quantised outputs."""

import itertools

import ml_dtypes
import numpy as np
import ops_oracle as oracle
import pytest
import verglas
from ops_oracle import BF16, laid, matrix, same
from verglas import ops

E4M3, E5M2, E8M0 = (np.dtype(getattr(ml_dtypes, n)) for n in ("float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"))
FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
FORMATS = [(E4M3, E8M0, 32), (E5M2, E8M0, 32), ("fp4", E8M0, 32), ("fp4", E8M0, 16), ("fp4", E4M3, 16)]
SIZES = [(5, 6, 32, 1), (130, 96, 80, 2), (3, 9, 34, 1), (64, 7, 160, 3)]


def atoms(scales, poison=0xFF):
    """Scales (rows, columns, L) as cuDNN's torch tensors list them, (32, 4, R', 4, K', L); nothing may read the padding."""
    rows, columns, batch = scales.shape
    r, c = -(-rows // 128), -(-columns // 4)
    memory = np.full((batch, r, c, 32, 4, 4), poison, np.uint8)
    for i, j, b in np.ndindex(scales.shape):
        memory[b, i // 128, j // 4, i % 32, i // 32 % 4, j % 4] = scales.view(np.uint8)[i, j, b]
    return memory.view(scales.dtype).transpose(3, 4, 1, 5, 2, 0)


def physical(view):
    return view.transpose(5, 2, 4, 0, 1, 3)


def plain(view, rows, columns):
    memory = physical(np.asarray(view))
    out = np.empty((rows, columns, memory.shape[0]), memory.dtype)
    for i, j, b in np.ndindex(out.shape):
        out[i, j, b] = memory[b, i // 128, j // 4, i % 32, i // 32 % 4, j % 4]
    return out


def operand(rows, k, batch, form, seed, major="k"):
    """(as passed, its scales as passed, the numbers that both mean)."""
    data, scale, v = form
    rng = np.random.default_rng(seed)
    columns = -(-k // v)
    if scale == E8M0:
        scales = np.exp2(rng.integers(-2, 3, (rows, columns, batch))).astype(E8M0)
    else:
        scales = rng.choice([0.5, 1, 1.5, 2], (rows, columns, batch)).astype(E4M3)
    if isinstance(data, str):
        codes = rng.integers(0, 16, (rows, k, batch)).astype(np.uint8)
        numbers = FP4[codes]
        passed = laid(codes[:, ::2] | codes[:, 1::2] << 4, "k")
    else:
        passed = matrix((rows, k, batch), data, major, seed)
        numbers = passed.astype(np.float64)
    wide = np.repeat(scales.astype(np.float64), v, 1)[:, :k]
    return passed, atoms(scales), numbers * wide


@pytest.mark.parametrize("form", FORMATS, ids=str)
@pytest.mark.parametrize("size", SIZES)
def test_products_are_exact(form, size):
    m, n, k, batch = size
    a, sfa, wide_a = operand(m, k, batch, form, 1)
    b, sfb, wide_b = operand(n, k, batch, form, 2)
    prob, dy = matrix((m, 1, batch), np.float32, "n", 5), matrix((m, n, batch), BF16, "n", 6)
    v = {"sf_vec_size": form[2]}
    for out in "nm":
        r = ops.gemm_amax_forward(a, b, sfa, sfb, out, **v)
        want = oracle.product(wide_a, wide_b)
        same(r.c_tensor, want, np.float32)
        assert r.amax_tensor.item() == np.abs(want).max()
        s = ops.gemm_srelu_forward(a, b, sfa, sfb, prob, 0.5, out, d_dtype="fp32", **v)
        c, d = oracle.srelu(wide_a, wide_b, prob, 0.5)
        same(s.c_tensor, c, BF16)
        np.testing.assert_allclose(s.d_tensor, d, rtol=1e-6)
        assert (s.amax_tensor is None) == (form[0] != "fp4") and s.sfd_tensor is None
        if s.amax_tensor is not None:
            assert s.amax_tensor.item() == np.abs(s.d_tensor).max()
        g = ops.gemm_srelu_backward(a, b, dy, sfa, sfb, prob, 0.5, out, d_dtype="fp32", **v)
        dx, dprob = oracle.dsrelu(wide_a, wide_b, dy, prob, 0.5)
        np.testing.assert_allclose(g.d_tensor, dx, rtol=1e-6)
        np.testing.assert_allclose(g.dprob_tensor, dprob, rtol=1e-5, atol=1e-2)


@pytest.mark.parametrize("form", FORMATS, ids=str)
@pytest.mark.parametrize("size", [(5, 64, 32, 1), (130, 320, 80, 2), (3, 128, 34, 1), (64, 192, 160, 3)])
def test_swiglu(form, size):
    m, n, k, batch = size
    a, sfa, wide_a = operand(m, k, batch, form, 1)
    b, sfb, wide_b = operand(n, k, batch, form, 2)
    ab, c = oracle.swiglu(wide_a, wide_b, 0.5)
    v = {"sfa_tensor": sfa, "sfb_tensor": sfb, "sf_vec_size": form[2]}
    for major in "nm":
        r = ops.gemm_swiglu_forward(a, b, 0.5, major, c_dtype="fp32", **v)
        same(r.ab12_tensor, ab, np.float32)
        np.testing.assert_allclose(r.c_tensor, c, rtol=1e-5, atol=1e-6)
        assert r.ab12_tensor.strides[1 if major == "n" else 0] == 4
        assert r.sfc_tensor is None and r.amax_tensor is None
    r = ops.gemm_swiglu_forward(a, b, 0.5, ab12_dtype=E4M3, c_dtype=BF16, **v)
    same(r.ab12_tensor, np.clip(ab, -448, 448), E4M3)
    assert (r.amax_tensor is None) == (form[0] != "fp4")
    if r.amax_tensor is not None:
        np.testing.assert_allclose(r.amax_tensor, np.abs(c).max(keepdims=True), rtol=1e-5)
    sample = [laid(np.zeros(shape, np.float32), "n") for shape in ((m, n, batch), (m, n // 2, batch))]
    amax = np.full((1, 1, 1), 7e9, np.float32)
    op = ops.GemmSwiglu(a, b, *sample, sample_sfa=sfa, sample_sfb=sfb, sample_amax=amax, sf_vec_size=form[2])
    op(a, b, *sample, sfa, sfb, amax)
    same(sample[0], 2 * ab, np.float32)
    np.testing.assert_allclose(amax.item(), np.abs(oracle.swiglu(wide_a, wide_b, 1.0)[1]).max(), rtol=1e-5)


@pytest.mark.parametrize("form", [FORMATS[0], FORMATS[2], FORMATS[4]], ids=str)
@pytest.mark.parametrize("norm", [1.0, 4.0])
@pytest.mark.parametrize(("major", "dtype", "vmax"), [("n", E4M3, 448), ("m", E4M3, 448), ("n", E5M2, 128), ("m", E5M2, 128)])
def test_quantised_c_of_swiglu(form, norm, major, dtype, vmax):
    m, n, k, batch = 131, 320, 64, 2
    a, sfa, _ = operand(m, k, batch, form, 1)
    b, sfb, _ = operand(n, k, batch, form, 2)
    a[3] = 0  # blocks of zeros
    block = form[2]
    v = {"sfa_tensor": sfa, "sfb_tensor": sfb, "sf_vec_size": block}
    exact = ops.gemm_swiglu_forward(a, b, 0.25, c_dtype="fp32", **v)
    factor = np.full(1, norm, np.float32)
    r = ops.gemm_swiglu_forward(a, b, 0.25, major, c_dtype=dtype, norm_const_tensor=factor, **v)
    same(r.ab12_tensor, exact.ab12_tensor, np.float32)
    assert r.amax_tensor is None
    scaled = (exact.c_tensor * np.float32(norm)).astype(np.float32)
    largest = np.abs(scaled).reshape(m, n // 2 // block, block, batch).max(2)
    wanted = (largest / np.float32(vmax)).astype(np.float32)
    if form[1] == E8M0:
        with np.errstate(divide="ignore"):
            held = np.exp2(np.maximum(np.where(wanted == 0, -127, np.ceil(np.log2(wanted.astype(np.float64)))), -127))
    else:
        held = np.minimum(wanted, 448).astype(E4M3).astype(np.float64)
    scales = plain(r.sfc_tensor, m, n // 2 // block)
    assert r.sfc_tensor.dtype == form[1]
    np.testing.assert_array_equal(scales.astype(np.float64), held)
    with np.errstate(divide="ignore"):
        inverse = np.where(held == 0, 0, 1 / held.astype(np.float32))
    q = np.clip(
        scaled * np.repeat(inverse.astype(np.float32), block, 1),
        -np.float32(ml_dtypes.finfo(dtype).max),
        np.float32(ml_dtypes.finfo(dtype).max),
    )
    same(r.c_tensor, q, dtype)
    assert r.c_tensor.strides[1 if major == "n" else 0] == 1
    rest = physical(np.asarray(r.sfc_tensor)).view(np.uint8).copy()
    for i, j, c in np.ndindex(scales.shape):
        rest[c, i // 128, j // 4, i % 32, i // 32 % 4, j % 4] = 0
    assert (rest == 0).all(), "padding is zero"


@pytest.mark.parametrize(
    ("form", "n", "asked"), zip(FORMATS[2:], (6, 130, 64), ("fp4_e2m1", "uint8", "fp4_e2m1"), strict=True), ids=str
)
def test_fp4_c_of_amax(form, n, asked):
    """Rounded once to the nearest, ties to even; 6 is the largest, NaN is 6 too."""
    m, k, batch = 67, 64, 2
    a, sfa, wide_a = operand(m, k, batch, form, 1)
    b, sfb, wide_b = operand(n, k, batch, form, 2)
    wide = oracle.product(wide_a, wide_b)
    r = ops.gemm_amax_forward(a, b, sfa, sfb, c_dtype=asked, sf_vec_size=form[2])
    c = np.asarray(r.c_tensor)
    assert c.dtype == np.uint8 and c.shape == (m, n // 2, batch) and c.strides[1] == 1
    distance = np.abs(np.abs(wide)[..., None] - FP4[:8])
    nearest = distance == distance.min(-1, keepdims=True)
    code = np.where(nearest.sum(-1) == 2, nearest.argmax(-1) + nearest.argmax(-1) % 2, nearest.argmax(-1))
    code = code + np.where(np.signbit(wide), 8, 0)
    np.testing.assert_array_equal(c & 15, code[:, ::2])
    np.testing.assert_array_equal(c >> 4, code[:, 1::2])
    assert r.amax_tensor.item() == np.abs(wide).max()
    own, amax = np.full((batch, m, n // 2), 0xAA, np.uint8).transpose(1, 2, 0), np.zeros((1, 1, 1), np.float32)
    ops.GemmAmax(a, b, sfa, sfb, own, amax, sf_vec_size=form[2])(a, b, sfa, sfb, own, amax)
    np.testing.assert_array_equal(own, c)
    assert amax == r.amax_tensor
    odd_b, odd_scales, _ = operand(n - 1, k, batch, form, 2)
    odd = odd_b, sfa, odd_scales
    for rule, call in [
        ("op.layout", lambda: ops.gemm_amax_forward(a, b, sfa, sfb, "m", c_dtype=asked, sf_vec_size=form[2])),
        ("op.extent", lambda: ops.gemm_amax_forward(a, *odd, c_dtype=asked, sf_vec_size=form[2])),
    ]:
        with pytest.raises(ValueError) as caught:
            call()
        assert caught.value.rule == rule


def test_swiglu_of_nothing_and_of_nan():
    form = (E4M3, E8M0, 32)
    b, sfb, _ = operand(192, 64, 2, form, 2)
    for rows, where in ((0, None), (5, 2)):
        a, sfa, _ = operand(rows, 64, 2, form, 1)
        if where is not None:
            a[where, 7, 1] = np.nan
        sample = [laid(np.zeros((rows, n, 2), np.float32), "n") for n in (192, 96)]
        amax = np.zeros((1, 1, 1), np.float32)
        op = ops.GemmSwiglu(a, b, *sample, sample_sfa=sfa, sample_sfb=sfb, sample_amax=amax, sf_vec_size=32)
        op(a, b, *sample, sfa, sfb, amax)
        assert np.isnan(amax.item()) if where is not None else amax.item() == -np.inf
        assert np.isnan(sample[1]).sum() == (96 if where is not None else 0)


def test_both_forms_of_scales_and_their_containers():
    form = (E4M3, E8M0, 32)
    a, sfa, wide_a = operand(130, 160, 2, form, 1)
    b, sfb, wide_b = operand(9, 160, 2, form, 2)
    want = oracle.product(wide_a, wide_b)
    for left, right in [
        (sfa, physical(sfb)),
        (np.ascontiguousarray(physical(sfa)), physical(sfb)),
        (sfa.view(np.uint8), sfb.view(np.int8)),
    ]:
        same(ops.gemm_amax_forward(a, b, left, right).c_tensor, want, np.float32)


@pytest.mark.parametrize("majors", ["km", "mk", "mm"])
def test_fp8_of_any_major(majors):
    form = (E4M3, E8M0, 32)
    a, sfa, wide_a = operand(7, 48, 2, form, 1, majors[0])
    b, sfb, wide_b = operand(16, 48, 2, form, 2, majors[1])
    same(ops.gemm_amax_forward(a, b, sfa, sfb).c_tensor, oracle.product(wide_a, wide_b), np.float32)


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("norm", [1.0, 4.0])
@pytest.mark.parametrize(("major", "dtype", "vmax"), [("n", E4M3, 448), ("m", E4M3, 448), ("n", E5M2, 128), ("m", E5M2, 128)])
def test_quantised_d(backward, norm, major, dtype, vmax):
    form = (E4M3, E8M0, 32)
    m, n, k, batch = 131, 96, 64, 2
    a, sfa, _ = operand(m, k, batch, form, 1)
    b, sfb, _ = operand(n, k, batch, form, 2)
    prob = matrix((m, 1, batch), np.float32, "n", 5)
    prob[3] = 0  # blocks of zeros
    factor, v = np.full(1, norm, np.float32), {"sf_vec_size": 32}
    if backward:
        dy = matrix((m, n, batch), BF16, "n", 6)
        exact = ops.gemm_srelu_backward(a, b, dy, sfa, sfb, prob, d_dtype="fp32", **v).d_tensor
        r = ops.gemm_srelu_backward(a, b, dy, sfa, sfb, prob, 1.0, major, dtype, norm_const_tensor=factor, **v)
    else:
        exact = ops.gemm_srelu_forward(a, b, sfa, sfb, prob, d_dtype="fp32", **v).d_tensor
        r = ops.gemm_srelu_forward(a, b, sfa, sfb, prob, 1.0, major, d_dtype=dtype, norm_const_tensor=factor, **v)
    scales = plain(r.sfd_tensor, m, n // 32)
    largest = np.abs(exact.astype(np.float64) * norm).reshape(m, n // 32, 32, batch).max(2)
    with np.errstate(divide="ignore"):
        code = np.where(largest == 0, 0, np.ceil(np.log2(largest / vmax)) + 127)
    np.testing.assert_array_equal(scales.view(np.uint8), np.maximum(code, 0).astype(np.uint8))
    assert r.d_tensor.strides[1 if major == "n" else 0] == 1
    back = r.d_tensor.astype(np.float64) * np.repeat(scales.astype(np.float64), 32, 1) / norm
    assert (np.abs(back - exact) <= np.abs(exact) * (2.0**-4 if dtype == E4M3 else 2.0**-3) + largest.max() * 2.0**-12).all()
    assert (r.d_tensor[3].astype(np.float32) == 0).all()
    rest = physical(np.asarray(r.sfd_tensor)).view(np.uint8).copy()
    for i, j, c in np.ndindex(m, n // 32, batch):
        rest[c, i // 128, j // 4, i % 32, i // 32 % 4, j % 4] = 0
    assert (rest == 0).all(), "padding is zero"


@pytest.mark.parametrize(("m", "n", "k", "batch"), [(8, 0, 64, 1), (0, 64, 64, 1), (8, 0, 0, 2), (8, 64, 64, 0), (0, 0, 0, 1)])
def test_quantised_outputs_of_nothing(m, n, k, batch):
    form, one = (E4M3, E8M0, 32), np.ones(1, np.float32)
    (a, sfa, _), (b, sfb, _) = operand(m, k, batch, form, 1), operand(n, k, batch, form, 2)
    options = {"d_dtype": E4M3, "norm_const_tensor": one, "sf_vec_size": 32}
    forward = ops.gemm_srelu_forward(a, b, sfa, sfb, **options)
    backward = ops.gemm_srelu_backward(a, b, laid(np.ones((m, n, batch), np.float32), "n"), sfa, sfb, **options)
    for r in (forward, backward):
        assert r.d_tensor.shape == (m, n, batch) and r.sfd_tensor.shape[4:] == ((n // 32 + 3) // 4, batch)
    assert (backward.dprob_tensor == 0).all()
    options["c_dtype"] = options.pop("d_dtype")
    c = ops.gemm_swiglu_forward(a, b, sfa_tensor=sfa, sfb_tensor=sfb, **options).c_tensor
    assert c.shape == (m, n // 2, batch) and c.dtype == E4M3


def test_two_fp4_are_one_pair_whatever_its_strides():
    """A tensor of one byte along K may have any stride there."""
    for form in (("fp4", E8M0, 32), ("fp4", E4M3, 16)):
        (a, sfa, x), (b, sfb, y) = operand(6, 2, 2, form, 1), operand(64, 2, 2, form, 2)
        want = oracle.product(x, y)
        for p, q in itertools.product("km", "km"):
            c = ops.gemm_amax_forward(laid(a, p), laid(b, q), sfa, sfb, sf_vec_size=form[2]).c_tensor
            same(c, want, np.float32)


def test_refusals():
    form = (E4M3, E8M0, 32)
    a, sfa, _ = operand(8, 64, 1, form, 1)
    b, sfb, _ = operand(160, 64, 1, form, 2)
    fp4, sf4, _ = operand(8, 64, 1, ("fp4", E4M3, 16), 1)
    pairs = operand(128, 64, 1, form, 2)
    one = np.ones(1, np.float32)
    scales = {"sfa_tensor": sfa, "sfb_tensor": pairs[1], "sf_vec_size": 32}
    f, s, g = ops.gemm_amax_forward, ops.gemm_srelu_forward, ops.gemm_swiglu_forward
    for rule, call in [
        ("op.option", lambda: f(a, b, sfa, sfb, sf_vec_size=16)),
        ("op.option", lambda: f(fp4, fp4, sf4, sf4, sf_vec_size=32)),
        ("op.dtype", lambda: f(a, b, sfa, sfb.view(E4M3))),
        ("op.dtype", lambda: f(a.astype(BF16), b.astype(BF16), sfa, sfb)),
        ("op.dtype", lambda: f(a, b.astype(E5M2), sfa, sfb)),
        ("op.extent", lambda: f(a, b, sfa, np.concatenate([sfb, sfb], 4))),
        ("op.extent", lambda: f(a, b, sfa[..., 0], sfb)),
        ("op.layout", lambda: f(a, b, sfa, np.ascontiguousarray(sfb))),
        ("op.layout", lambda: f(laid(fp4, "m"), fp4, sf4, sf4, sf_vec_size=16)),
        ("op.missing", lambda: g(a, pairs[0], norm_const_tensor=one, **scales)),
        ("op.missing", lambda: g(a, pairs[0], c_dtype=E4M3, **scales)),
        ("op.dtype", lambda: g(matrix((8, 64, 1), BF16), matrix((64, 64, 1), BF16), c_dtype=E4M3)),
        ("op.missing", lambda: g(a, b, sfa_tensor=sfa, sf_vec_size=32)),
        ("op.extent", lambda: g(a, b, sfa_tensor=sfa, sfb_tensor=sfb, sf_vec_size=32)),
        ("op.missing", lambda: s(a, b, sfa, sfb, d_dtype=E4M3, sf_vec_size=32)),
        ("op.extent", lambda: s(a, b[:48], sfa, sfb[:, :, :1], d_dtype=E4M3, norm_const_tensor=one, sf_vec_size=32)),
        ("op.missing", lambda: s(a, b, sfa, sfb, norm_const_tensor=one, sf_vec_size=32)),
        ("op.dtype", lambda: s(fp4, fp4, sf4, sf4, d_dtype=E4M3, norm_const_tensor=one)),
        ("op.extent", lambda: s(a, b, sfa, sfb, d_dtype=E4M3, norm_const_tensor=np.ones(2, np.float32), sf_vec_size=32)),
    ]:
        with pytest.raises((ValueError, NotImplementedError)) as caught:
            call()
        assert caught.value.rule == rule, caught.value
    f(a, b, sfa, sfb)
    f(fp4, fp4, sf4, sf4, sf_vec_size=16)


@pytest.mark.parametrize("scaled", [False, True], ids=["bf16", "e4m3"])
@pytest.mark.parametrize("name", ["swiglu", "srelu", "dsrelu"])
def test_which_outputs_of_a_class_may_be_left_out(name, scaled):
    """An amax may, whatever the types; scales of what is quantised may not, and that is known before anything is compiled."""
    form = FORMATS[0] if scaled else FORMATS[2]
    (a, sfa, x), (b, sfb, y) = operand(8, 64, 1, form, 1), operand(64, 64, 1, form, 2)
    cls = {"swiglu": ops.GemmSwiglu, "srelu": ops.GemmSrelu, "dsrelu": ops.GemmDsrelu}[name]
    full, kind = np.zeros((8, 64, 1), np.float32), E4M3 if scaled else BF16
    last = np.zeros((8, 32 if name == "swiglu" else 64, 1), kind)
    tensors = [a, b, full, last] + ([np.zeros((8, 1, 1), np.float32)] if name == "dsrelu" else [])
    scales = {"sfa": sfa, "sfb": sfb} | ({"norm_const": np.ones(1, np.float32)} if scaled else {})
    op = cls(*tensors, **{f"sample_{key}": value for key, value in scales.items()}, sf_vec_size=32)
    if scaled:
        for call in (op.check_support, op.compile):
            with pytest.raises(ValueError, match=r"op\.missing.*sf[cd]: got no tensor"):
                call()
        return
    op(*tensors, **{f"{key}_tensor": value for key, value in scales.items()})
    c = oracle.product(x, y)
    if name == "srelu":
        same(last, np.maximum(c, 0) ** 2, BF16)
    elif name == "swiglu":
        same(full, c, np.float32)
        assert last.any()


def test_classes_and_two_formats_do_not_share_a_plan():
    for form in FORMATS:
        a, sfa, wide_a = operand(8, 64, 2, form, 1)
        b, sfb, wide_b = operand(16, 64, 2, form, 2)
        c, amax = oracle.laid(np.zeros((8, 16, 2), np.float32), "n"), np.full((1, 1, 1), 7e9, np.float32)
        op = ops.GemmAmax(a, b, sfa, sfb, c, amax, sf_vec_size=form[2])
        op(a, b, sfa, sfb, c, amax)
        same(c, oracle.product(wide_a, wide_b), np.float32)


def test_jax_takes_scales_in_order_under_jit():
    jax = pytest.importorskip("jax")
    if verglas._verglas.xla_targets() is None:
        pytest.skip("the module was built without JAX' headers")
    form = (E4M3, E8M0, 32)
    a, sfa, wide_a = operand(8, 64, 1, form, 1)
    b, sfb, wide_b = operand(16, 64, 1, form, 2)
    want = oracle.product(wide_a, wide_b)
    given = a, b, np.ascontiguousarray(physical(sfa)), np.ascontiguousarray(physical(sfb))
    given = [jax.device_put(t, jax.devices("cpu")[0]) for t in given]
    c, amax = jax.jit(ops.gemm_amax_jax_forward)(*given)
    np.testing.assert_array_equal(c, want)
    assert amax.item() == np.abs(want).max()
    b, sfb, wide_b = operand(64, 64, 1, form, 2)
    pairs = [jax.device_put(t, jax.devices("cpu")[0]) for t in (b, np.ascontiguousarray(physical(sfb)))]
    run = jax.jit(lambda a, b, x, y: ops.gemm_swiglu_jax_forward(a, b, sfa_tensor=x, sfb_tensor=y, sf_vec_size=32))
    np.testing.assert_array_equal(run(given[0], pairs[0], given[2], pairs[1])[0], oracle.swiglu(wide_a, wide_b, 1.0)[0])
    c, d = jax.jit(lambda *t: ops.gemm_srelu_jax_forward(*t, d_dtype="fp32", sf_vec_size=32))(*given)
    np.testing.assert_array_equal(d, np.maximum(want, 0) ** 2)
