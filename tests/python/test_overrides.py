"""Extents and strides given for one call by uid, with cuDNN Frontend's names."""

import re

import numpy as np
import pytest
import verglas
from support import Output, address, declare, integers, one_matmul, refused, strided

M, N, K = 16, 12, 8


@pytest.fixture
def batched():
    """a (3, 16, 8) · b (3, 8, 12), B as kernels allocate it."""
    a, b = integers((3, M, K), 1), integers((3, N, K), 2).transpose(0, 2, 1)
    graph, ta, tb, ty = one_matmul(a, b)
    return graph, a, b, (ta, tb, ty)


def overrides(tensors, shapes, strides):
    return {"override_uids": [t.get_uid() for t in tensors], "override_shapes": shapes, "override_strides": strides}


def dense(shape):
    return [int(np.prod(shape[axis + 1 :])) for axis in range(len(shape))]


@pytest.mark.parametrize("batch,m,n,k", [(3, M, N, K), (2, 5, 7, 3), (1, 1, 1, 1), (3, M, N, 1), (2, 0, N, K)])
def test_every_extent_may_be_another_and_bare_addresses_do(batched, batch, m, n, k):
    graph, _, _, tensors = batched
    a, b = integers((batch, m, k), 3), integers((batch, n, k), 4)
    out = Output((batch, m, n))
    shapes = [(batch, m, k), (batch, k, n), (batch, m, n)]
    strides = [dense(shapes[0]), [n * k, 1, k], dense(shapes[2])]
    graph.execute([address(a), address(b), address(out.array)], **overrides(tensors, shapes, strides))
    assert (out.array == a @ b.transpose(0, 2, 1)).all()
    assert out.gaps_untouched()


def test_arrays_give_memory_and_the_lists_describe_it(batched):
    graph, a, b, (ta, tb, ty) = batched
    out = Output((3, M, N))
    # The first four rows of every other matrix, in place.
    shapes = [(2, 4, K), (2, K, N), (2, 4, N)]
    strides = [(2 * M * K, K, 1), (2 * N * K, 1, K), (2 * M * N, N, 1)]
    for call in (graph.execute, graph.plan.execute):
        out.array[...] = -1
        call({ta: a, tb: b, ty: out.array}, **overrides((ta, tb, ty), shapes, strides))
        assert (out.array[::2, :4] == (a @ b)[::2, :4]).all()
        assert (out.array[1] == -1).all() and (out.array[:, 4:] == -1).all()


def test_what_is_not_listed_is_read_as_ever(batched):
    graph, a, b, (ta, tb, ty) = batched
    out = Output((3, 5, N))
    graph.execute({ta: a, tb: b, ty: out.array}, **overrides([ta], [(3, 5, K)], [(M * K, K, 1)]))
    assert (out.array == (a @ b)[:, :5]).all()


def test_the_order_of_axes_is_the_graphs_where_a_buffer_could_be_read_in_two_ways():
    """At N = K a row-major array is B as kernels allocate it; lists are not asked that question."""
    a, b = integers((1, 4, 8), 1), integers((1, 8, 8), 2)
    graph, ta, tb, ty = one_matmul(a, strided(b, (64, 1, 8)))
    out = Output((1, 4, 8))
    graph.execute({ta: a, tb: b, ty: out.array})
    assert (out.array == a @ b.transpose(0, 2, 1)).all()
    graph.execute({ta: a, tb: b, ty: out.array}, **overrides([tb], [(1, 8, 8)], [(64, 8, 1)]))
    assert (out.array == a @ b).all()


def test_an_epilogue_operand_follows_the_live_extents():
    a, b, bias = integers((2, M, K), 1), integers((1, K, N), 2), integers((1, 1, N), 3)
    graph = verglas.Graph(io_data_type="fp32")
    ta, tb, tbias = declare(graph, "a", a), declare(graph, "b", b), declare(graph, "bias", bias)
    y = graph.bias(graph.matmul(ta, tb), tbias).set_output(True)
    out = Output((2, M, 5))
    lists = overrides([tb, tbias], [(1, K, 5), (1, 1, 5)], [(K * N, N, 1), (N, N, 1)])
    graph.execute({ta: a, tb: b, tbias: bias, y: out.array}, **lists)
    assert (out.array == (a @ b + bias)[:, :, :5]).all()


def test_lists_of_different_lengths_are_refused(batched):
    graph, a, b, (ta, tb, ty) = batched
    out = Output((3, M, N))
    right = overrides([ta, tb], [(3, M, K), (3, K, N)], [(M * K, K, 1), (N * K, 1, K)])
    graph.execute({ta: a, tb: b, ty: out.array}, **right)
    out = Output((3, M, N))
    pack = {ta: a, tb: b, ty: out.array}
    for name in right:
        for wrong in (right[name][:1], [], None):
            lists = right | {name: wrong}
            error = refused("pack.override", lambda: graph.execute(pack, **lists), out)  # noqa: B023
            assert re.search(r"got .* wanted three lists of one length", str(error))


def test_an_unknown_uid_is_refused(batched):
    graph, a, b, (ta, tb, ty) = batched
    out = Output((3, M, N))
    lists = overrides([ta], [(3, M, K)], [(M * K, K, 1)])
    for uid in (987654321, -1):
        error = refused(
            "pack.unknown",
            lambda u=uid: graph.execute({ta: a, tb: b, ty: out.array}, **(lists | {"override_uids": [u]})),
            out,
        )
        assert str(uid) in str(error) and str(ta.get_uid()) in str(error)


def test_two_overrides_of_one_operand_are_refused(batched):
    graph, a, b, (ta, tb, ty) = batched
    out = Output((3, M, N))
    lists = overrides([ta, ta], [(3, M, K)] * 2, [(M * K, K, 1)] * 2)
    assert refused("pack.duplicate", lambda: graph.execute({ta: a, tb: b, ty: out.array}, **lists), out).operand == "a 'a'"


@pytest.mark.parametrize(
    "shape,stride",
    [((M, K), (K, 1)), ((3, M, K), (K, 1)), ((1, 3, M, K), (3 * M * K, M * K, K, 1)), ((), ())],
)
def test_an_override_has_the_declared_rank(batched, shape, stride):
    graph, a, b, (ta, tb, ty) = batched
    out = Output((3, M, N))
    lists = overrides([ta], [shape], [stride])
    error = refused("pack.override", lambda: graph.execute({ta: a, tb: b, ty: out.array}, **lists), out)
    assert error.operand == "a 'a'" and error.want == "3 of each, as the graph declares"


@pytest.mark.parametrize(
    "rule,shape,stride",
    [
        ("call.span", (3, M, K), (M * K + 1, K, 1)),  # two elements past the end of the array
        ("call.span", (3, M, K), (1 << 40, K, 1)),
        ("call.extent", (3, M, K - 1), (M * K, K, 1)),
        ("call.batch", (2, M, K), (M * K, K, 1)),
        ("call.stride", (3, M, K), (M * K, -K, 1)),
        ("call.overflow", (3, -1, K), (M * K, K, 1)),
    ],
)
def test_every_check_of_a_call_is_made(batched, rule, shape, stride):
    graph, a, b, (ta, tb, ty) = batched
    out = Output((3, M, N))
    refused(rule, lambda: graph.execute({ta: a, tb: b, ty: out.array}, **overrides([ta], [shape], [stride])), out)


def test_a_batch_that_was_declared_as_1_stays_1():
    a, b = integers((1, M, K), 1), integers((1, K, N), 2)
    graph, ta, tb, ty = one_matmul(a, b)
    out = Output((2, M, N))
    lists = overrides([ta, ty], [(2, M, K), (2, M, N)], [(0, K, 1), (M * N, N, 1)])
    refused("call.batch", lambda: graph.execute({ta: a, tb: b, ty: out.array}, **lists), out)


def test_a_tensor_whose_producer_keeps_its_memory_to_itself_reaches_as_far_as_it_says(batched):
    """DLPack tells no bytes beyond the tensor: an override may not reach further than the tensor did."""

    class Alone:
        def __init__(self, array):
            self.array = array

        def __dlpack__(self, **options):
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    graph, a, b, (ta, tb, ty) = batched
    out = Output((3, M, N))
    pack = {ta: Alone(a), tb: b, ty: out.array}
    lists = overrides([ta], [(3, M, K)], [(M * K + 1, K, 1)])
    refused("call.span", lambda: graph.execute(pack, **lists), out)
    graph.execute(pack, **(lists | {"override_strides": [(M * K, K, 1)]}))
    assert (out.array == a @ b).all()


def test_the_workspace_is_asked_for_with_the_same_lists(batched):
    graph, _, _, (ta, _, _) = batched
    lists = overrides([ta], [(3, 4, K)], [(M * K, K, 1)])
    assert graph.get_workspace_size(**lists) == graph.get_workspace_size()
    with pytest.raises(verglas.InvalidCallError, match=r"pack.override"):
        graph.get_workspace_size(**(lists | {"override_shapes": []}))


def test_any_plan_of_the_list_takes_them(batched):
    graph, a, b, (ta, tb, ty) = batched
    lists = overrides([ta, ty], [(3, 4, K), (3, 4, N)], [(M * K, K, 1), (4 * N, N, 1)])
    for index in range(graph.get_execution_plan_count()):
        out = Output((3, 4, N))
        graph.execute_plan_at_index({ta: a, tb: b, ty: out.array}, None, index, **lists)
        assert (out.array == (a @ b)[:, :4]).all()
