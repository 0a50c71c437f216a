"""Every failure is a class of its own and the built-in exception that fits, with the same fields."""

import numpy as np
import pytest
import verglas
from support import Output, declare, integers, one_matmul

CLASSES = {
    "InvalidGraphError": ValueError,
    "InvalidCallError": ValueError,
    "UnsupportedError": NotImplementedError,
    "CompileError": RuntimeError,
    "DriverError": RuntimeError,
    "IoError": OSError,
    "OutOfMemoryError": MemoryError,
    "InternalError": RuntimeError,
}


@pytest.mark.parametrize("name", CLASSES)
def test_classes(name):
    found = getattr(verglas, name)
    assert issubclass(found, (verglas.Error, CLASSES[name]))
    assert issubclass(found, verglas.Error)
    assert issubclass(found, CLASSES[name])
    assert found.__module__ == "verglas"
    assert str(found("text")) == "text"


@pytest.mark.parametrize(
    "code,name",
    zip(
        [
            "invalid_graph",
            "invalid_call",
            "unsupported",
            "compile_failed",
            "driver_failed",
            "io_failed",
            "out_of_memory",
            "internal",
        ],
        CLASSES,
        strict=True,
    ),
)
def test_each_code_has_its_class(code, name):
    error = verglas.errors.make(code, "some.rule", "b 'b'", "1", "2", "text")
    assert type(error) is getattr(verglas, name)
    assert (error.code, error.rule, error.operand, error.got, error.want) == (code, "some.rule", "b 'b'", "1", "2")
    assert str(error) == "text"


def test_fields_and_text_of_a_refused_call():
    a, b = integers((1, 4, 6), 1), integers((1, 6, 5), 2)
    graph, ta, tb, ty = one_matmul(a, b)
    out = Output((1, 4, 5))
    with pytest.raises(verglas.InvalidCallError) as caught:
        graph.execute({ta: a, tb: np.zeros((1, 7, 5), np.float32), ty: out.array})
    error = caught.value
    assert error.code == "invalid_call"
    assert error.rule == "call.extent"
    assert error.operand == "b 'b'"
    assert str(error) == f"invalid_call [call.extent] b 'b': got {error.got}, wanted {error.want}"
    assert "(1, 7, 5)" in error.got
    assert out.untouched()


def wrong_inner(g):
    return g.matmul(g.tensor(name="a", dim=[1, 4, 6], stride=[24, 6, 1]), g.tensor(name="b", dim=[1, 7, 5], stride=[35, 5, 1]))


def no_strides(g):
    return g.matmul(g.tensor(name="a", dim=[1, 4, 6]), g.tensor(name="b", dim=[1, 6, 5], stride=[30, 5, 1]))


def no_extents(g):
    return g.matmul(g.tensor(name="a"), g.tensor(name="b", dim=[1, 6, 5], stride=[30, 5, 1]))


def negative_extent(g):
    return g.matmul(g.tensor(dim=[1, -4, 6], stride=[24, 6, 1]), g.tensor(dim=[1, 6, 5], stride=[30, 5, 1]))


def too_large(g):
    big = 2**40
    return g.matmul(g.tensor(dim=[big, big, 6], stride=[6 * big, 6, 1]), g.tensor(dim=[1, 6, 5], stride=[30, 5, 1]))


def no_slope(g):
    return g.pointwise(verglas.pointwise_mode.LEAKY_RELU, [wrong_inner(g)])


def empty(g):
    return None


@pytest.mark.parametrize(
    "describe,rule",
    [
        (wrong_inner, "graph.matmul_inner"),
        (no_strides, "graph.stride_unset"),
        (no_extents, "graph.dim_unset"),
        (negative_extent, "graph.extent"),
        (too_large, "graph.overflow"),
        (empty, "graph.empty"),
    ],
)
def test_wrong_descriptions(describe, rule):
    graph = verglas.Graph(io_data_type="fp32")
    made = describe(graph)
    if made is not None:
        made.set_output(True)
    for stage in (graph.validate, graph.build_operation_graph, graph.build, graph.create_execution_plans):
        with pytest.raises(verglas.InvalidGraphError) as caught:
            stage()
        assert caught.value.rule == rule


def test_a_graph_without_a_product_is_unsupported_with_the_reason():
    graph = verglas.Graph(io_data_type="fp32")
    x = declare(graph, "x", integers((1, 4, 6)))
    graph.relu(x).set_output(True)
    with pytest.raises(NotImplementedError) as caught:
        graph.build()
    assert caught.value.rule == "plan.none"
    assert "chain.no_matmul" in str(caught.value)
    assert graph.declines()[0][:2] == ("chain", "chain.no_matmul")
    assert graph.describe()


def test_wrong_arguments_are_type_errors():
    graph = verglas.Graph()
    with pytest.raises(TypeError):
        graph.tensor(dims=[1])
    with pytest.raises(TypeError):
        graph.tensor(dim=["a"])
    with pytest.raises(TypeError):
        graph.tensor(dim=[1.5])
    with pytest.raises(TypeError):
        graph.relu("x")
    with pytest.raises(TypeError):
        graph.reduction(graph.tensor(dim=[1], stride=[1]), "ADD")


def test_nothing_is_written_when_one_of_two_outputs_is_refused():
    a, b = integers((1, 4, 6), 1), integers((1, 6, 5), 2)
    graph = verglas.Graph(io_data_type="fp32")
    ta, tb = declare(graph, "a", a), declare(graph, "b", b)
    c = graph.matmul(ta, tb).set_output(True)
    r = graph.reduction(c, verglas.reduction_mode.ADD).set_output(True).set_dim([1, 4, 1])
    dense, rows = Output((1, 4, 5)), Output((1, 4, 1))
    with pytest.raises(verglas.InvalidCallError):
        graph.execute({ta: a, tb: b, c: dense.array, r: rows.array[:, :3]})
    assert dense.untouched()
    assert rows.untouched()
    with pytest.raises(verglas.InvalidCallError) as caught:
        graph.execute({ta: a, tb: b, c: dense.array, r: dense.array[:, :, :1]})
    assert caught.value.rule == "call.overlap"
    assert dense.untouched()
    graph.execute({ta: a, tb: b, c: dense.array, r: rows.array})
    assert (rows.array == (a @ b).sum(2, keepdims=True)).all()
