"""The operations in float64 on dense arrays, and arrays laid out as they take them. Shares nothing with the package."""

import ml_dtypes
import numpy as np

BF16 = ml_dtypes.bfloat16
TYPES = {"fp32": np.dtype(np.float32), "fp16": np.dtype(np.float16), "bf16": np.dtype(BF16)}


def product(a, b):
    """(M, K, L) and (N, K, L) to (M, N, L)."""
    return np.einsum("mkl,nkl->mnl", a.astype(np.float64), b.astype(np.float64))


def swiglu(a, b, alpha):
    ab12 = alpha * product(a, b)
    m, n, batch = ab12.shape
    runs = ab12.reshape(m, n // 64, 2, 32, batch)
    up, gate = runs[:, :, 0], runs[:, :, 1]
    with np.errstate(over="ignore"):
        c = up * gate / (1 + np.exp(-gate))
    return ab12, c.reshape(m, n // 2, batch)


def amax(a, b):
    c = product(a, b)
    return c, np.abs(c).max(initial=-np.inf)


def srelu(a, b, prob, alpha):
    c = alpha * product(a, b)
    return c, prob.astype(np.float64) * np.maximum(c, 0) ** 2


def dsrelu(a, b, dy, prob, alpha):
    x, dy = alpha * product(a, b), dy.astype(np.float64)
    return 2 * np.maximum(x, 0) * dy * prob.astype(np.float64), (np.maximum(x, 0) ** 2 * dy).sum(1, keepdims=True)


def laid(array, major):
    """A copy with axis 1 (``"k"``, ``"n"``) or axis 0 (``"m"``) contiguous, batch outermost."""
    order = (2, 0, 1) if major in "kn" else (2, 1, 0)
    dense = np.ascontiguousarray(array.transpose(order))
    return dense.transpose(np.argsort(order))


def matrix(shape, dtype, major="k", seed=0, low=-3, high=4):
    """Small integers: sums of products are exact in every order."""
    return laid(np.random.default_rng(seed).integers(low, high, shape).astype(np.float32).astype(dtype), major)


def poisoned(shape, dtype, major="n"):
    """An output full of a pattern that no result has."""
    array = laid(np.zeros(shape, dtype), major)
    array.view(np.uint8 if array.itemsize == 1 else f"u{array.itemsize}")[...] = 0xA5A5A5A5 >> (32 - 8 * array.itemsize)
    return array


def same(got, want, dtype):
    """Equal to the exact value rounded once."""
    with np.errstate(over="ignore"):  # fp16: infinity
        rounded = want.astype(np.float32).astype(dtype)
    np.testing.assert_array_equal(np.asarray(got, np.float64), rounded.astype(np.float64))


def close(got, want, dtype, units=4):
    """Within so many units in the last place of the exact value, of fp32 or of the type if that is coarser."""
    step = np.finfo(dtype).eps if np.dtype(dtype) != BF16 else 2.0**-7
    bound = units * 2.0**-23 * np.abs(want) + step * np.abs(want) + 1e-6
    worst = np.max(np.abs(np.asarray(got, np.float64) - want) - bound, initial=-1)
    assert worst <= 0, worst
