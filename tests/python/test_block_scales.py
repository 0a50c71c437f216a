"""Matrices with scales of blocks and quantised outputs from Python: MXFP8, NVFP4, MXFP4, against loops in float64."""

import ctypes
import importlib
import sys

import numpy as np
import pytest
import verglas
from support import lacking
from verglas import data_type, scale_layout, tensor_reordering

ml_dtypes = pytest.importorskip("ml_dtypes")

E4M3, E5M2, E8M0 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.float8_e8m0fnu
F8 = tensor_reordering.F8_128x4


def powers(rng, shape):
    """Powers of two: every order of a sum of small integers times these is exact."""
    return np.exp2(rng.integers(-3, 4, shape)).astype(E8M0)


def spread(scales, block, k):
    return np.repeat(scales.astype(np.float64), block, -1)[..., :k]


def declared(graph, name, array, dtype=None, **options):
    stride = [s // array.itemsize for s in array.strides]
    return graph.tensor(name=name, dim=array.shape, stride=stride, data_type=dtype or array.dtype, **options)


@pytest.mark.parametrize(("interleaved", "poison"), [(False, 0), (True, 0x00), (True, 0x7F), (True, 0xFF)])
@pytest.mark.parametrize(("a_type", "b_type"), [(E4M3, E4M3), (E5M2, E4M3), (E4M3, E5M2)])
def test_mxfp8_product_with_tails_and_poisoned_padding(interleaved, poison, a_type, b_type):
    m, n, k, block = 131, 9, 77, 32
    rng = np.random.default_rng(1)
    a, b = rng.integers(-3, 4, (m, k)).astype(a_type), rng.integers(-3, 4, (n, k)).astype(b_type)
    columns = -(-k // block)
    sa, sb = powers(rng, (m, columns)), powers(rng, (n, columns))
    graph = verglas.Graph()
    A = declared(graph, "A", a)
    B = declared(graph, "B", b.T)
    if interleaved:
        blobs = []
        for s in (sa, sb):
            blob = scale_layout.interleave(s.view(np.uint8))
            inside = scale_layout.interleave(np.ones(s.shape, np.uint8))
            blobs.append(np.where(inside == 1, blob, poison).astype(np.uint8))
        SA = graph.tensor(name="SA", dim=blobs[0].shape, stride=[blobs[0].shape[1], 1], data_type=E8M0, reordering_type=F8)
        # As cuDNN's scripts declare them: the logical extents in the order of B.
        SB = graph.tensor(name="SB", dim=[columns, n], stride=[1, columns], data_type=E8M0).set_reordering_type(F8)
    else:
        blobs = [sa, sb.T]
        SA, SB = declared(graph, "SA", sa), declared(graph, "SB", sb.T)
    x = graph.block_scale_dequantize(A, SA, block_size=[1, block])
    y = graph.block_scale_dequantize(B, SB, block_size=[block, 1])
    C = graph.matmul(x, y).set_output(True).set_data_type(data_type.FLOAT)
    graph.build()
    out = np.full((m, n), np.nan, np.float32)
    graph.execute({A: a, B: b.T, SA: blobs[0], SB: blobs[1], C: out})
    want = (a.astype(np.float64) * spread(sa, block, k)) @ (b.astype(np.float64) * spread(sb, block, k)).T
    assert np.array_equal(out, want.astype(np.float32))


@pytest.mark.parametrize("flat", [False, True])
def test_nvfp4_beside_bf16_with_a_global_scale(flat):
    m, n, k, block = 7, 32, 50, 16
    rng = np.random.default_rng(2)
    a = rng.integers(-4, 5, (m, k)).astype(ml_dtypes.bfloat16)
    codes = rng.choice([0, 0.5, 1, 1.5, 2, 3, 4, 6, -1, -3], (n, k))
    b = scale_layout.pack_fp4(codes)  # (n, k / 2)
    columns = -(-k // block)
    sb = rng.choice([0.5, 1, 1.5, 2, 4], (n, columns)).astype(E4M3)
    graph = verglas.Graph(io_data_type=data_type.FLOAT)
    A = declared(graph, "A", a)
    B = graph.tensor(name="B", dim=[k, n], stride=[1, k], data_type="float4_e2m1fn_x2")
    SB = graph.tensor(name="SB", dim=[512], stride=[1], data_type=E4M3, reordering_type=F8)
    alpha = graph.tensor(name="alpha", dim=[1, 1], stride=[1, 1], is_pass_by_value=True)
    C = graph.mul(graph.matmul(A, graph.block_scale_dequantize(B, SB, block_size=block)), alpha).set_output(True)
    graph.build()
    out = np.full((m, n), np.nan, np.float32)
    blob = scale_layout.interleave(sb.view(np.uint8))
    graph.execute({A: a, B: b.reshape(-1) if flat else b.T, SB: blob.reshape(-1) if flat else blob, alpha: 0.25, C: out})
    want = a.astype(np.float64) @ (codes * spread(sb, block, k)).T * 0.25
    assert np.array_equal(out, want.astype(np.float32))
    # The other labelling of the same memory, (N, K / 2).
    again = np.full((m, n), np.nan, np.float32)
    graph.execute({A: a, B: b, SB: blob, alpha: 0.25, C: again})
    assert np.array_equal(out, again)


@pytest.mark.parametrize("axis", [None, 1])
@pytest.mark.parametrize(
    ("data", "scale", "block"), [(E4M3, E8M0, 32), (E5M2, E8M0, 32), ("fp4_e2m1", E4M3, 16), ("fp4_e2m1", E8M0, 32)]
)
def test_quantised_outputs_beside_dense_ones_and_amax(data, scale, block, axis):
    m, n, k = 64, 96, 5
    rng = np.random.default_rng(3)
    a, b = rng.standard_normal((1, m, k)).astype(np.float32), rng.standard_normal((1, k, n)).astype(np.float32)
    a[0, :32] = 0  # blocks of zeros
    a[0, 40] *= 1e-30
    graph = verglas.Graph(io_data_type=data_type.FLOAT)
    A, B = declared(graph, "A", a), declared(graph, "B", b)
    Y = graph.relu(graph.matmul(A, B)).set_output(True)
    Q, S = graph.block_scale_quantize(Y, block, axis=axis)
    Q.set_data_type(data).set_output(True)
    S.set_data_type(scale).set_output(True).set_reordering_type(F8)
    most = graph.reduction(Y, verglas.reduction_mode.AMAX).set_dim([1, 1, 1]).set_output(True)
    graph.build()
    rows, columns = (m, n // block) if axis is None else (n, m // block)
    fp4 = data == "fp4_e2m1"
    y, amax = np.empty((1, m, n), np.float32), np.empty((1, 1, 1), np.float32)
    q = np.empty((1, m, n // 2), np.uint8) if fp4 else np.empty((1, m, n), data)
    s = np.full(scale_layout.padded_shape(rows, columns), 0xFF, np.uint8)
    graph.execute({A: a, B: b, Y: y, Q: q, S: s, most: amax})
    assert amax[0, 0, 0] == y.max()
    limit = np.float32(6 if fp4 else ml_dtypes.finfo(data).max)
    blocks = (y[0] if axis is None else y[0].T).reshape(rows, columns, block)
    wanted = np.abs(blocks).max(-1) / limit
    if scale is E8M0:
        with np.errstate(divide="ignore"):
            code = np.clip(np.ceil(np.log2(wanted.astype(np.float64))) + 127, 0, 254).astype(np.uint8)
    else:
        code = np.minimum(wanted, 448).astype(E4M3).view(np.uint8)
    got = scale_layout.plain(s, rows, columns)
    assert np.array_equal(got, code)
    assert np.array_equal(scale_layout.interleave(got), s), "padding is zero"
    held = code.view(scale).astype(np.float32)
    with np.errstate(divide="ignore"):
        inverse = np.where(held == 0, np.float32(0), np.float32(1) / held)
    scaled = np.clip(blocks * inverse[..., None], -limit, limit).reshape(rows, -1)
    scaled = scaled if axis is None else scaled.T
    if fp4:
        assert np.array_equal(q[0], scale_layout.pack_fp4(scaled))
    else:
        assert np.array_equal(q[0].view(np.uint8), scaled.astype(data).view(np.uint8))


def test_a_quantised_result_enters_the_next_product():
    m, n, k = 32, 64, 64
    rng = np.random.default_rng(4)
    a, b, c = (rng.integers(-3, 4, s).astype(np.float32) for s in [(m, k), (k, n), (n, 8)])
    first = verglas.Graph(io_data_type=data_type.FLOAT)
    A, B = declared(first, "A", a), declared(first, "B", b)
    Q, S = first.block_scale_quantize(first.matmul(A, B), 32)
    Q.set_data_type(E4M3).set_output(True)
    S.set_data_type(E8M0).set_output(True).set_reordering_type(F8)
    first.build()
    q, s = np.empty((m, n), E4M3), np.empty(scale_layout.padded_shape(m, n // 32), E8M0)
    first.execute({A: a, B: b, Q: q, S: s})
    second = verglas.Graph(io_data_type=data_type.FLOAT)
    X, T, C = declared(second, "X", q), declared(second, "T", s, reordering_type=F8), declared(second, "C", c)
    Y = second.matmul(second.block_scale_dequantize(X, T, [1, 32]), C).set_output(True)
    second.build()
    y = np.empty((m, 8), np.float32)
    second.execute({X: q, T: s, C: c, Y: y})
    held = q.astype(np.float64) * spread(scale_layout.plain(s.view(np.uint8), m, n // 32).view(E8M0), 32, n)
    assert np.array_equal(y, (held @ c).astype(np.float32))


def test_pack_fp4_is_what_ml_dtypes_rounds_to():
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    middles = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0], np.float32)
    v = np.concatenate([every[np.isfinite(every)], middles, np.nextafter(middles, 9), np.nextafter(middles, -9), -middles])
    v = v[: len(v) // 2 * 2]
    codes = v.astype(ml_dtypes.float4_e2m1fn).view(np.uint8)
    assert np.array_equal(scale_layout.pack_fp4(v), codes[0::2] | codes[1::2] << 4)
    back = scale_layout.unpack_fp4(np.arange(256, dtype=np.uint8)).reshape(256, 2)
    table = np.arange(16, dtype=np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float32)
    assert np.array_equal(back, np.stack([np.tile(table, 16), np.repeat(table, 16)], -1))


def test_what_is_refused_says_why():
    graph = verglas.Graph()
    A = graph.tensor(name="A", dim=[4, 64], stride=[64, 1], data_type=data_type.FP4_E2M1)
    SA = graph.tensor(name="SA", dim=[512], stride=[1], data_type=E8M0, reordering_type=F8)
    B = graph.tensor(name="B", dim=[64, 8], stride=[8, 1])
    C = graph.matmul(graph.block_scale_dequantize(A, SA, [1, 32]), B).set_output(True)
    graph.build()
    good = {A: np.zeros((4, 32), np.uint8), SA: np.zeros(512, np.uint8), B: np.zeros((64, 8), ml_dtypes.bfloat16)}
    out = np.zeros((4, 8), ml_dtypes.bfloat16)
    graph.execute({**good, C: out})
    for bad, words in [
        ({A: np.zeros((4, 64), ml_dtypes.float4_e2m1fn)}, "two elements a byte"),
        ({A: np.zeros((4, 33), np.uint8)}, r"K = 64 .* wanted 66|66"),
        ({SA: np.zeros(511, np.uint8)}, "call.scale_size.*511 bytes"),
        ({SA: np.zeros((512, 2), np.uint8)[:, 0]}, "call.scale_extent.*dense run"),
        ({SA: np.zeros(512, np.float32)}, "call.dtype"),
    ]:
        with pytest.raises(verglas.InvalidCallError, match=words):
            graph.execute({**good, **bad, C: out})


class Retyped:
    """An array of bytes whose DLPack type says that elements have four bits, `lanes` of them in a slot."""

    def __init__(self, values, lanes):
        self.values, self.lanes = values, lanes

    def __dlpack_device__(self):
        return self.values.__dlpack_device__()

    def __dlpack__(self, **options):
        capsule = self.values.__dlpack__()
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        at = pointer(capsule, b"dltensor") + 20  # behind the address, the device and the rank
        ctypes.memmove(at, bytes([17, 4]) + self.lanes.to_bytes(2, sys.byteorder), 4)
        return capsule


def test_fp4_by_dlpack_comes_in_whole_bytes():
    graph = verglas.Graph(io_data_type=data_type.FLOAT)
    A = graph.tensor(name="A", dim=[4, 64], stride=[64, 1], data_type=data_type.FP4_E2M1)
    SA = graph.tensor(name="SA", dim=[4, 2], stride=[2, 1], data_type=E8M0)
    B = graph.tensor(name="B", dim=[64, 8], stride=[8, 1])
    C = graph.matmul(graph.block_scale_dequantize(A, SA, [1, 32]), B).set_output(True)
    graph.build()
    rest = {SA: np.full((4, 2), 127, np.uint8), B: np.ones((64, 8), np.float32)}
    out = np.empty((4, 8), np.float32)
    pairs = np.full(4 * 32 + 1, 0x22, np.uint8)  # 1.0, twice a byte
    for first in (0, 1):  # from any byte on
        graph.execute({**rest, A: Retyped(pairs[first : first + 128].reshape(4, 32), 2), C: out})
        assert (out == 64).all()
    # Elements that are told apart may begin in the middle of a byte: a view of those is no operand.
    before = out.copy()
    with pytest.raises(verglas.InvalidCallError, match=r"call\.dtype.*float4_e2m1fn, elements told apart.*two elements a byte"):
        graph.execute({**rest, A: Retyped(np.full((4, 64), 0x22, np.uint8), 1), C: out})
    assert np.array_equal(out, before)


def test_plain_scales_have_one_for_each_block_and_the_type_of_the_description():
    graph = verglas.Graph(io_data_type=data_type.FLOAT)
    A = graph.tensor(name="A", dim=[4, 64], stride=[64, 1], data_type=data_type.FP8_E4M3)
    SA = graph.tensor(name="SA", dim=[4, 2], stride=[2, 1], data_type=E8M0)
    B = graph.tensor(name="B", dim=[64, 8], stride=[8, 1])
    C = graph.matmul(graph.block_scale_dequantize(A, SA, [1, 32]), B).set_output(True)
    graph.build()
    out = np.empty((4, 8), np.float32)
    good = {A: np.ones((4, 64), ml_dtypes.float8_e4m3fn), SA: np.full((4, 2), 127, np.uint8), B: np.ones((64, 8), np.float32)}
    graph.execute({**good, C: out})
    assert (out == 64).all()
    graph.execute({**good, SA: np.full((4, 4), 127, np.uint8)[:, ::2], C: out})  # need not be dense
    graph.execute({**good, SA: np.full(8, 127, np.uint8), C: out})  # a dense run of all of them
    for bad, words in [
        (np.full(7, 127, np.uint8), r"call\.scale_extent.*\(7\)"),
        (np.full((8, 1), 127, np.uint8), r"call\.scale_extent.*\(8, 1\).*\(4, 2\)"),
        (np.full((4, 1), 127, np.uint8), r"call\.scale_extent.*\(4, 1\).*\(4, 2\)"),
        (np.ones((4, 2), ml_dtypes.float8_e4m3fn), r"call\.dtype.*fp8_e8m0"),
    ]:
        with pytest.raises(verglas.InvalidCallError, match=words):
            graph.execute({**good, SA: bad, C: out})


@pytest.mark.parametrize(
    ("declared", "live"), [((32, 96), (64, 64)), ((32, 96), (64, 96)), ((96, 32), (96, 64)), ((64, 64), (32, 32))]
)
@pytest.mark.parametrize("axis", [None, 0])
@pytest.mark.parametrize("rank", [2, 3])
def test_scales_of_other_extents_where_one_of_them_was_1(declared, live, axis, rank):
    """One block is no broadcast axis."""
    graph = verglas.Graph(io_data_type=data_type.FLOAT)
    (m, n), k = declared, 32
    A, B = graph.tensor(name="A", dim=[m, k], stride=[k, 1], data_type=E4M3), graph.tensor(name="B", dim=[k, n], stride=[n, 1])
    SA = graph.tensor(name="SA", dim=[m, 1], stride=[1, 1], data_type=E8M0)
    product = graph.matmul(graph.block_scale_dequantize(A, SA, [1, 32]), B)
    Q, S = graph.block_scale_quantize(product, 32, axis)
    Q.set_output(True).set_data_type(E4M3)
    S.set_output(True).set_data_type(E8M0)
    graph.build()
    (m, n), k = live, 64
    q, s = np.zeros((m, n), E4M3), np.zeros((m, n // 32) if axis is None else (m // 32, n), E8M0)
    sa, b = np.full((m, 2), 128, np.uint8), np.ones((k, n), np.float32)
    whole = (lambda x: x) if rank == 2 else (lambda x: x[None])
    graph.execute([whole(x) for x in (np.ones((m, k), E4M3), b, sa, q, s)])
    held = q.astype(np.float64) * np.repeat(s.astype(np.float64), 32, 1 if axis is None else 0)
    assert (held == 128).all()


def test_fp4_in_bytes_that_lie_apart_is_refused():
    rng = np.random.default_rng(0)
    graph = verglas.Graph(io_data_type=data_type.FLOAT)
    A = graph.tensor(name="A", dim=[4, 64], stride=[64, 1], data_type=data_type.FP4_E2M1)
    B = graph.tensor(name="B", dim=[64, 8], stride=[1, 64], data_type=data_type.FP4_E2M1)
    SA = graph.tensor(name="SA", dim=[4, 2], stride=[2, 1], data_type=data_type.FP8_E8M0)
    SB = graph.tensor(name="SB", dim=[2, 8], stride=[1, 2], data_type=data_type.FP8_E8M0)
    C = graph.matmul(graph.block_scale_dequantize(A, SA, [1, 32]), graph.block_scale_dequantize(B, SB, [32, 1])).set_output(True)
    graph.build()
    a, b = (rng.integers(0, 256, (rows, 64)).astype(np.uint8) for rows in (4, 8))
    sa, sb, c = np.full((4, 2), 127, np.uint8), np.full((2, 8), 127, np.uint8), np.full((4, 8), 7, np.float32)
    dense_a, dense_b = a[:, :32], b[:, :32].T
    graph.execute({A: dense_a, B: dense_b, SA: sa, SB: sb, C: c})
    np.testing.assert_array_equal(c, scale_layout.unpack_fp4(dense_a) @ scale_layout.unpack_fp4(b[:, :32]).T)
    c[:] = 7
    for pack in ({A: a[:, ::2], B: dense_b}, {A: dense_a, B: b[:, ::2].T}):
        with pytest.raises(verglas.InvalidCallError, match=r"call\.(packed|extent)"):
            graph.execute({**pack, SA: sa, SB: sb, C: c})
    assert (c == 7).all()


@pytest.mark.parametrize("kernel_order", [False, True])
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("m", [1, 3])
@pytest.mark.parametrize("k", [2, 4])
def test_rows_of_one_byte_of_fp4(k, m, n, kernel_order):
    """The axis beside a packed one of one byte has stride 1 too."""
    rng = np.random.default_rng(5)
    a, b = (rng.choice([0, 0.5, -1, 3, -6], (1, rows, k)) for rows in (m, n))
    sa, sb = powers(rng, (1, m, 1)), powers(rng, (1, n, 1))
    graph = verglas.Graph(io_data_type="fp32")
    A = graph.tensor(name="A", dim=[1, m, k], stride=[m * k, k, 1], data_type="float4_e2m1fn_x2")
    B = graph.tensor(name="B", dim=[1, k, n], stride=[n * k, 1, k], data_type="float4_e2m1fn_x2")
    SA, SB = declared(graph, "SA", sa), declared(graph, "SB", sb.transpose(0, 2, 1))
    C = graph.matmul(graph.block_scale_dequantize(A, SA, [1, 32]), graph.block_scale_dequantize(B, SB, [32, 1]))
    C.set_output(True)
    graph.build()
    bytes_of_b = scale_layout.pack_fp4(b)  # (1, n, k / 2)
    out = np.full((1, m, n), np.nan, np.float32)
    pack = {A: scale_layout.pack_fp4(a), B: bytes_of_b if kernel_order else bytes_of_b.transpose(0, 2, 1)}
    graph.execute({**pack, SA: sa, SB: sb.transpose(0, 2, 1), C: out})
    assert np.array_equal(out, (a * sa.astype(float)) @ (b * sb.astype(float)).transpose(0, 2, 1))


def test_rows_of_one_byte_of_a_quantised_output():
    graph = verglas.Graph(io_data_type="fp32")
    a, b = np.arange(-16, 16, dtype=np.float32).reshape(1, 32, 1), np.array([[[1, -0.5]]], np.float32)
    data, scale = graph.block_scale_quantize(graph.matmul(declared(graph, "A", a), declared(graph, "B", b)), 32, axis=1)
    data.set_output(True).set_data_type("fp4_e2m1")
    scale.set_output(True).set_data_type(E8M0)
    graph.build()
    codes, scales = np.zeros((1, 32, 1), np.uint8), np.zeros((1, 1, 2), E8M0)
    graph.execute([a, b, codes, scales])
    assert scales.astype(np.float32).tolist() == [[[4, 2]]]
    assert np.array_equal(codes, scale_layout.pack_fp4((a @ b) / scales.astype(np.float32)))


def test_scale_layout_of_batches():
    scales = np.arange(3 * 130 * 5, dtype=np.int64).reshape(3, 130, 5) % 251
    blob = scale_layout.interleave(scales.astype(np.uint8))
    assert blob.shape == (3, 256, 8)
    flat = blob.reshape(-1)
    for batch, row, column in [(0, 0, 0), (1, 129, 4), (2, 33, 3), (2, 100, 1)]:
        at = ((batch * 2 + row // 128) * 2 + column // 4) * 512 + row % 32 * 16 + row % 128 // 32 * 4 + column % 4
        assert flat[at] == scales[batch, row, column]
    assert np.array_equal(scale_layout.plain(flat, 130, 5, 3), scales)


def test_scale_layout_of_every_form_of_atoms():
    rng = np.random.default_rng(0)
    for batches, rows, columns in [(1, 1, 1), (2, 130, 5), (4, 128, 4), (32, 33, 17), (0, 5, 5), (3, 0, 5), (3, 5, 0)]:
        scales = rng.integers(0, 256, (batches, rows, columns)).astype(np.uint8)
        blob = scale_layout.interleave(scales)
        in_order = blob.reshape(batches, blob.shape[1] // 128, blob.shape[2] // 4, 32, 4, 4)
        for form in (blob, blob.reshape(-1), in_order, in_order.transpose(3, 4, 1, 5, 2, 0)):
            assert np.array_equal(scale_layout.plain(form, rows, columns, batches), scales), form.shape


def test_scales_of_a_quantised_output_in_plain_order():
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-2, 3, (rows, 64, 2)).astype(E4M3) for rows in (130, 160))
    a, b = (np.ascontiguousarray(x.transpose(2, 0, 1)).transpose(1, 2, 0) for x in (a, b))
    sfa, sfb = (scale_layout.interleave(np.full((2, rows, 2), 127, np.uint8)) for rows in (130, 160))
    sfa, sfb = (x.reshape(2, x.shape[1] // 128, 1, 32, 4, 4) for x in (sfa, sfb))
    norm = np.ones(1, np.float32)
    r = verglas.gemm_srelu_forward(a, b, sfa, sfb, d_dtype=E4M3, c_dtype="fp32", norm_const_tensor=norm, sf_vec_size=32)
    scales = scale_layout.plain(r.sfd_tensor.view(np.uint8), 130, 5, 2)
    want = np.abs(np.maximum(r.c_tensor, 0) ** 2).reshape(130, 5, 32, 2).max(2).transpose(2, 0, 1) / 448
    with np.errstate(divide="ignore"):
        exponent = np.where(want > 0, np.ceil(np.log2(want)) + 127, 0)
    assert np.array_equal(scales, exponent)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: scale_layout.interleave(np.zeros(5, np.uint8)), r"shape \(5,\), wanted two axes"),
        (lambda: scale_layout.interleave(np.zeros((4, 4), np.float32)), "elements of 4 bytes, wanted elements of one"),
        (lambda: scale_layout.interleave([[1, 2]]), "got list"),
        (lambda: scale_layout.plain(np.zeros(512, np.float16), 4, 4), "elements of 2 bytes"),
        (lambda: scale_layout.plain(np.zeros(511, np.uint8), 4, 4), "got 511 bytes, wanted 1 times 128 · 4"),
        (lambda: scale_layout.plain(np.zeros((2, 128, 4), np.uint8), 4, 4), "got 1024 bytes, wanted 1 times"),
        (lambda: scale_layout.plain(np.zeros((2, 128, 4), np.uint8), 4, 4, 3), "got 1024 bytes, wanted 3 times"),
        (lambda: scale_layout.plain(np.zeros(512, np.uint8), -1, 4), "-1 rows"),
        (lambda: scale_layout.pack_fp4(np.zeros(3)), "an even last extent"),
    ],
)
def test_what_is_no_layout_of_scales_is_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_torch_types_and_tensors():
    torch = lazily("torch")
    a = torch.ones(4, 64).to(torch.float8_e4m3fn)
    b = torch.ones(8, 32, dtype=torch.uint8).view(torch.float4_e2m1fn_x2) if hasattr(torch, "float4_e2m1fn_x2") else None
    if b is None:
        lacking("torch", "this torch has no float4_e2m1fn_x2")
    graph = verglas.Graph(io_data_type=data_type.FLOAT)
    A, B = graph.tensor_like(a, name="A"), graph.tensor(name="B", dim=[64, 8], stride=[1, 64], data_type=torch.float4_e2m1fn_x2)
    scales = scale_layout.interleave(torch.full((8, 2), 127, dtype=torch.uint8))
    SB = graph.tensor(name="SB", dim=[128, 4], stride=[4, 1], data_type=torch.float8_e8m0fnu, reordering_type=F8)
    C = graph.matmul(A, graph.block_scale_dequantize(B, SB, [32, 1])).set_output(True)
    graph.build()
    out = torch.empty(4, 8)
    graph.execute({A: a, B: b, SB: scales.view(torch.float8_e8m0fnu), C: out})
    assert (out == 64 * 0.25).all()  # the byte 0x01 is 0.5 and 0


def lazily(module):
    try:
        return importlib.import_module(module)
    except ImportError:
        lacking(module, f"{module} is not installed")
