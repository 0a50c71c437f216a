"""plan(...), bound calls, and tensors that are read by DLPack's table of C functions."""

import ctypes
import threading

import numpy as np
import pytest
import verglas
from support import Output, address, integers, one_matmul

A, B = integers((1, 4, 6), 1), integers((1, 6, 5), 2)
EXACT = A @ B


class DlTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


RELEASE = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)


class Managed(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("owner", ctypes.c_void_p),
        ("release", RELEASE),
        ("flags", ctypes.c_uint64),
        ("tensor", DlTensor),
    ]


TENSOR_FROM = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(DlTensor))
MANAGED_FROM = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(ctypes.POINTER(Managed)))


class Table(ctypes.Structure):
    pass


Table._fields_ = [
    ("major", ctypes.c_uint32),
    ("minor", ctypes.c_uint32),
    ("previous", ctypes.POINTER(Table)),
    ("allocate", ctypes.c_void_p),
    ("managed_from", MANAGED_FROM),
    ("managed_to", ctypes.c_void_p),
    ("tensor_from", TENSOR_FROM),
    ("current_stream", ctypes.c_void_p),
]
KEPT = []  # tables live as long as the process


def fill(tensor, array):
    shape = (ctypes.c_int64 * array.ndim)(*array.shape)
    strides = (ctypes.c_int64 * array.ndim)(*(step // array.itemsize for step in array.strides))
    KEPT.append((shape, strides))
    tensor.data, tensor.device_type, tensor.device_id = address(array) - 8, 1, 0
    tensor.rank, tensor.code, tensor.bits, tensor.lanes = array.ndim, 2, 32, 1
    tensor.shape, tensor.strides, tensor.byte_offset = shape, strides, 8


def tensor_type(major=1, managed_only=False, fails=False, read_only=False, older=None, **attributes):
    """A type of tensors around NumPy arrays that carries a table; counts reads and what is not released."""

    class Foreign:
        reads = alive = 0

        def __init__(self, array):
            self.array = array

    def tensor_from(tensor, out):
        Foreign.reads += 1
        if fails:
            return -1
        fill(out[0], tensor.array)
        return 0

    def managed_from(tensor, out):
        Foreign.reads += 1
        managed = Managed(major=1, minor=3, release=release, flags=1 if read_only else 0)
        fill(managed.tensor, tensor.array)
        KEPT.append(managed)
        Foreign.alive += 1
        out[0] = ctypes.pointer(managed)
        return 0

    def let_go(_):
        Foreign.alive -= 1

    release = RELEASE(let_go)
    no_tensor = TENSOR_FROM(0)
    table = Table(
        major=major,
        minor=3,
        managed_from=MANAGED_FROM(managed_from),
        tensor_from=no_tensor if managed_only else TENSOR_FROM(tensor_from),
    )
    if older is not None:
        table.previous = ctypes.pointer(older)
    KEPT.append((table, release, Foreign))
    make = ctypes.pythonapi.PyCapsule_New
    make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    Foreign.__dlpack_c_exchange_api__ = make(ctypes.addressof(table), b"dlpack_exchange_api", None)
    Foreign.table = table
    for name, value in attributes.items():
        setattr(Foreign, name, value)
    return Foreign


def refused(rule):
    return pytest.raises(verglas.Error, match=rf"\[{rule}\]")


@pytest.fixture
def out():
    return Output((1, 4, 5))


@pytest.fixture
def plan():
    return one_matmul(A, B)[0].plan


def is_exact(out):
    return np.array_equal(out.array, EXACT) and out.gaps_untouched()


def test_call_takes_buffers_in_order(plan, out):
    assert plan(A, B, out.array) is None
    assert is_exact(out)


def test_call_takes_stream_and_workspace_by_name(plan, out):
    plan(A, B, out.array, stream=0, workspace=None)
    assert is_exact(out)
    with pytest.raises(TypeError, match="stream and workspace"):
        plan(A, B, out.array, steam=0)
    with refused(r"pack\.stream"):
        plan(A, B, out.array, stream="main")


def test_refused_call_writes_nothing(plan, out):
    with refused(r"call\.operand_count"):
        plan(A, B)
    with refused(r"pack\.missing"):
        plan(A, None, out.array)
    with refused(r"call\.dtype"):
        plan(A.astype(np.float16), B, out.array)
    with refused(r"pack\.object"):
        plan(object(), B, out.array)
    assert out.untouched()


def test_plans_and_bound_calls_are_not_made_by_hand(plan):
    for kind in (verglas.Plan, verglas.BoundCall):
        with pytest.raises(TypeError):
            kind()
        with pytest.raises(TypeError):
            kind.__new__(kind)


def test_bound_call_launches_again_with_what_the_buffers_hold(plan, out):
    a = A.copy()
    call = plan.bind(a, B, out.array)
    call()
    assert is_exact(out)
    a *= 2
    call(stream=0)
    assert np.array_equal(out.array, 2 * EXACT)


def test_bound_call_changes_one_buffer(plan, out):
    call = plan.bind(A, B, np.zeros((1, 4, 5), np.float32))
    call.set(2, out.array)
    call()
    assert is_exact(out)
    call.set("a", 3 * A)  # nothing else holds it
    call()
    assert np.array_equal(out.array, 3 * EXACT)


@pytest.mark.parametrize("operand", [True, False, -1, 3, 2**70, 0.0, "c", "a\0", "\ud800"])
def test_bound_call_changes_no_operand_that_is_none(plan, operand):
    out = Output((1, 4, 5))
    call = plan.bind(A, B, out.array)
    with refused(r"pack\.unknown"):
        call.set(operand, B)
    call()
    assert is_exact(out)


def test_bound_call_takes_other_extents(plan):
    call = plan.bind(A, B, np.zeros((1, 4, 5), np.float32))
    two = Output((1, 2, 5))
    call.set(0, A[:, :2])
    with refused(r"call\.output_extent"):
        call()
    call.set(2, two.array)
    call()
    assert np.array_equal(two.array, EXACT[:, :2])


def test_bound_call_refuses_and_stays_as_it_was(plan, out):
    call = plan.bind(A, B, out.array)
    with pytest.raises(TypeError):
        call(A)
    for operand in (3, -1, "z"):
        with refused(r"pack\.unknown"):
            call.set(operand, A)
    with refused(r"pack\.object"):
        call.set(0, object())
    with refused(r"pack\.missing"):
        call.set(0, None)
    with refused(r"call\.operand_count"):
        plan.bind(A, B)
    assert out.untouched()
    call()
    assert is_exact(out)


def test_one_plan_is_called_by_many_threads(plan):
    outs = [Output((1, 4, 5)) for _ in range(8)]

    def work(out):
        for _ in range(50):
            plan(A, B, out.array)

    threads = [threading.Thread(target=work, args=(out,)) for out in outs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(is_exact(out) for out in outs)


def test_tensors_are_read_by_the_table_of_their_type(plan, out):
    kind = tensor_type()
    plan(kind(A), kind(B), kind(out.array))
    assert kind.reads == 3
    assert is_exact(out)


def test_table_serves_every_way_to_execute(plan, out):
    kind = tensor_type()
    plan.execute([kind(A), B, out.array])
    plan.execute({"a": kind(A), "b": B, "y": out.array})
    plan.bind(kind(A), B, out.array)()
    assert kind.reads == 3
    assert is_exact(out)


def test_managed_form_is_released_after_the_call(plan, out):
    kind = tensor_type(managed_only=True)
    plan(kind(A), kind(B), kind(out.array))
    assert (kind.reads, kind.alive) == (3, 0)
    assert is_exact(out)


def test_read_only_tensor_is_no_output(plan, out):
    kind = tensor_type(managed_only=True, read_only=True)
    with refused(r"call\.read_only"):
        plan(kind(A), kind(B), kind(out.array))
    assert kind.alive == 0
    assert out.untouched()


def test_table_of_another_version_is_passed_over_for_an_older_one(plan, out):
    unknown = tensor_type(major=2)
    with refused(r"pack\.object"):  # it has no other protocol
        plan(unknown(A), B, out.array)
    assert unknown.reads == 0
    older = tensor_type()
    newer = tensor_type(major=2, older=older.table)
    plan(newer(A), B, out.array)
    assert (older.reads, newer.reads) == (1, 0)
    assert is_exact(out)


def test_tensor_that_the_table_refuses_is_asked_by_its_protocol(plan, out):
    kind = tensor_type(
        fails=True,
        __dlpack__=lambda self, **options: self.array.__dlpack__(max_version=options["max_version"]),
        __dlpack_device__=lambda self: (1, 0),
    )
    plan(kind(A), B, out.array)
    assert kind.reads == 1
    assert is_exact(out)


def test_lazy_and_recorded_tensors_are_refused(plan, out):
    lazy = tensor_type(is_neg=lambda self: True)
    with refused(r"pack\.lazy_view"):
        plan(lazy(A), B, out.array)
    recorded = tensor_type(is_neg=lambda self: False, requires_grad=True)
    with refused(r"pack\.recorded_output"):
        plan(A, B, recorded(out.array))
    assert out.untouched()
    plan(recorded(A), B, out.array)
    assert is_exact(out)
