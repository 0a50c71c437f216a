"""What the tests of graphs share: exact data, poisoned outputs between guards, and declarations made from arrays."""

import os

import ml_dtypes
import numpy as np
import pytest
import verglas

BF16 = ml_dtypes.bfloat16
POISON, GUARD = 0xA5, 64  # guard bytes on each side


def lacking(name, reason, module=False):
    """Skips the test, or a whole module, for want of something; fails it where VERGLAS_REQUIRE names that."""
    if name in os.environ.get("VERGLAS_REQUIRE", "").split(","):
        pytest.fail(reason)
    pytest.skip(reason, allow_module_level=module)


def integers(shape, seed=0, dtype=np.float32, low=-3, high=4):
    """Small integers: every order of summation is exact."""
    return np.random.default_rng(seed).integers(low, high, shape).astype(dtype)


def declare(graph, name, array, **options):
    """An input like the array, written with the words of cuDNN's scripts."""
    stride = [step // array.itemsize for step in array.strides]
    return graph.tensor(name=name, dim=array.shape, stride=stride, data_type=array.dtype, **options)


def strided(array, strides):
    """A copy of the array with these strides, in elements; what lies between its elements is poison."""
    reach = 1 + sum((extent - 1) * step for extent, step in zip(array.shape, strides, strict=True))
    memory = np.frombuffer(bytearray([POISON]) * (reach * array.itemsize), array.dtype)
    view = np.lib.stride_tricks.as_strided(memory, array.shape, [step * array.itemsize for step in strides])
    view[...] = array
    return view


class Output:
    """A poisoned array of this shape, with strides in elements, between guard bytes."""

    def __init__(self, shape, dtype=np.float32, strides=None):
        dtype = np.dtype(dtype)
        strides = strides or [int(np.prod(shape[axis + 1 :])) for axis in range(len(shape))]
        reach = 1 + sum((extent - 1) * step for extent, step in zip(shape, strides, strict=True))
        self._bytes = np.full(reach * dtype.itemsize + 2 * GUARD, POISON, np.uint8)
        inside = self._bytes[GUARD : GUARD + reach * dtype.itemsize].view(dtype)
        self.array = np.lib.stride_tricks.as_strided(inside, shape, [step * dtype.itemsize for step in strides])

    def untouched(self):
        return bool((self._bytes == POISON).all())

    def gaps_untouched(self):
        """True when nothing but the elements was written."""
        outside = np.ones(self._bytes.size, bool)
        first = address(self.array) - address(self._bytes)
        for index in np.ndindex(self.array.shape):
            at = first + sum(i * step for i, step in zip(index, self.array.strides, strict=True))
            outside[at : at + self.array.itemsize] = False
        return bool((self._bytes[outside] == POISON).all())


def one_matmul(a, b, out_dtype=np.float32, epilogue=None, **options):
    """A graph of one product declared like these arrays; answers it with its tensors a, b, y."""
    graph = verglas.Graph(io_data_type=verglas.data_type.FLOAT, **options)
    ta, tb = declare(graph, "a", a), declare(graph, "b", b)
    y = graph.matmul(ta, tb)
    if epilogue:
        y = epilogue(graph, y)
    y.set_output(True).set_data_type(out_dtype).set_name("y")
    graph.build()
    return graph, ta, tb, y


def address(array):
    return array.__array_interface__["data"][0]


def refused(rule, call, out, error=verglas.InvalidCallError):
    """The call breaks this rule and has written nothing."""
    with pytest.raises(error) as caught:
        call()
    assert caught.value.rule == rule, caught.value
    assert out.untouched()
    return caught.value
