"""How a buffer is read whose axes could be meant in two ways: docs/python.md, "What a buffer means", row by row."""

import numpy as np
import pytest
import verglas
from hypothesis import given, settings
from hypothesis import strategies as st
from support import Output, address, declare, integers, one_matmul, strided

MAJORS = ("K", "N")


def declared_b(b, major):
    """The values of b (L, K, N) in memory of that major, as the graph declares them."""
    return b.copy() if major == "N" else b.transpose(0, 2, 1).copy().transpose(0, 2, 1)


def storage_order(b):
    """The same memory, listed (L, N, K) as a caller of kernels does."""
    return b.transpose(0, 2, 1)


@pytest.mark.parametrize("major", MAJORS)
@pytest.mark.parametrize("n,k", [(64, 64), (64, 32), (1, 1), (1, 8), (8, 1), (2, 2)])
def test_cases_a_11_three_ways_of_passing_b_give_one_answer(major, n, k):
    batch, m = 2, 24
    a = integers((batch, m, k), 1)
    b = declared_b(integers((batch, k, n), 2), major)
    graph, ta, tb, ty = one_matmul(a, b)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    for given_b in (b, address(b), storage_order(b)):
        out = Output((batch, m, n))
        graph.execute({ta: a, tb: given_b, ty: out.array})
        assert (out.array == exact).all()


@pytest.mark.parametrize("major", MAJORS)
def test_three_equal_extents_do_not_confuse_the_axes(major):
    a, b = integers((2, 2, 2), 1), declared_b(integers((2, 2, 2), 2), major)
    graph, ta, tb, ty = one_matmul(a, b)
    for given_b in (b, address(b), storage_order(b)):
        out = Output((2, 2, 2))
        graph.execute({ta: a, tb: given_b, ty: out.array})
        assert (out.array == a @ b).all()


def test_the_tie_is_decided_by_the_contiguous_axis():
    """N = K, and a buffer that is not the declared view: contiguous along the declared axis means declared order."""
    a, values = integers((1, 8, 16), 1), integers((1, 16, 16), 2)
    b = declared_b(values, "K")
    graph, ta, tb, ty = one_matmul(a, b)
    padded_declared = strided(values, [16 * 20, 1, 20])  # (K, N), K contiguous
    padded_storage = strided(storage_order(values), [16 * 20, 20, 1])  # (N, K), K contiguous
    for given_b in (padded_declared, padded_storage):
        out = Output((1, 8, 16))
        graph.execute({ta: a, tb: given_b, ty: out.array})
        assert (out.array == a @ values).all()


@pytest.mark.parametrize("major", MAJORS)
def test_rank_two_has_the_same_tie(major):
    a, b = integers((1, 8, 16), 1)[0], declared_b(integers((1, 16, 16), 2), major)[0]
    graph, ta, tb, ty = one_matmul(a, b)
    for given_b in (b, b.T, address(b)):
        out = Output((8, 16))
        graph.execute({ta: a, tb: given_b, ty: out.array})
        assert (out.array == a @ b).all()


@given(
    declared=st.tuples(
        st.integers(1, 5), st.integers(1, 5), st.integers(2, 5), st.integers(2, 5)
    ),  # with 1 both majors look alike
    live=st.tuples(*[st.integers(1, 5)] * 3),
    major=st.sampled_from(MAJORS),
    storage=st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_live_sizes_in_both_orders(declared, live, major, storage):
    """Row 6 and row 3': any live size, in the graph's order or the kernel's, is read as it was meant."""
    batch, *sizes = declared
    m, n, k = sizes
    graph, ta, tb, ty = one_matmul(integers((batch, m, k)), declared_b(integers((batch, k, n)), major))
    m, n, k = live
    a, b = integers((batch, m, k), 1), declared_b(integers((batch, k, n), 2), major)
    out = Output((batch, m, n))
    graph.execute({ta: a, tb: storage_order(b) if storage else b, ty: out.array})
    assert (out.array == a.astype(np.float64) @ b.astype(np.float64)).all()


def test_declared_extents_with_other_strides_are_read_as_they_are():
    """Row 5: the transposed view of a B that was declared K-major; strides are honoured."""
    a, b = integers((1, 4, 6), 1), integers((1, 6, 5), 2)
    graph, ta, tb, ty = one_matmul(a, declared_b(b, "K"))
    for given_b in (b, strided(b, [60, 10, 2])):
        out = Output((1, 4, 5))
        graph.execute({ta: a, tb: given_b, ty: out.array})
        assert (out.array == a @ b).all()


class TestDenseBuffersOfAnotherRank:
    """Row 4: what covers the declared bytes without gaps, and can be no matrix of the graph, is what the graph declares."""

    a, b, bias = integers((2, 4, 6), 1), integers((2, 6, 5), 2), integers((2, 4, 5), 3)

    def graph(self):
        graph = verglas.Graph(io_data_type="fp32")
        tensors = [
            declare(graph, name, array) for name, array in (("a", self.a), ("b", declared_b(self.b, "K")), ("r", self.bias))
        ]
        y = graph.add(graph.matmul(*tensors[:2]), tensors[2]).set_output(True)
        graph.build()
        return graph, [*tensors, y]

    @pytest.mark.parametrize("shape", [(-1,), (1, 1, 1, -1), (2, 2, 2, -1)])
    def test_flat_and_folded(self, shape):
        graph, tensors = self.graph()
        out = Output((2, 4, 5))
        stored = storage_order(declared_b(self.b, "K"))
        arrays = [array.reshape(shape) if array.size % 8 == 0 else array.reshape(-1) for array in (self.a, stored, self.bias)]
        graph.execute(dict(zip(tensors, [*arrays, out.array.reshape(-1)], strict=True)))
        assert (out.array == self.a @ self.b + self.bias).all()

    def test_batch_and_rows_in_one_axis(self):
        graph, tensors = self.graph()
        out = Output((2, 4, 5))
        stored = storage_order(declared_b(self.b, "K"))
        arrays = [self.a.reshape(8, 6), stored.reshape(10, 6), self.bias.reshape(8, 5), out.array.reshape(8, 5)]
        graph.execute(dict(zip(tensors, arrays, strict=True)))
        assert (out.array == self.a @ self.b + self.bias).all()

    def test_more_bytes_than_declared(self):
        graph, tensors = self.graph()
        out = Output((60,))
        arrays = [self.a, self.b, np.concatenate([self.bias.reshape(-1), np.full(9, np.nan, np.float32)]), out.array]
        graph.execute(dict(zip(tensors, arrays, strict=True)))
        assert (out.array[:40] == (self.a @ self.b + self.bias).reshape(-1)).all()
        assert (out.array[40:].view(np.uint8) == 0xA5).all()

    def test_raw_bytes_take_the_declared_type(self):
        graph, tensors = self.graph()
        out = Output((2, 4, 5))
        arrays = [self.a.reshape(-1).view(np.uint8), self.b, self.bias, out.array]
        graph.execute(dict(zip(tensors, arrays, strict=True)))
        assert (out.array == self.a @ self.b + self.bias).all()

    def test_too_few_elements_gaps_and_other_types_are_refused(self):
        graph, tensors = self.graph()
        flat = self.a.reshape(-1)
        gaps = np.repeat(flat, 2)[::2]
        for bad, rule in (
            (flat[:-1], "call.rank"),
            (gaps, "call.rank"),
            (flat.astype(np.float16).repeat(2), "call.rank"),
            (np.float64(flat), "call.dtype"),
            (np.asfortranarray(self.a.reshape(8, 6)), "call.batch"),
        ):
            out = Output((2, 4, 5))
            with pytest.raises(verglas.InvalidCallError) as caught:
                graph.execute(dict(zip(tensors, [bad, self.b, self.bias, out.array], strict=True)))
            assert caught.value.rule == rule
            assert out.untouched()

    def test_a_scalar_of_rank_zero(self):
        graph = verglas.Graph(io_data_type="fp32")
        ta, tb = declare(graph, "a", self.a), declare(graph, "b", self.b)
        scale = graph.tensor(name="scale", dim=[1, 1, 1], stride=[1, 1, 1])
        y = graph.scale(graph.matmul(ta, tb), scale).set_output(True)
        for given_scale in (np.array(3, np.float32), np.array([3], np.float32), np.array([[[3]]], np.float32)):
            out = Output((2, 4, 5))
            graph.execute({ta: self.a, tb: self.b, scale: given_scale, y: out.array})
            assert (out.array == self.a @ self.b * 3).all()


@pytest.mark.parametrize("shape", [(5,), (1, 5), (1, 1, 5)])
def test_a_bias_may_leave_out_its_unit_axes(shape):
    a, b, bias = integers((1, 4, 6), 1), integers((1, 6, 5), 2), integers((1, 1, 5), 3)
    graph = verglas.Graph(io_data_type="fp32")
    ta, tb, tc = declare(graph, "a", a), declare(graph, "b", b), declare(graph, "bias", bias)
    y = graph.bias(graph.matmul(ta, tb), tc).set_output(True)
    out = Output((1, 4, 5))
    graph.execute({ta: a, tb: b, tc: bias.reshape(shape), y: out.array})
    assert (out.array == a @ b + bias).all()


def test_a_square_times_itself_in_both_roles():
    x = integers((1, 32, 32), 1)
    graph = verglas.Graph(io_data_type="fp32")
    tensor = declare(graph, "x", x)
    y = graph.matmul(tensor, tensor).set_output(True)
    for given_x in (x, address(x), x.reshape(32, 32)):
        out = Output((1, 32, 32))
        graph.execute({tensor: given_x, y: out.array})
        assert (out.array == x @ x).all()
