"""Graphs in the words of cuDNN's scripts (test_matmul_bias_relu and its kind) against float64 arithmetic in NumPy."""

import math

import ml_dtypes
import numpy as np
import pytest
import verglas
from support import BF16, Output, declare, integers, strided

data_type = verglas.data_type


def through(values, *dtypes):
    """float64 values after being rounded to each type in turn."""
    for dtype in dtypes:
        values = values.astype(np.float32).astype(dtype).astype(np.float64)
    return values


def product(a, b):
    return a.astype(np.float64) @ b.astype(np.float64)


@pytest.mark.parametrize("kind", [BF16, np.float16, np.float32])
@pytest.mark.parametrize("batch,m,n,k", [(1, 16, 32, 64), (3, 5, 7, 9), (2, 1, 65, 33)])
def test_matmul_bias_relu(kind, batch, m, n, k):
    a, b, bias = integers((batch, m, k), 1, kind), integers((batch, k, n), 2, kind), integers((1, 1, n), 3, kind)
    out = Output((batch, m, n), kind)

    graph = verglas.Graph(io_data_type=kind, intermediate_data_type=data_type.FLOAT, compute_data_type=data_type.FLOAT)
    A = graph.tensor(name="A", dim=a.shape, stride=[m * k, k, 1], data_type=kind)
    B = graph.tensor(name="B", dim=b.shape, stride=[k * n, n, 1], data_type=kind)
    C = graph.tensor(name="bias", dim=bias.shape, stride=[n, n, 1], data_type=kind)
    response = graph.matmul(name="matmul", A=A, B=B)
    response = graph.bias(name="bias", input=response, bias=C)
    response = graph.relu(name="relu", input=response)
    response.set_output(True).set_data_type(kind)
    graph.validate()
    graph.build_operation_graph()
    graph.create_execution_plans([verglas.heur_mode.A, verglas.heur_mode.FALLBACK])
    graph.check_support()
    graph.build_plans()
    workspace = np.empty(max(graph.get_workspace_size(), 1), np.uint8)
    graph.execute({A: a, B: b, C: bias, response: out.array}, workspace)

    exact = through(np.maximum(product(a, b) + bias.astype(np.float64), 0), kind)
    assert (out.array.astype(np.float64) == exact).all()
    assert out.gaps_untouched()


@pytest.mark.parametrize("wide", [BF16, np.float16])
def test_int8_times_a_wider_type_is_cast_before_the_product(wide):
    """The mixed precision of cuDNN's script: A is int8, cast by identity to the type of B."""
    a, b, bias = integers((2, 24, 40), 1, np.int8, -9, 10), integers((2, 40, 56), 2, wide), integers((1, 1, 56), 3, wide)
    out = Output((2, 24, 56), wide)
    graph = verglas.Graph(io_data_type=wide, intermediate_data_type="float32", compute_data_type="float32")
    A, B, C = declare(graph, "A", a), declare(graph, "B", b), declare(graph, "bias", bias)
    cast = graph.identity(input=A, compute_data_type=data_type.FLOAT).set_data_type(wide)
    response = graph.gelu(graph.bias(graph.matmul(cast, B), C))
    response.set_output(True).set_data_type(wide)
    graph.execute({A: a, B: b, C: bias, response: out.array})

    x = product(a, b) + bias.astype(np.float64)
    exact = x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))
    step = np.finfo(np.float16).eps if wide is np.float16 else ml_dtypes.finfo(BF16).eps
    assert (np.abs(out.array.astype(np.float64) - exact) <= np.abs(exact) * float(step) * 0.51 + 1e-6).all()


def test_int8_product_is_exact_in_int32():
    a, b = integers((1, 7, 4096), 1, np.int8, -128, 128), integers((1, 4096, 5), 2, np.int8, -128, 128)
    out = Output((1, 7, 5), np.int32)
    graph = verglas.Graph(io_data_type="int32", intermediate_data_type="int32", compute_data_type="int32")
    A, B = declare(graph, "A", a), declare(graph, "B", b)
    y = graph.matmul(A, B).set_output(True)
    graph.execute({A: a, B: b, y: out.array})
    assert (out.array == a.astype(np.int64) @ b.astype(np.int64)).all()


@pytest.mark.parametrize("a_batch,b_batch", [(3, 1), (1, 3), (3, 3)])
def test_a_batch_of_one_broadcasts(a_batch, b_batch):
    a, b = integers((a_batch, 6, 8), 1), integers((b_batch, 8, 10), 2)
    out = Output((3, 6, 10))
    graph = verglas.Graph(io_data_type="fp32")
    A, B = declare(graph, "A", a), declare(graph, "B", b)
    y = graph.matmul(A, B).set_output(True)
    graph.execute({A: a, B: b, y: out.array})
    assert (out.array == product(a, b)).all()


@pytest.mark.parametrize("a_major", ["K", "M"])
@pytest.mark.parametrize("b_major", ["K", "N"])
@pytest.mark.parametrize("y_major", ["N", "M"])
def test_strided_layouts(a_major, b_major, y_major):
    batch, m, n, k = 2, 9, 12, 7
    a = strided(integers((batch, m, k), 1), [200, 11, 1] if a_major == "K" else [200, 1, 13])
    b = strided(integers((batch, k, n), 2), [300, 1, 9] if b_major == "K" else [300, 15, 1])
    bias = strided(integers((1, m, 1), 3), [99, 2, 1])
    out = Output((batch, m, n), strides=[400, 17, 1] if y_major == "N" else [400, 1, 14])
    graph = verglas.Graph(io_data_type="fp32")
    A, B, C = declare(graph, "A", a), declare(graph, "B", b), declare(graph, "bias", bias)
    y = graph.bias(graph.matmul(A, B), C).set_output(True)
    y.set_stride([step // 4 for step in out.array.strides])
    graph.execute({A: a, B: b, C: bias, y: out.array})
    assert (out.array == product(a, b) + bias).all()
    assert out.gaps_untouched()


def test_rank_two_is_a_batch_of_one():
    a, b = integers((6, 8), 1), integers((8, 10), 2)
    out = Output((6, 10))
    graph = verglas.Graph(io_data_type="fp32")
    A, B = graph.tensor_like(a, name="A"), graph.tensor_like(b)
    graph.matmul(A, B).set_output(True)
    graph.execute([a, b, out.array])
    assert (out.array == product(a, b)).all()


def test_several_outputs_and_values_rounded_on_the_way():
    """Worked example of the rounding rule: what is declared narrow is narrow for everyone who reads it."""
    a, b = integers((1, 16, 32), 1, BF16, -40, 41), integers((1, 32, 24), 2, BF16, -40, 41)
    row, column = integers((1, 16, 1), 3), integers((1, 1, 24), 4)
    first, second = Output((1, 16, 24)), Output((1, 16, 24), np.float16)
    graph = verglas.Graph(io_data_type=BF16)
    A, B = declare(graph, "A", a), declare(graph, "B", b)
    R, C = declare(graph, "row", row), declare(graph, "column", column)
    c = graph.matmul(A, B).set_data_type("fp16")
    t = graph.add(c, R).set_data_type("bf16")
    y = graph.relu(t).set_output(True).set_data_type("fp32")
    z = graph.sub(y, graph.mul(c, C).set_data_type("fp32")).set_output(True).set_data_type("fp16")
    graph.execute({A: a, B: b, R: row, C: column, y: first.array, z: second.array})

    exact_c = through(product(a, b), np.float16)
    exact_y = np.maximum(through(exact_c + row, BF16), 0)
    assert (first.array == exact_y).all()
    assert (exact_y != np.maximum(product(a, b) + row, 0)).any()  # the rounding is there to be seen
    assert (second.array.astype(np.float64) == through(exact_y - through(exact_c * column, np.float32), np.float16)).all()


def test_products_that_share_an_operand_make_swiglu():
    x, gate, up = integers((1, 10, 16), 1), integers((1, 16, 12), 2), integers((1, 16, 12), 3)
    out = Output((1, 10, 12))
    graph = verglas.Graph(io_data_type="fp32")
    X, G, U = declare(graph, "x", x), declare(graph, "gate", gate), declare(graph, "up", up)
    y = graph.mul(graph.swish(graph.matmul(X, G)), graph.matmul(X, U)).set_output(True)
    graph.execute({X: x, G: gate, U: up, y: out.array})
    g = product(x, gate)
    exact = g / (1 + np.exp(-g)) * product(x, up)
    assert np.allclose(out.array, exact, rtol=1e-6, atol=1e-6)


REDUCTIONS = {
    "ADD": lambda v, axes: v.sum(axes, keepdims=True),
    "MUL": lambda v, axes: v.prod(axes, keepdims=True),
    "MIN": lambda v, axes: v.min(axes, keepdims=True),
    "MAX": lambda v, axes: v.max(axes, keepdims=True),
    "AMAX": lambda v, axes: np.abs(v).max(axes, keepdims=True),
    "AVG": lambda v, axes: v.mean(axes, keepdims=True),
    "NORM1": lambda v, axes: np.abs(v).sum(axes, keepdims=True),
    "NORM2": lambda v, axes: np.sqrt((v * v).sum(axes, keepdims=True)),
    "MUL_NO_ZEROS": lambda v, axes: np.where(v == 0, 1, v).prod(axes, keepdims=True),
}


@pytest.mark.parametrize("mode", verglas.reduction_mode)
@pytest.mark.parametrize("axes", [(2,), (1,), (1, 2), (0, 1, 2)])
def test_reduction_modes(mode, axes):
    small = mode.name.startswith("MUL")
    a = integers((2, 4, 3), 1, low=0 if small else -3, high=2 if small else 4)
    b = integers((2, 3, 5), 2, low=0 if small else -3, high=2 if small else 4)
    shape = [1 if axis in axes else extent for axis, extent in enumerate((2, 4, 5))]
    out = Output(shape)
    graph = verglas.Graph(io_data_type="fp32")
    A, B = declare(graph, "A", a), declare(graph, "B", b)
    s = graph.reduction(graph.matmul(A, B), mode).set_output(True).set_dim(shape)
    graph.execute({A: a, B: b, s: out.array})
    exact = REDUCTIONS[mode.name](product(a, b), axes)
    assert np.allclose(out.array, exact, rtol=2e-6, atol=0)
    assert out.gaps_untouched()


def test_cases_a_10_one_buffer_in_two_roles():
    x = integers((1, 64, 64), 1)
    for transposed in (False, True):
        out = Output((1, 64, 64))
        graph = verglas.Graph(io_data_type="fp32")
        X = declare(graph, "X", x)
        other = declare(graph, "Xt", x.transpose(0, 2, 1)) if transposed else X
        y = graph.relu(graph.add(graph.matmul(X, other), X)).set_output(True)
        pack = {X: x, y: out.array} | ({other: x.transpose(0, 2, 1)} if transposed else {})
        graph.execute(pack)
        exact = np.maximum(product(x, x.transpose(0, 2, 1) if transposed else x) + x, 0)
        assert (out.array == exact).all()


def test_declared_types_that_are_not_served_are_refused_by_name():
    graph = verglas.Graph()
    A = graph.tensor(dim=[1, 4, 4], stride=[16, 4, 1], data_type=data_type.INT64)
    graph.matmul(A, A).set_output(True)
    with pytest.raises(verglas.UnsupportedError, match="int64"):
        graph.build()
