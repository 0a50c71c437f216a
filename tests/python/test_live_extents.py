"""One plan, many sizes and layouts: what a call passes rules, not what the graph declared."""

import threading

import numpy as np
import pytest
import verglas
from support import POISON, Output, declare, integers, one_matmul, refused, strided


def test_cases_a_33_a_plan_for_many_rows_runs_on_few():
    declared, live, n, k = 4096, 64, 24, 16
    a, b = integers((1, declared, k), 1), integers((1, k, n), 2)
    graph = verglas.Graph(io_data_type="fp32")
    ta, tb = declare(graph, "a", a), declare(graph, "b", b)
    y = graph.matmul(ta, tb).set_output(True)
    amax = graph.reduction(y, verglas.reduction_mode.AMAX).set_output(True).set_dim([1, 1, 1])
    a[:, live:] = 1000  # seen by none
    out, largest = Output((1, declared, n)), Output((1, 1, 1))
    graph.execute({ta: a[:, :live], tb: b, y: out.array[:, :live], amax: largest.array})
    exact = a[:, :live] @ b
    assert (out.array[:, :live] == exact).all()
    assert (out.array[:, live:].view(np.uint8) == POISON).all()
    assert largest.array.item() == np.abs(exact).max()


@pytest.mark.parametrize(
    "m,n,k,batch", [(1, 1, 1, 1), (3, 24, 16, 2), (64, 7, 16, 2), (64, 24, 5, 2), (64, 24, 16, 5), (90, 40, 33, 3)]
)
def test_every_extent_may_be_another(m, n, k, batch):
    graph, ta, tb, ty = one_matmul(integers((2, 64, 16)), integers((2, 16, 24)))
    a, b = integers((batch, m, k), 1), integers((batch, k, n), 2)
    out = Output((batch, m, n))
    graph.execute({ta: a, tb: b, ty: out.array})
    assert (out.array == a @ b).all()


@pytest.mark.parametrize("declared", [(1, 1, 8), (2, 3, 8), (1, 5, 1), (2, 1, 1), (1, 1, 1)])
@pytest.mark.parametrize("live", [(1, 40, 8), (1, 1, 64), (3, 1, 64), (3, 7, 1), (1, 1, 1), (2, 2, 9)])
@pytest.mark.parametrize("folded", [False, True])
def test_an_operand_of_the_epilogue_has_live_extents_where_some_of_them_are_1(declared, live, folded):
    """One plan for a row and for many: what has other axes than 1 than were declared is no other rank for that."""
    if declared[0] == 1:
        live = (1, *live[1:])
    k = 4
    graph = verglas.Graph(io_data_type="fp32")
    ta, tb, tx = (
        declare(graph, name, np.empty(shape, np.float32))
        for name, shape in [("a", (*declared[:2], k)), ("b", (declared[0], k, declared[2])), ("x", declared)]
    )
    y = graph.add(graph.matmul(ta, tb), tx).set_output(True)
    a, b, x = integers((*live[:2], k), 1), integers((live[0], k, live[2]), 2), integers(live, 3)
    if declared == (1, 1, 1):  # a scalar stays one, and several numbers are none
        graph.execute([a, b, x[:1, :1, :1], (out := Output(live)).array])
        assert (out.array == a @ b + x[0, 0, 0]).all()
        if x.size > 1:
            fresh = Output(live)
            assert refused("call.aux_extent", lambda: graph.execute([a, b, x, fresh.array]), fresh).got == f"shape {live}"
        return
    out = Output(live)
    graph.execute({ta: a, tb: b, tx: x.squeeze() if folded else x, y: out.array})
    assert (out.array == a @ b + x).all()


def test_an_average_counts_the_live_elements():
    a, b = integers((1, 8, 6), 1), integers((1, 6, 10), 2)
    graph = verglas.Graph(io_data_type="fp32")
    ta, tb = declare(graph, "a", a), declare(graph, "b", b)
    s = graph.reduction(graph.matmul(ta, tb), verglas.reduction_mode.AVG).set_output(True).set_dim([1, 1, 1])
    out = Output((1, 1, 1))
    graph.execute({ta: a[:, :4], tb: b, s: out.array})
    assert out.array.item() == pytest.approx((a[:, :4] @ b).mean(dtype=np.float64), rel=1e-6)


def test_cases_a_25_slices_that_cannot_be_flattened():
    rows = integers((2, 8, 64), 1)[:, 3:, :]
    qkv = integers((2, 5, 3 * 64), 2)
    b = integers((1, 64, 40), 3)
    for a in (rows, qkv[:, :, 64:128]):
        assert not a.flags.c_contiguous
        graph, ta, tb, ty = one_matmul(np.ascontiguousarray(a), b)
        found, same = Output((2, 5, 40)), Output((2, 5, 40))
        graph.execute({ta: a, tb: b, ty: found.array})
        graph.execute({ta: np.ascontiguousarray(a), tb: b, ty: same.array})
        assert (found.array == a @ b).all()
        assert (found.array == same.array).all()


def with_strides(values, strides):
    """The same memory under other strides, which only unit axes and empty arrays allow."""
    return np.lib.stride_tricks.as_strided(values, values.shape, [step * values.itemsize for step in strides])


@pytest.mark.parametrize("declared", [(64, 64, 1), (7, 13, 1)])
@pytest.mark.parametrize("given", [(64, 64, 1), (7, 13, 1), (0, 0, 1), (1, 1, 1)])
def test_cases_a_26_strides_of_unit_axes_mean_nothing(declared, given):
    a, b = integers((1, 1, 64), 1), integers((1, 64, 72), 2)
    graph, ta, tb, ty = one_matmul(with_strides(a, declared), b)
    out = Output((1, 1, 72))
    graph.execute({ta: with_strides(a, given), tb: b, ty: with_strides(out.array, (5, 3, 1))})
    assert (out.array == a @ b).all()


@pytest.mark.parametrize("strides", [(64, 1, 1), (64, 1, 64), (9, 1, 7)])
def test_cases_a_26_a_single_column(strides):
    a, b = integers((1, 4, 64), 1), with_strides(integers((1, 64, 1), 2), strides)
    graph, ta, tb, ty = one_matmul(a, np.ascontiguousarray(b))
    out = Output((1, 4, 1))
    graph.execute({ta: a, tb: b, ty: out.array})
    assert (out.array == a @ b).all()


@pytest.mark.parametrize("strides", [(0, 0, 0), (0, 4, 1), (16, 4, 1)])
def test_cases_a_26_empty_arrays(strides):
    graph, ta, tb, ty = one_matmul(integers((2, 4, 4)), integers((2, 4, 4)))
    a, y = (with_strides(np.zeros((2, 0, 4), np.float32), strides) for _ in range(2))
    graph.execute({ta: a, tb: np.zeros((2, 4, 4), np.float32), ty: y})


def test_a_batch_is_the_same_everywhere():
    graph, ta, tb, ty = one_matmul(integers((2, 4, 6)), integers((2, 6, 5)))
    a, b = integers((3, 4, 6), 1), integers((3, 6, 5), 2)
    out = Output((3, 4, 5))
    with pytest.raises(verglas.InvalidCallError) as caught:
        graph.execute({ta: a, tb: b[:2], ty: out.array})
    assert caught.value.rule == "call.batch"
    assert out.untouched()
    graph.execute({ta: a, tb: b, ty: out.array})
    assert (out.array == a @ b).all()


def test_eight_threads_share_one_plan():
    graph = verglas.Graph(io_data_type="fp32")
    shape_a, shape_b = (2, 33, 40), (2, 40, 50)
    ta, tb = declare(graph, "a", integers(shape_a)), declare(graph, "b", integers(shape_b))
    scale = graph.tensor(name="scale", dim=[1, 1, 1], stride=[1, 1, 1], is_pass_by_value=True)
    y = graph.relu(graph.mul(graph.matmul(ta, tb), scale)).set_output(True)
    graph.build()
    wrong, start = [], threading.Barrier(8)

    def work(seed):
        a, b = integers(shape_a, seed), strided(integers(shape_b, seed + 100), [4000, 1, 41])
        exact = np.maximum(a.astype(np.float64) @ b * seed, 0)
        out = Output((2, 33, 50))
        start.wait()
        for _ in range(30):
            out.array[...] = np.nan
            graph.execute({ta: a, "b": b, scale: seed, y: out.array})
            if not (out.array == exact).all() or not out.gaps_untouched():
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
