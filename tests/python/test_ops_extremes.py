"""Operations where NaN, infinities and zeros meet: what their formulas say, and nothing beyond the row or block of it."""

import ml_dtypes
import numpy as np
import pytest
from ops_oracle import matrix, srelu
from test_ops_proj_rope import inputs
from test_ops_scaled import E4M3, E8M0, operand, physical, plain
from verglas import ops

F32 = np.float32
NAN, INF = np.nan, np.inf


def rows(values, k=8):
    """A whose products with ones are these values, one a row."""
    a = np.zeros((len(values), k, 1), F32)
    a[:, 3, 0] = values
    return a


def ones(n, k=8):
    """B; zeros times infinity would be NaN, so that each row has one element."""
    b = np.zeros((n, k, 1), F32)
    b[:, 3, 0] = 1
    return b


VALUES = [2.0, -2.0, 0.0, NAN, INF, -INF, 1e30, -1e30]


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_squared_relu(dtype):
    a, b = rows(VALUES), ones(6)
    a[np.isinf(a)] = 0  # infinity comes in by alpha and prob: 0 · ∞ in a product would hide it
    prob = np.ones((len(VALUES), 1, 1), F32)
    prob[0], prob[1], prob[2] = INF, NAN, -INF
    r = ops.gemm_srelu_forward(a, b, prob_tensor=prob, c_dtype="fp32", d_dtype=dtype)
    c = np.broadcast_to(a[:, 3:4], (len(VALUES), 6, 1)).astype(np.float64)
    with np.errstate(all="ignore"):
        want = (prob * np.maximum(c, 0) ** 2).astype(F32)
    np.testing.assert_array_equal(r.c_tensor, c.astype(F32))
    np.testing.assert_array_equal(
        np.asarray(r.d_tensor, F32), want.astype(ml_dtypes.bfloat16 if dtype == "bf16" else F32).astype(F32)
    )
    assert np.isnan(want[1]).all() and np.isnan(want[2]).all() and np.isnan(want[3]).all() and np.isinf(want[0]).all()


def test_its_gradient():
    a, b = rows([2.0, -2.0, NAN, 3.0, 3.0, 1e20]), ones(4)
    dy = np.ones((6, 4, 1), F32)
    dy[3, 1], dy[4, 2], dy[1, 0] = INF, NAN, INF
    prob = np.full((6, 1, 1), 0.5, F32)
    r = ops.gemm_srelu_backward(a, b, dy, prob_tensor=prob, d_dtype="fp32")
    x = np.maximum(np.broadcast_to(a[:, 3:4], dy.shape), 0).astype(F32)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(r.d_tensor, 2 * x * (dy * prob))
        np.testing.assert_array_equal(r.dprob_tensor, (x * x * dy).sum(1, keepdims=True))
    assert np.isnan(r.dprob_tensor[[1, 2, 4]]).all(), "0 times infinity, and NaN"


def test_amax_of_infinities_and_of_nan():
    b = np.ones((5, 1, 1), F32)
    for values, want in ([VALUES, NAN], [[1.0, -INF], INF], [[-3.0, 2.0], 3.0]):
        got = ops.gemm_amax_forward(np.array(values, F32).reshape(-1, 1, 1), b).amax_tensor.item()
        assert np.array_equal(got, want, equal_nan=True)
    c = np.zeros((1, 5, 1), F32)
    d, amax = np.zeros((1, 5, 1), F32), np.zeros(1, F32)
    op = ops.GemmSrelu(rows([NAN]), ones(5), c, d, sample_amax=amax)
    op(rows([NAN]), ones(5), c, d, amax_tensor=amax)
    assert np.isnan(amax.item())


def test_nan_stays_in_its_block_of_a_quantised_d():
    form, m, n = (E4M3, E8M0, 32), 40, 96
    a, sfa, _ = operand(m, 64, 1, form, 1)
    b, sfb, _ = operand(n, 64, 1, form, 2)
    prob, factor = matrix((m, 1, 1), F32, "n", 5, 1), np.ones(1, F32)
    want = ops.gemm_srelu_forward(a, b, sfa, sfb, prob, d_dtype=E4M3, norm_const_tensor=factor, sf_vec_size=32)
    poisoned = b.copy(order="K")
    poisoned[40, 5] = NAN  # column 40: the second block of every row
    got = ops.gemm_srelu_forward(a, poisoned, sfa, sfb, prob, d_dtype=E4M3, norm_const_tensor=factor, sf_vec_size=32)
    scales, before = (plain(r.sfd_tensor, m, n // 32).view(np.uint8) for r in (got, want))
    decoded = got.d_tensor.astype(F32) * np.repeat(scales.view(E8M0).astype(F32), 32, 1)
    assert np.isnan(decoded[:, 40]).all()
    rest = np.r_[0:32, 64:96]
    assert np.array_equal(got.d_tensor[:, rest].view(np.uint8), want.d_tensor[:, rest].view(np.uint8))
    assert np.array_equal(scales[:, [0, 2]], before[:, [0, 2]])
    assert physical(np.asarray(got.sfd_tensor)).shape == physical(np.asarray(want.sfd_tensor)).shape


def test_the_sign_of_an_e4m3_scale_means_nothing():
    form = ("fp4", E4M3, 16)
    a, sfa, _ = operand(9, 64, 1, form, 1)
    b, sfb, _ = operand(8, 64, 1, form, 2)
    signed = (sfa.view(np.uint8) | 0x80).view(E4M3)
    plain_, odd = (ops.gemm_amax_forward(a, b, s, sfb, sf_vec_size=16) for s in (sfa, signed))
    assert np.array_equal(plain_.c_tensor, odd.c_tensor)


def test_nan_of_a_token_stays_in_its_blocks_of_the_projection():
    passed, _, _ = inputs(96, 64, 2, False)
    want = ops.gemm_proj_rope_mxfp8_forward(*passed)
    x = passed[0].copy()
    x[40, 7] = NAN
    got = ops.gemm_proj_rope_mxfp8_forward(x, *passed[1:])
    others = np.r_[0:40, 41:96]
    for name in ("out_fp8_row", "out_scales_row"):
        assert np.array_equal(got[name][others].view(np.uint8), want[name][others].view(np.uint8))
    assert (got.out_scales_row[40] == 0xFF).all() or np.isnan(got.out_fp8_row[40].astype(F32)).all()
    outside = np.r_[0:32, 64:96]  # blocks of 32 tokens
    assert np.array_equal(got.out_fp8_col[outside].view(np.uint8), want.out_fp8_col[outside].view(np.uint8))
    assert np.array_equal(got.out_scales_col[[0, 2]], want.out_scales_col[[0, 2]])


def test_the_oracle_agrees_on_ordinary_rows():
    a, b = matrix((5, 8, 1), F32, seed=1), matrix((6, 8, 1), F32, seed=2)
    prob = matrix((5, 1, 1), F32, "n", 3)
    r = ops.gemm_srelu_forward(a, b, prob_tensor=prob, c_dtype="fp32", d_dtype="fp32")
    c, d = srelu(a, b, prob, 1.0)
    assert np.array_equal(r.c_tensor, c) and np.array_equal(r.d_tensor, d)
