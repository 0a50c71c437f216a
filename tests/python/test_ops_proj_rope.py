"""Projection + rotary embedding + MXFP8 in both directions, bit for bit where sums are exact."""

import ml_dtypes
import numpy as np
import pytest
import verglas
from verglas import ops

BF16, E4M3, E8M0 = (np.dtype(getattr(ml_dtypes, n)) for n in ("bfloat16", "float8_e4m3fn", "float8_e8m0fnu"))


def inputs(tokens, k, heads, scaled, seed=0):
    """Small integers over powers of two: sums are exact. Answers what is passed and the numbers of x and w."""
    rng = np.random.default_rng(seed)
    x, w = rng.integers(-3, 4, (tokens, k)).astype(np.float32), rng.integers(-3, 4, (192 * heads, k)).astype(np.float32)
    x[:32] = 0  # blocks of zeros in both directions
    cos, sin = (rng.integers(-2, 3, (tokens, 64)).astype(BF16) for _ in range(2))
    if not scaled:
        return (x.astype(BF16), w.astype(BF16), cos, sin), x, w
    xs, ws = (np.exp2(rng.integers(-2, 3, (n, k // 32))).astype(E8M0) for n in (tokens, 192 * heads))
    wide = [a * np.repeat(s.astype(np.float32), 32, 1) for a, s in ((x, xs), (w, ws))]
    return (x.astype(E4M3), w.astype(E4M3), cos, sin, xs.view(np.uint8), ws.view(np.uint8)), *wide


def rotated(x, w, cos, sin, head=192):
    y = (x.astype(np.float64) @ w.astype(np.float64).T).astype(np.float32).astype(BF16).astype(np.float32)
    y = y.reshape(len(x), -1, head)
    c, s = cos.astype(np.float32)[:, None], sin.astype(np.float32)[:, None]
    plain, half = head - cos.shape[1], cos.shape[1] // 2
    even, odd = y[..., plain::2], y[..., plain + 1 :: 2]
    first, second = even * c[..., :half] - odd * s[..., :half], odd * c[..., half:] + even * s[..., half:]
    return np.concatenate([y[..., :plain], first, second], -1)


def quantised(z, axis):
    """Blocks of 32 along an axis: codes in e4m3, scale bytes."""
    z = np.moveaxis(z, axis, -1)
    blocks = z.reshape(*z.shape[:-1], -1, 32)
    wanted = np.abs(blocks).max(-1) / np.float32(448)
    with np.errstate(divide="ignore"):
        byte = np.maximum(np.where(wanted == 0, 0, np.ceil(np.log2(wanted.astype(np.float64))) + 127), 0)
    codes = (blocks * np.exp2(127 - byte)[..., None].astype(np.float32)).astype(E4M3)
    return np.moveaxis(codes.reshape(z.shape), -1, axis), np.moveaxis(byte.astype(np.uint8), -1, axis)


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("size", [(64, 96, 3), (32, 32, 1), (96, 160, 2)])
@pytest.mark.parametrize("w_out_in", [True, False])
def test_values(scaled, size, w_out_in):
    passed, x, w = inputs(*size, scaled)
    want = rotated(x, w, passed[2], passed[3])
    if not w_out_in:
        flip = lambda a: np.ascontiguousarray(a.T)  # noqa: E731
        passed = passed[0], flip(passed[1]), *passed[2:5], *(flip(s) for s in passed[5:])
    r = verglas.gemm_proj_rope_mxfp8_forward(*passed, w_out_in=w_out_in)
    row, row_scales, col, col_scales = r
    assert list(r.keys()) == ["out_fp8_row", "out_scales_row", "out_fp8_col", "out_scales_col"] and r.out_fp8_col is col
    tokens, _, heads = size
    assert row.shape == col.shape == (tokens, heads, 192) and row_scales.dtype == col_scales.dtype == np.uint8
    for got, scales, axis in [(row, row_scales, 2), (col, col_scales, 0)]:
        codes, byte = quantised(want, axis)
        np.testing.assert_array_equal(scales, byte)
        np.testing.assert_array_equal(got.view(np.uint8) & 0x7F, codes.view(np.uint8) & 0x7F)
        np.testing.assert_array_equal(got.astype(np.float32), codes.astype(np.float32))


@pytest.mark.parametrize(("head", "columns"), [(128, 64), (64, 64), (96, 32), (256, 128), (32, 32)])
def test_other_heads(head, columns):
    rng = np.random.default_rng(head)
    x, w = (rng.integers(-3, 4, (rows, 40)).astype(BF16) for rows in (64, 3 * head))
    cos, sin = (rng.integers(-2, 3, (64, columns)).astype(BF16) for _ in range(2))
    row, row_scales, col, col_scales = ops.gemm_proj_rope_mxfp8_forward(x, w, cos, sin, head_dim=head)
    want = rotated(x, w, cos, sin, head)
    assert row.shape == (64, 3, head) and row_scales.shape == (64, 3, head // 32) and col_scales.shape == (2, 3, head)
    for got, scales, axis in [(row, row_scales, 2), (col, col_scales, 0)]:
        codes, byte = quantised(want, axis)
        np.testing.assert_array_equal(scales, byte)
        np.testing.assert_array_equal(got.astype(np.float32), codes.astype(np.float32))
    out = [np.full_like(t.view(np.uint8), 0xA5).view(t.dtype) for t in (row, row_scales, col, col_scales)]
    op = ops.GemmProjRopeMxfp8Bf16In(x, w, cos, sin, *out, w_out_in=True, head_dim=head)
    op(x, w, cos, sin, *out)
    assert [o.tobytes() for o in out] == [t.tobytes() for t in (row, row_scales, col, col_scales)]


def outputs(tokens, heads):
    return [
        np.full(shape, 0xA5, np.uint8).view(dtype)
        for shape, dtype in [
            ((tokens, heads, 192), E4M3),
            ((tokens, heads, 6), np.uint8),
            ((tokens, heads, 192), E4M3),
            ((tokens // 32, heads, 192), np.uint8),
        ]
    ]


def test_classes_and_their_poisoned_outputs():
    passed, _, _ = inputs(64, 64, 2, False)
    want = ops.gemm_proj_rope_mxfp8_forward(*passed)
    out = outputs(64, 2)
    op = ops.GemmProjRopeMxfp8Bf16In(*passed, *out, w_out_in=True)
    assert op.check_support()
    op(*passed, *out)
    for got, expected in zip(out, want, strict=True):
        assert got.tobytes() == expected.tobytes()
    (x, w, cos, sin, xs, ws), _, _ = inputs(64, 64, 2, True)
    want, out = ops.gemm_proj_rope_mxfp8_forward(x, w, cos, sin, xs, ws), outputs(64, 2)
    op = ops.GemmProjRopeMxfp8Mxfp8In(x, xs, w, ws, cos, sin, *out)
    op(x, xs, w, ws, cos, sin, *out)
    for got, expected in zip(out, want, strict=True):
        assert got.tobytes() == expected.tobytes()


def test_classes_by_name_and_by_place():
    (x, w, cos, sin), _, _ = inputs(32, 64, 1, False)
    want, out = ops.gemm_proj_rope_mxfp8_forward(x, w, cos, sin, deterministic=True), outputs(32, 1)
    names = ("out_fp8_row", "out_scales_row", "out_fp8_col", "out_scales_col")
    given = {"x": x, "w": np.ascontiguousarray(w.T), "cos": cos, "sin": sin, **dict(zip(names, out, strict=True))}
    op = ops.GemmProjRopeMxfp8Bf16In(**{f"sample_{name}": tensor for name, tensor in given.items()})
    op(**given)
    assert [o.tobytes() for o in out] == [t.tobytes() for t in want]
    op = ops.GemmProjRopeMxfp8Bf16In(x, w, cos, sin, *out, True, False)
    op.compile()
    op.execute(x, w, cos, sin, *out, None)
    with pytest.raises(TypeError):
        op.execute(x, w, cos, sin, *out[:3])


def test_refusals_write_nothing():
    (x, w, cos, sin), _, _ = inputs(64, 64, 2, False)
    (x8, w8, _, _, xs, ws), _, _ = inputs(64, 64, 2, True)
    f = ops.gemm_proj_rope_mxfp8_forward
    for words, call in [
        ("must share a dtype", lambda: f(x, w8, cos, sin)),
        ("require x_scale and w_scale", lambda: f(x8, w8, cos, sin, xs)),
        ("must not be given MXFP8 scales", lambda: f(x, w, cos, sin, xs, ws)),
        ("op.dtype", lambda: f(x.astype(np.float32), w.astype(np.float32), cos, sin)),
        ("a multiple of 32", lambda: f(x[:33], w, cos[:33], sin[:33])),
        ("a multiple of 192", lambda: f(x, w[:190], cos, sin)),
        ("a multiple of 128", lambda: f(x, w[:320], cos, sin, head_dim=128)),
        ("op.option", lambda: f(x, w, cos, sin, head_dim=190)),
        ("a multiple of 32 up to 192", lambda: f(x, w, cos[:, :48], sin[:, :48])),
        ("op.extent", lambda: f(x, w, cos, np.ascontiguousarray(sin[:, :32]))),
        ("op.extent", lambda: f(x, w, cos[:32], sin)),
        ("op.rank", lambda: f(x[None], w, cos, sin)),
        ("op.layout", lambda: f(x[:, ::2], np.ascontiguousarray(w[:, ::2]), cos, sin)),
    ]:
        with pytest.raises(ValueError, match=words.replace(".", r"\.")):
            call()
    out = outputs(64, 2)
    out[3].flags.writeable = False
    op = ops.GemmProjRopeMxfp8Bf16In(x, w, cos, sin, *out, w_out_in=True)
    op.compile()
    with pytest.raises(ValueError, match=r"call\.read_only"):
        op.execute(x, w, cos, sin, *out)
    assert all((o.view(np.uint8) == 0xA5).all() for o in out)


def test_torch_and_jax():
    torch = pytest.importorskip("torch")
    passed, _, _ = inputs(64, 64, 2, False)
    want = ops.gemm_proj_rope_mxfp8_forward(*passed)
    tensors = [torch.from_numpy(t.astype(np.float32)).bfloat16() for t in passed]
    got = ops.gemm_proj_rope_mxfp8_forward(*tensors)
    for g, w in zip(got, want, strict=True):
        assert g.view(torch.uint8).numpy().tobytes() == w.tobytes()
