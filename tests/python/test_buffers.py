"""What is read off an array: type, extents, strides, device and permission, from every kind of producer."""

import array
import ctypes
import importlib.util
import sys

import ml_dtypes
import numpy as np
import pytest
import verglas
from support import BF16, Output, address, declare, integers, lacking, one_matmul, refused, strided

A, B = integers((1, 4, 6), 1), integers((1, 6, 5), 2)
EXACT = A @ B


@pytest.fixture
def out():
    return Output((1, 4, 5))


@pytest.fixture
def plain():
    return one_matmul(A, B)


class Dlpack:
    """A foreign array: nothing but DLPack, of the version that it is told to speak."""

    def __init__(self, values, versioned=True, device=None):
        self.values, self.versioned, self.device = values, versioned, device
        self.alive = 0

    def __dlpack_device__(self):
        return self.device or (1, 0)

    def __dlpack__(self, **options):
        if not self.versioned:
            if "max_version" in options:
                raise TypeError("unexpected keyword argument 'max_version'")
            return self.values.__dlpack__()
        assert options["max_version"][0] >= 1
        return self.values.__dlpack__(max_version=options["max_version"])


class Torch(Dlpack):
    """What torch's tensors add: autograd's flag and views that are not in memory yet."""

    def __init__(self, values, requires_grad=False, conj=False, neg=False):
        super().__init__(values)
        self.requires_grad, self.conj, self.neg = requires_grad, conj, neg

    def is_conj(self):
        return self.conj

    def is_neg(self):
        return self.neg

    def detach(self):
        return Torch(self.values)

    def __dlpack__(self, **options):
        if self.requires_grad or self.conj or self.neg:
            raise BufferError("cannot export")
        return super().__dlpack__(**options)


@pytest.mark.parametrize(
    "kind", [np.float32, np.float16, BF16, np.int8, np.uint8, np.int32, np.bool_], ids=lambda kind: np.dtype(kind).name
)
def test_every_type_is_read_off_numpy(kind, out):
    """As an epilogue operand, which takes every type."""
    operand = integers((1, 4, 5), 3, low=0, high=2).astype(kind)
    graph = verglas.Graph(io_data_type="fp32")
    a, b, c = declare(graph, "a", A), declare(graph, "b", B), declare(graph, "c", operand)
    y = graph.add(graph.matmul(a, b), c).set_output(True)
    graph.execute({a: A, b: B, c: operand, y: out.array})
    assert (out.array == EXACT + operand.astype(np.float32)).all()


@pytest.mark.parametrize("kind", [np.float64, np.complex64, np.int16, np.dtype(">f4"), np.dtype("S4"), ml_dtypes.int4, "M8[s]"])
def test_other_types_are_refused_by_name(kind, plain, out):
    graph, a, b, y = plain
    error = refused("call.dtype", lambda: graph.execute({a: A, b: np.zeros(B.shape, kind), y: out.array}), out)
    assert error.got == str(np.dtype(kind))
    assert error.want == "fp32 as declared"
    error = refused("call.dtype", lambda: graph.execute({a: A, b: B.astype(np.float16), y: out.array}), out)
    assert error.got == "fp16"


@pytest.mark.parametrize("versioned", [True, False])
def test_dlpack_of_both_versions(versioned, plain, out):
    graph, a, b, y = plain
    graph.execute({a: Dlpack(A, versioned), b: Dlpack(B, versioned), y: Dlpack(out.array, versioned)})
    assert (out.array == EXACT).all()
    padded = strided(B, [100, 9, 1])
    out.array[...] = 0
    graph.execute({a: A, b: Dlpack(padded, versioned), y: out.array})
    assert (out.array == EXACT).all()


def test_dlpack_keeps_the_memory_until_the_call_is_over(plain, out):
    graph, a, b, y = plain

    class Once(Dlpack):
        def __dlpack__(self, **options):
            return self.values.copy().__dlpack__(**options)

    for _ in range(20):
        graph.execute({a: Once(A), b: Once(B), y: out.array})
        assert (out.array == EXACT).all()


def test_dlpack_that_may_not_be_written_is_no_output(plain, out):
    graph, a, b, y = plain
    sealed = out.array.view()
    sealed.flags.writeable = False
    refused("call.read_only", lambda: graph.execute({a: A, b: B, y: Dlpack(sealed)}), out)
    graph.execute({a: A, b: B, y: Dlpack(out.array)})


def test_dlpack_failures_come_through(plain, out):
    graph, a, b, y = plain

    class Broken(Dlpack):
        def __dlpack__(self, **options):
            raise ZeroDivisionError("inside")

    class Empty(Dlpack):
        def __dlpack__(self, **options):
            return None

    with pytest.raises(ZeroDivisionError, match="inside"):
        graph.execute({a: A, b: Broken(B), y: out.array})
    refused("pack.object", lambda: graph.execute({a: A, b: Empty(B), y: out.array}), out)
    refused("call.dtype", lambda: graph.execute({a: A, b: Dlpack(B.astype(np.float64)), y: out.array}), out)
    assert out.untouched()


def test_a_masked_array_is_refused(plain, out):
    graph, a, b, y = plain
    masked = np.ma.masked_array(B, mask=B > 0)
    error = refused("pack.object", lambda: graph.execute({a: A, b: masked, y: out.array}), out)
    assert error.got == "a masked array"
    graph.execute({a: A, b: masked.filled(0), y: out.array})
    assert np.array_equal(out.array, A @ np.where(B > 0, 0, B))


def test_other_subclasses_are_read_as_arrays(plain, out):
    graph, a, b, y = plain
    graph.execute({a: A, b: B.view(type("Mine", (np.ndarray,), {})), y: out.array})
    assert np.array_equal(out.array, EXACT)


def test_memory_of_a_gpu_is_refused_by_the_cpu(plain, out):
    graph, a, b, y = plain

    class OnGpu:
        def __init__(self):
            self.__cuda_array_interface__ = {"shape": B.shape, "typestr": "<f4", "data": (address(B), False), "version": 3}

    error = refused("call.operand_device", lambda: graph.execute({a: A, b: OnGpu(), y: out.array}), out)
    assert (error.got, error.want) == ("memory on cuda:0", "memory on the host")


def test_objects_with_an_array_interface(plain, out):
    graph, a, b, y = plain

    class Foreign:
        def __init__(self, values):
            self.values = values
            self.__array_interface__ = values.__array_interface__

    graph.execute({a: Foreign(A), b: Foreign(strided(B, [100, 9, 1])), y: Foreign(out.array)})
    assert (out.array == EXACT).all()


@pytest.mark.parametrize("interface", ["__array_interface__", "__cuda_array_interface__"])
@pytest.mark.parametrize(
    ("field", "value", "got"),
    [
        ("data", (-1, False), "address -1"),
        ("data", (0,), "without an address"),
        ("shape", (1, 2.0, 4), "extent 2.0"),
        ("shape", (1, 2**70, 4), "extent 1180591620717411303424"),
        ("shape", [1, 3, 4], "shape [1, 3, 4]"),
        ("strides", (4, 4), "2 strides"),
        ("strides", (4, 4, "4"), "stride '4'"),
        ("typestr", 4, "typestr 4"),
        ("mask", np.zeros(B.shape, bool), "a mask"),
    ],
)
def test_array_interfaces_that_are_none_are_refused_by_operand(plain, out, interface, field, value, got):
    graph, a, b, y = plain
    fields = {**B.__array_interface__, field: value}
    thing = type("Foreign", (), {interface: fields})()
    error = refused("pack.object", lambda: graph.execute({a: A, b: thing, y: out.array}), out, TypeError)
    assert error.operand == "b 'b'" and got in error.got


def test_an_attribute_that_fails_says_why(plain, out):
    graph, a, b, y = plain

    class Foreign:
        @property
        def __array_interface__(self):
            raise ZeroDivisionError("inside")

    with pytest.raises(ZeroDivisionError, match="inside"):
        graph.execute({a: A, b: Foreign(), y: out.array})
    assert out.untouched()


def test_objects_with_the_buffer_protocol(plain, out):
    graph, a, b, y = plain
    graph.execute({a: memoryview(A), b: array.array("f", B.reshape(-1).tolist()), y: memoryview(out.array)})
    assert (out.array == EXACT).all()
    out = Output((1, 4, 5))
    refused("call.read_only", lambda: graph.execute({a: A, b: B, y: bytes(80)}), out)
    refused("call.dtype", lambda: graph.execute({a: A, b: array.array("d", [0.0] * 30), y: out.array}), out)


def test_addresses_are_what_the_graph_declares(plain, out):
    graph, a, b, y = plain
    graph.execute({a: address(A), b: address(B), y: address(out.array)})
    assert (out.array == EXACT).all()
    out = Output((1, 4, 5))
    refused("call.null", lambda: graph.execute({a: 0, b: address(B), y: out.array}), out)


def test_read_only_arrays_are_inputs_only(plain, out):
    graph, a, b, y = plain
    a_sealed, y_sealed = A.copy(), out.array.view()
    a_sealed.flags.writeable = y_sealed.flags.writeable = False
    error = refused("call.read_only", lambda: graph.execute({a: a_sealed, b: B, y: y_sealed}), out)
    assert error.operand == "output 'y'"
    graph.execute({a: a_sealed, b: B, y: out.array})
    assert (out.array == EXACT).all()


def test_views_that_leave_their_memory_are_refused(plain):
    graph, a, b, y = plain
    memory = np.zeros(30, np.float32)
    inside = np.lib.stride_tricks.as_strided(memory, (1, 6, 5), (0, 20, 4))
    outside = np.lib.stride_tricks.as_strided(memory, (1, 6, 5), (0, 24, 4))
    out = Output((1, 4, 5))
    error = refused("call.span", lambda: graph.execute({a: A, b: outside, y: out.array}), out)
    assert error.got == "a buffer of 120 bytes"
    graph.execute({a: A, b: inside, y: out.array})
    assert (out.array == 0).all()


def test_negative_strides_are_refused(plain, out):
    graph, a, b, y = plain
    refused("call.stride", lambda: graph.execute({a: A[:, ::-1], b: B, y: out.array}), out)
    refused("call.stride", lambda: graph.execute({a: A, b: B, y: out.array[:, ::-1]}), out)
    graph.execute({a: np.ascontiguousarray(A[:, ::-1]), b: B, y: out.array})
    assert (out.array == EXACT[:, ::-1]).all()


def test_strides_that_are_no_whole_elements_are_refused(plain, out):
    graph, a, b, y = plain
    records = np.zeros((1, 6, 5), np.dtype([("value", np.float32), ("tag", np.uint8)]))
    refused("pack.stride", lambda: graph.execute({a: A, b: records["value"], y: out.array}), out)
    aligned = np.zeros((1, 6, 5), np.dtype([("value", np.float32), ("tag", np.float32)]))
    aligned["value"] = B
    graph.execute({a: A, b: aligned["value"], y: out.array})
    assert (out.array == EXACT).all()


def test_subclasses_of_numpy_arrays_are_arrays(plain, out, tmp_path):
    graph, a, b, y = plain
    file = np.memmap(tmp_path / "b", np.float32, "w+", shape=B.shape)
    file[...] = B
    graph.execute({a: A, b: file, y: out.array})
    assert (out.array == EXACT).all()


def test_ranks_beyond_eight_are_refused(plain, out):
    graph, a, b, y = plain
    refused("call.rank", lambda: graph.execute({a: A, b: B.reshape((1,) * 8 + (6, 5)), y: out.array}), out)
    graph.execute({a: A, b: B.reshape((1,) * 6 + (6, 5)), y: out.array})


def test_cases_a_65_parameters_and_lazy_views(plain, out):
    graph, a, b, y = plain
    graph.execute({a: Torch(A), b: Torch(B, requires_grad=True), y: Torch(out.array)})
    assert (out.array == EXACT).all()
    out = Output((1, 4, 5))
    error = refused("pack.lazy_view", lambda: graph.execute({a: Torch(A, neg=True), b: B, y: out.array}), out)
    assert "resolve_neg()" in error.want
    error = refused("pack.lazy_view", lambda: graph.execute({a: Torch(A, conj=True), b: B, y: out.array}), out)
    assert "resolve_conj()" in error.want
    refused("pack.recorded_output", lambda: graph.execute({a: A, b: B, y: Torch(out.array, requires_grad=True)}), out)


class OnAStream(Dlpack):
    """Says that it lies on a GPU, and keeps what it is told about streams; its memory is the host's."""

    def __init__(self, values):
        super().__init__(values, device=(2, 0))
        self.told = []

    def __dlpack__(self, **options):
        self.told.append(options.pop("stream"))
        return super().__dlpack__(**options)


class Stream:
    def __init__(self, handle):
        self.cuda_stream = handle


@pytest.mark.parametrize(
    "given,told", [(None, 1), (0, 1), (1, 1), (2, 2), (0x7F0010, 0x7F0010), (Stream(0), 1), (Stream(99), 99)]
)
def test_cases_a_47_a_producer_is_told_the_stream_of_the_call(given, told, plain, out):
    graph, a, b, y = plain
    for call in (
        lambda pack, **more: graph.execute(pack, **more),
        lambda pack, **more: graph.plan(*pack.values(), **more),
    ):
        producer, result = OnAStream(A), OnAStream(out.array)
        call({a: producer, b: B, y: result}, stream=given)
        assert producer.told == result.told == [told]
        assert (out.array == EXACT).all()


def test_cases_a_47_a_bound_call_tells_the_stream_of_each_launch(plain, out):
    graph, _, _, _ = plain
    producer = OnAStream(A)
    call = graph.plan.bind(producer, B, out.array)
    assert producer.told == [1]
    call()
    call(stream=None)
    assert producer.told == [1]
    call(stream=99)
    assert producer.told.pop() == 99
    call.set("a", B.reshape(1, 5, 6)[:, :4])
    call.set("a", producer)
    assert producer.told == [1, 1]


def test_cases_a_49_an_operand_crosses_once_a_call(plain, out):
    graph = plain[0]
    all_of_them = [OnAStream(A), OnAStream(B), OnAStream(out.array)]
    for calls in range(1, 4):
        graph.execute(all_of_them)
        assert [len(one.told) for one in all_of_them] == [calls] * 3


def wanted(name):
    if importlib.util.find_spec(name) is None:
        lacking(name, f"{name} is missing")
    return importlib.import_module(name)


def test_torch_tensors(plain, out):
    torch = wanted("torch")
    graph, a, b, y = plain
    result = torch.empty(1, 4, 5)
    weight = torch.nn.Parameter(torch.tensor(B.tolist()))
    graph.execute({a: torch.tensor(A.tolist()), b: weight, y: result})
    assert result.tolist() == EXACT.tolist()
    refused("pack.lazy_view", lambda: graph.execute({a: torch._neg_view(torch.tensor(A.tolist())), b: B, y: out.array}), out)
    refused("pack.recorded_output", lambda: graph.execute({a: A, b: B, y: torch.empty(1, 4, 5, requires_grad=True)}), out)
    assert "jax" not in sys.modules


def test_jax_arrays(plain, out):
    jnp = wanted("jax.numpy" if importlib.util.find_spec("jax") else "jax")
    graph, a, b, y = plain
    graph.execute({a: jnp.asarray(A), b: jnp.asarray(B), y: out.array})
    assert (out.array == EXACT).all()
    untouched = Output((1, 4, 5))
    refused("call.read_only", lambda: graph.execute({a: A, b: B, y: jnp.zeros((1, 4, 5), jnp.float32)}), untouched)


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16", "int8"])
def test_cases_a_64_jax_arrays_of_every_type_and_transposed(name):
    jax = wanted("jax")
    kind = getattr(jax.numpy, name)
    a, b = (
        integers((2, 6, 4), 1, np.int32),
        integers((2, 5, 6), 2, np.int32),
    )  # a is transposed below, B is (N, K) as kernels have it
    ours = jax.numpy.asarray(a, kind).transpose(0, 2, 1)
    graph = verglas.Graph(
        io_data_type="int8" if name == "int8" else name, compute_data_type="int32" if name == "int8" else "fp32"
    )
    ta = graph.tensor_like(ours, name="a")
    tb = graph.tensor(name="b", dim=(2, 6, 5), stride=(30, 1, 6))
    y = graph.matmul(ta, tb).set_output(True).set_data_type("int32" if name == "int8" else "fp32")
    result = np.zeros((2, 4, 5), np.int32 if name == "int8" else np.float32)
    graph.execute({ta: ours, tb: jax.numpy.asarray(b, kind), y: result})
    assert (result == a.transpose(0, 2, 1) @ b.transpose(0, 2, 1)).all()


def test_jax_arrays_that_are_still_being_computed():
    jax = wanted("jax")
    graph, a, b, y = one_matmul(np.zeros((1, 300, 300), np.float32), np.zeros((1, 300, 300), np.float32))
    grow = jax.jit(lambda x: jax.lax.fori_loop(0, 200, lambda _, v: v @ v * 0 + x, x))
    values = integers((1, 300, 300), 5)
    out = Output((1, 300, 300))
    graph.execute({a: grow(values), b: values, y: out.array})
    assert (out.array == values @ values).all()


def test_tensor_like_takes_type_extents_and_strides():
    graph = verglas.Graph()
    for made in (strided(integers((2, 3, 4), 1, BF16), [50, 7, 1]), integers((3,), 1, np.int8)):
        t = graph.tensor_like(made, name="t")
        assert t.get_dim() == list(made.shape)
        assert t.get_stride() == [step // made.itemsize for step in made.strides]
        assert t.get_data_type() == getattr(
            verglas.data_type, {"bfloat16": "BFLOAT16", "int8": "INT8"}.get(made.dtype.name, "FLOAT")
        )
        copy = graph.tensor_like(t)
        assert (copy.get_dim(), copy.get_stride(), copy.get_data_type()) == (t.get_dim(), t.get_stride(), t.get_data_type())
        assert copy.get_uid() != t.get_uid()
        assert copy != t
    for bad in (object(), 4096):
        with pytest.raises(verglas.NotABufferError):
            graph.tensor_like(bad)
    with pytest.raises(verglas.InvalidCallError, match="float64"):
        graph.tensor_like(np.zeros(3))


def test_tensor_like_of_an_array_without_axes_is_a_scalar(out):
    graph = verglas.Graph(io_data_type="fp32")
    alpha = np.full((), 2, np.float32)
    a, b, s = (graph.tensor_like(x) for x in (A, B, alpha))
    assert (s.get_dim(), s.get_stride()) == ([1], [1])
    y = graph.mul(graph.matmul(a, b), s).set_output(True)
    graph.execute({a: A, b: B, s: alpha, y: out.array})
    assert (out.array == 2 * EXACT).all()


def test_zero_extents_are_calls_without_elements(plain):
    graph, a, b, y = plain
    out = Output((1, 4, 5))
    graph.execute({a: np.zeros((1, 4, 0), np.float32), b: np.zeros((1, 0, 5), np.float32), y: out.array})
    assert (out.array == 0).all()
    out = Output((1, 4, 5))
    graph.execute({a: A[:, :0], b: B, y: out.array[:, :0]})
    assert out.untouched()


def test_reference_counts_are_as_before(plain, out):
    graph, a, b, y = plain
    tensors = [A, B, out.array, Dlpack(A)]
    before = [sys.getrefcount(t) for t in tensors]
    for _ in range(50):
        graph.execute({a: tensors[3], b: B, y: out.array})
        graph.execute([A, B, out.array])
        with pytest.raises(verglas.Error):
            graph.execute({a: tensors[3], b: B, y: A})
        with pytest.raises(verglas.Error):
            graph.execute({a: A, b: B})
    assert [sys.getrefcount(t) for t in tensors] == before


def test_ctypes_arrays_by_their_buffer(plain, out):
    graph, a, b, y = plain
    memory = (ctypes.c_float * 30)(*B.reshape(-1).tolist())
    graph.execute({a: A, b: memory, y: out.array})
    assert (out.array == EXACT).all()


def test_what_a_producer_says_against_its_export_is_a_refusal():
    class Unwilling:
        shape = (1,)

        def __dlpack__(self, **_):
            raise BufferError("only on Sundays\nand not then")

    graph = verglas.Graph(io_data_type="fp32")
    x = graph.tensor(name="x", dim=[1, 2, 2], stride=[4, 2, 1])
    y = graph.matmul(x, x).set_output(True)
    with pytest.raises(verglas.NotABufferError, match=r"pack\.object.*'x': got a Unwilling, not a concrete array") as caught:
        graph.execute({x: Unwilling(), y: np.empty((1, 2, 2), np.float32)})
    assert caught.value.got.endswith("BufferError: only on Sundays") and isinstance(caught.value, ValueError)
