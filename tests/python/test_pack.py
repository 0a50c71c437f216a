"""Keys of a pack, and what is refused before anything is written."""

import re
from pathlib import Path

import numpy as np
import pytest
import verglas
from support import Output, address, declare, integers, one_matmul, refused

A, B = integers((1, 4, 6), 1), integers((1, 6, 5), 2)
EXACT = A @ B
BIAS = integers((1, 1, 5), 3)


@pytest.fixture
def out():
    return Output((1, 4, 5))


@pytest.fixture
def scaled():
    """relu(a · b · scale) with a scale that is passed by value."""
    graph = verglas.Graph(io_data_type="fp32")
    a, b = declare(graph, "a", A), declare(graph, "b", B)
    scale = graph.tensor(name="scale", dim=[1, 1, 1], stride=[1, 1, 1], data_type="fp32", is_pass_by_value=True)
    y = graph.mul(graph.matmul(a, b), scale).set_output(True).set_name("y")
    graph.build()
    return graph, a, b, scale, y


def test_keys_are_tensors_uids_or_names(out):
    graph, a, b, y = one_matmul(A, B)
    for pack in (
        {a: A, b: B, y: out.array},
        {"a": A, b.get_uid(): B, "y": out.array},
        {a.get_uid(): A, "b": B, y.get_uid(): out.array},
        [A, B, out.array],
        (A, B, out.array),
    ):
        out.array[...] = 0
        graph.execute(pack)
        assert (out.array == EXACT).all()
        out.array[...] = 0
        graph.plan.execute(pack)
        assert (out.array == EXACT).all()


def test_none_counts_as_not_given(out):
    graph, a, b, y = one_matmul(A, B)
    error = refused("pack.missing", lambda: graph.execute({a: A, b: None, y: out.array}), out)
    assert error.operand == "b 'b'"
    refused("pack.missing", lambda: graph.execute([A, None, out.array]), out)
    graph.execute({a: A, b: B, "no such name": None, y: out.array})
    assert (out.array == EXACT).all()


def test_every_operand_has_to_be_given(out):
    graph, a, b, y = one_matmul(A, B)
    refused("pack.missing", lambda: graph.execute({a: A, y: out.array}), out)
    refused("pack.missing", lambda: graph.execute({}), out)
    refused("pack.missing", lambda: graph.execute({a: A, b: B}), out)
    refused("call.operand_count", lambda: graph.execute([A, B]), out)
    refused("call.operand_count", lambda: graph.execute([A, B, out.array, A]), out)


def test_unknown_keys_are_refused(out):
    graph, a, b, y = one_matmul(A, B, epilogue=lambda g, c: g.relu(c))
    other = one_matmul(A, B)[1]
    whole = {a: A, b: B, y: out.array}
    for key in ("c", 999, other, "a\0", "\ud800", -1, 2**80, True, 1.5, (1,)):
        error = refused("pack.unknown", lambda key=key: graph.execute({**whole, key: A}), out)
        assert "a 'a'" in error.want
    graph.execute(whole)


def test_tensors_that_the_graph_keeps_for_itself_are_unknown(out):
    graph = verglas.Graph(io_data_type="fp32")
    a, b = declare(graph, "a", A), declare(graph, "b", B)
    inside = graph.matmul(a, b)
    half = graph.scalar(0.5, name="half")
    unread = declare(graph, "unread", A)
    y = graph.mul(inside, half).set_output(True)
    graph.build()
    for key in (inside, half, "half"):
        refused("pack.unknown", lambda key=key: graph.execute({a: A, b: B, y: out.array, key: A}), out)
    error = refused("pack.unknown", lambda: graph.execute({a: A, b: B, y: out.array, unread: A}), out)
    assert error.got == "tensor 'unread', which nothing that is stored depends on"
    graph.execute({a: A, b: B, y: out.array})
    assert (out.array == EXACT / 2).all()


def test_two_keys_for_one_operand_are_refused(out):
    graph, a, b, y = one_matmul(A, B)
    for key in ("a", a.get_uid()):
        refused("pack.duplicate", lambda key=key: graph.execute({a: A, key: A, b: B, y: out.array}), out)


def test_a_name_of_two_operands_is_no_key(out):
    graph = verglas.Graph(io_data_type="fp32")
    a, b = declare(graph, "x", A), declare(graph, "x", B)
    y = graph.matmul(a, b).set_output(True)
    refused("pack.ambiguous", lambda: graph.execute({"x": A, b: B, y: out.array}), out)
    graph.execute({a: A, b: B, y: out.array})
    assert (out.array == EXACT).all()


def test_a_pack_is_a_dict_or_a_sequence(out):
    graph, *_ = one_matmul(A, B)
    for pack in (None, A, "abc", iter([A, B]), {1, 2}):
        refused("pack.object", lambda pack=pack: graph.execute(pack), out, TypeError)


class Meddling:
    """An array that does something else while it is read."""

    def __init__(self, array, what):
        self.array, self.what = array, what

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __dlpack__(self, **options):
        self.what()
        return self.array.__dlpack__()


def test_a_list_that_changes_while_it_is_read_is_what_was_passed(out):
    graph, *_ = one_matmul(A, B)
    pack = [None, B.copy(), out.array]
    pack[0] = Meddling(A, lambda: pack.__setitem__(slice(None), [7] * 100))
    graph.execute(pack)
    assert (out.array == EXACT).all()


def test_objects_that_are_no_buffers_are_refused_by_type(out):
    graph, a, b, y = one_matmul(A, B)
    for thing in (object(), "text", 1.5, [[1.0]], np.float32(1), True, 2**70, -5):
        error = refused("pack.object", lambda thing=thing: graph.execute({a: A, b: thing, y: out.array}), out, TypeError)
        assert error.operand == "b 'b'"
        assert error.got == (
            f"the number {thing}, which is no address" if type(thing) is int else f"an object of type {type(thing).__name__}"
        )
        assert isinstance(error, ValueError)


def test_scalars_by_value_are_numbers_or_arrays_of_one_element(scaled, out):
    graph, a, b, scale, y = scaled
    for value in (2, 2.0, np.float32(2), np.int64(2), np.full((), 2, np.float32), np.full((1, 1, 1), 2, np.float32)):
        out.array[...] = 0
        graph.execute({a: A, b: B, scale: value, y: out.array})
        assert (out.array == EXACT * 2).all()
    fresh = Output((1, 4, 5))
    for several in (np.full(2, 2, np.float32), np.full((2, 2), 2, np.float32), np.empty(0, np.float32)):
        pack = {a: A, b: B, scale: several, y: fresh.array}
        assert refused("call.aux_extent", lambda pack=pack: graph.execute(pack), fresh).operand == "scalar 'scale'"
    assert next(o for o in graph.plan.operands() if o.name == "scale").is_pass_by_value


def test_numbers_that_do_not_fit_their_type_are_refused(scaled, out):
    graph, a, b, scale, y = scaled
    for value in (1e300, 10**400):
        refused("pack.scalar", lambda value=value: graph.execute({a: A, b: B, scale: value, y: out.array}), out)
    graph.execute({a: A, b: B, scale: float("inf"), y: out.array})
    assert np.isinf(out.array[EXACT != 0]).all()


@pytest.mark.parametrize(
    "kind,good,bad", [("int8", -128, 128), ("uint8", 255, -1), ("int32", 2**31 - 1, 2**31), ("int8", 3, 2.5)]
)
def test_integers_by_value_have_their_range(kind, good, bad):
    graph = verglas.Graph(io_data_type="fp32")
    a, b = declare(graph, "a", A), declare(graph, "b", B)
    scale = graph.tensor(name="s", dim=[1, 1, 1], stride=[1, 1, 1], data_type=kind, is_pass_by_value=True)
    y = graph.add(graph.matmul(a, b), scale).set_output(True)
    graph.build()
    out = Output((1, 4, 5))
    refused("pack.scalar", lambda: graph.execute({a: A, b: B, scale: bad, y: out.array}), out)
    graph.execute({a: A, b: B, scale: good, y: out.array})
    assert (out.array == (EXACT.astype(np.float64) + good).astype(np.float32)).all()


def test_streams_are_addresses_or_have_one(out):
    graph, a, b, y = one_matmul(A, B)
    pack = {a: A, b: B, y: out.array}

    class Stream:
        cuda_stream = 0

    class Protocol:
        def __cuda_stream__(self):
            return 0, 0

    for bad in ("stream", 1.5, object(), -1):
        refused("pack.stream", lambda bad=bad: graph.execute(pack, stream=bad), out)
    refused("pack.stream", lambda: graph.execute(pack, stream=1, handle=2), out)
    for good in (None, 0, 1, Stream(), Protocol()):
        graph.execute(pack, stream=good)
        graph.execute(pack, handle=good)


def test_a_workspace_is_dense_and_writable(out):
    graph, a, b, y = one_matmul(A, B)
    pack = {a: A, b: B, y: out.array}
    memory = np.zeros(64, np.uint8)
    sealed = memory.copy()
    sealed.flags.writeable = False
    for bad in (memory[::2], sealed):
        refused("pack.workspace", lambda bad=bad: graph.execute(pack, bad), out)
    refused("pack.object", lambda: graph.execute(pack, "memory"), out, TypeError)
    for good in (None, memory, memory.reshape(8, 8), address(memory), bytearray(16)):
        graph.execute(pack, good)


def test_every_rule_of_packs_is_refused_somewhere_here():
    root = Path(__file__).resolve().parents[2]
    rules = set(re.findall(r'"(pack\.\w+)"', (root / "src/base/rules.def").read_text(encoding="utf-8")))
    tests = "".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py"))
    assert rules
    assert {rule for rule in rules if f'refused("{rule}"' not in tests} == set()
