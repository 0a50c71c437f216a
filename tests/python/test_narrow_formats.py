"""The narrow number formats as a graph stores and reads them, against ml_dtypes: every byte, and every fp16 and bf16 pattern."""

import numpy as np
import pytest
import verglas
from verglas import data_type

ml_dtypes = pytest.importorskip("ml_dtypes")

E4M3, E5M2, E8M0 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.float8_e8m0fnu


def stored(values: np.ndarray, dtype) -> np.ndarray:
    """The values as a graph stores them in another type: chosen by a mask, so that no arithmetic touches them."""
    values = values.reshape(1, -1)
    n = values.shape[1]
    graph = verglas.Graph(io_data_type=data_type.FLOAT)
    A = graph.tensor(name="A", dim=[1, 1], stride=[1, 1])
    B = graph.tensor(name="B", dim=[1, n], stride=[n, 1])
    X = graph.tensor(name="X", dim=[1, n], stride=[n, 1], data_type=values.dtype)
    mask = graph.scalar(0.0)
    Y = graph.binary_select(graph.matmul(A, B), X, mask).set_output(True).set_data_type(np.dtype(dtype))
    graph.build()
    out = np.empty((1, n), dtype)
    graph.execute({A: np.zeros((1, 1), np.float32), B: np.zeros((1, n), np.float32), X: values, Y: out})
    return out[0]


def bits(a: np.ndarray) -> np.ndarray:
    return a.view({1: np.uint8, 2: np.uint16, 4: np.uint32}[a.dtype.itemsize])


def numbers() -> np.ndarray:
    """Every fp16 and bf16 pattern, and every number half-way between two codes with its neighbours."""
    everything = np.arange(1 << 16, dtype=np.uint16)
    found = [everything.view(np.float16).astype(np.float32), everything.view(ml_dtypes.bfloat16).astype(np.float32)]
    for dtype in (E4M3, E5M2):
        codes = np.arange(256, dtype=np.uint8).view(dtype).astype(np.float32)
        codes = np.sort(codes[np.isfinite(codes)])
        middle = (codes[1:] + codes[:-1]) / 2
        found += [middle, np.nextafter(middle, np.float32(np.inf)), np.nextafter(middle, np.float32(-np.inf))]
    return np.concatenate(found)


@pytest.mark.parametrize(("dtype", "largest"), [(E4M3, 448.0), (E5M2, 57344.0)])
def test_fp8_is_stored_as_ml_dtypes_rounds_it_and_saturates(dtype, largest):
    v = numbers()
    got = stored(v, dtype)
    # ml_dtypes turns what is out of range into NaN or infinity; everything else is its own rounding.
    inside = np.abs(v) <= largest
    assert np.array_equal(bits(got)[inside], bits(v[inside].astype(dtype)))
    beyond = ~inside & ~np.isnan(v)
    assert beyond.sum() > 1000
    assert np.array_equal(got[beyond].astype(np.float32), np.copysign(np.float32(largest), v[beyond]))
    assert np.isnan(got[np.isnan(v)].astype(np.float32)).all()


def test_e8m0_is_stored_as_the_next_power_of_two():
    v = numbers()
    got = stored(v, E8M0)
    number = ~np.isnan(v)
    with np.errstate(divide="ignore"):
        exponent = np.ceil(np.log2(np.where(number, np.maximum(v, 2.0**-127), 1.0).astype(np.float64)))
    assert np.array_equal(bits(got)[number], np.clip(exponent + 127, 0, 254)[number].astype(np.uint8))
    assert (bits(got)[~number] == 255).all()


@pytest.mark.parametrize("dtype", [E4M3, E5M2, E8M0])
def test_every_byte_reads_as_in_ml_dtypes(dtype):
    codes = np.arange(256, dtype=np.uint8).view(dtype)
    got, want = stored(codes, np.float32), codes.astype(np.float32)
    assert np.array_equal(np.isnan(got), np.isnan(want))
    assert np.array_equal(bits(got)[~np.isnan(want)], bits(want)[~np.isnan(want)])


@pytest.mark.parametrize("a_type", [E4M3, E5M2])
@pytest.mark.parametrize("b_type", [E4M3, E5M2])
@pytest.mark.parametrize("transposed", [False, True])
def test_fp8_product_with_scales_of_tensor_row_and_column(a_type, b_type, transposed):
    m, n, k = 5, 7, 39
    rng = np.random.default_rng(0)
    a = rng.integers(-4, 5, (m, k)).astype(a_type)
    b = rng.integers(-4, 5, (k, n)).astype(b_type)
    if transposed:
        a, b = np.asfortranarray(a), np.asfortranarray(b)
    row = np.exp2(rng.integers(-2, 3, (m, 1))).astype(np.float32)
    column = np.exp2(rng.integers(-2, 3, (1, n))).astype(np.float32)
    graph = verglas.Graph(io_data_type=data_type.FLOAT)
    A, B, R, C = (graph.tensor_like(x, name=name) for x, name in zip((a, b, row, column), "ABRC", strict=True))
    S = graph.tensor(name="S", dim=[1, 1], stride=[1, 1], is_pass_by_value=True)
    Y = graph.mul(graph.mul(graph.mul(graph.matmul(A, B), R), C), S).set_output(True).set_data_type(np.dtype(a_type))
    graph.build()
    out = np.empty((m, n), a_type)
    # The bytes may come as uint8 too: what lies in memory is what the graph declares.
    graph.execute({A: a.view(np.uint8), B: b, R: row, C: column, S: 0.5, Y: out})
    want = a.astype(np.float64) @ b.astype(np.float64) * row * column * 0.5
    largest = float(ml_dtypes.finfo(a_type).max)
    assert np.array_equal(out.astype(np.float32), np.clip(want, -largest, largest).astype(a_type).astype(np.float32))
