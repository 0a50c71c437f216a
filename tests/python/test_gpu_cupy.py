"""Plans of a real GPU on CuPy arrays: values, layouts, streams, and arrays of two producers in one call."""

import importlib
import os

import pytest
import verglas
from support import lacking

required = os.environ.get("VERGLAS_REQUIRE", "").split(",")
cupy = importlib.import_module("cupy") if "cupy" in required else pytest.importorskip("cupy")
try:
    capability = cupy.cuda.Device(0).compute_capability
except cupy.cuda.runtime.CUDARuntimeError as error:
    lacking("gpu", f"CuPy sees no device: {error}", module=True)
if capability != "90":
    lacking("gpu", f"CuPy's device has compute capability {capability}, not 90", module=True)

M, N, K = 130, 200, 72


def plan_of():
    graph = verglas.Graph(io_data_type="fp16", device="cuda:0")
    a = graph.tensor(name="a", dim=(2, M, K), stride=(M * K, K, 1))
    b = graph.tensor(name="b", dim=(2, K, N), stride=(K * N, 1, K))
    graph.matmul(a, b).set_output(True).set_name("d")
    graph.build()
    assert graph.plan.engine == "sm90"
    return graph.plan


def operands(seed=0):
    random = cupy.random.RandomState(seed)
    a = random.randint(-3, 4, (2, M, K)).astype(cupy.float16)
    b = random.randint(-3, 4, (2, N, K)).astype(cupy.float16)
    return a, b, cupy.full((2, M, N), cupy.nan, cupy.float16)


def right(a, b):
    return (a.astype(cupy.float64) @ b.transpose(0, 2, 1).astype(cupy.float64)).astype(cupy.float16)


class Interface:
    """Nothing but __cuda_array_interface__."""

    def __init__(self, array):
        self.__cuda_array_interface__ = array.__cuda_array_interface__


@pytest.mark.parametrize("wrap", [lambda x: x, Interface, lambda x: x.data.ptr], ids=["dlpack", "interface", "address"])
def test_a_product_of_integers_is_exact(wrap):
    plan = plan_of()
    a, b, d = operands()
    # An address is what the graph declares; B as kernels allocate it is the same memory.
    plan(wrap(a), wrap(b), wrap(d))
    assert (d == right(a, b)).all()


def test_views_with_gaps_are_read_where_they_lie():
    plan = plan_of()
    wide = cupy.random.RandomState(3).randint(-3, 4, (2, M, 3 * K)).astype(cupy.float16)
    _, b, d = operands()
    plan(wide[:, :, K : 2 * K], b, d)
    assert (d == right(wide[:, :, K : 2 * K], b)).all()


def test_overrides_give_the_live_extents_of_addresses():
    plan = plan_of()
    a, b, d = operands()
    uids = [o.uid for o in plan.operands()]
    plan.execute(
        [a.data.ptr, b.data.ptr, d.data.ptr],
        override_uids=[uids[0], uids[2]],
        override_shapes=[(2, 33, K), (2, 33, N)],
        override_strides=[(M * K, K, 1), (M * N, N, 1)],
    )
    assert (d[:, :33] == right(a, b)[:, :33]).all()
    assert cupy.isnan(d[:, 33:]).all()


def test_cases_a_47_work_of_another_stream_comes_first():
    plan = plan_of()
    a, b, d = operands()
    plan(a, b, d)
    side, other = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
    late = cupy.zeros_like(a)
    big = cupy.ones((4096, 4096), cupy.float32)
    cupy.cuda.Device().synchronize()
    with side:
        for _ in range(40):
            big = big @ big * 0
        late[...] = a
        # CuPy's current stream is `side`, the call's is another: it has to wait for what side has still to do.
        plan(late, b, d, stream=other.ptr)
    other.synchronize()
    assert (d == right(a, b)).all()


def test_a_host_array_is_refused_by_name():
    plan = plan_of()
    a, b, d = operands()
    with pytest.raises(verglas.Error, match=r"\[call.operand_device\] b 'b': got memory on the host"):
        plan(a, b.get(), d)
