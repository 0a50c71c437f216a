"""Whose tensors they are, and new ones of the same kind. No framework is imported here: an object whose framework nobody has
imported is not one of its tensors."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

from verglas import errors
from verglas._verglas import TensorSpec

_NUMPY = {"FLOAT": "float32", "HALF": "float16", "INT8": "int8", "UINT8": "uint8", "INT32": "int32", "BOOLEAN": "bool"}
_ML_DTYPES = {
    "BFLOAT16": "bfloat16",
    "FP8_E4M3": "float8_e4m3fn",
    "FP8_E5M2": "float8_e5m2",
    "FP8_E8M0": "float8_e8m0fnu",
}
_PAIRS = {"FP4_E2M1": "float4_e2m1fn_x2"}  # of torch alone; others have bytes


def framework_of(tensor: Any) -> str:
    """``"torch"``, ``"jax"``, ``"numpy"``, ``"spec"`` for what has no memory, or ``"unknown"``."""
    for name, path in (("torch", ("Tensor",)), ("jax", ("Array",)), ("numpy", ("ndarray",))):
        found = sys.modules.get(name)
        for part in path:
            found = getattr(found, part, None)
        if found is not None and isinstance(tensor, found):
            return name
    return "spec" if isinstance(tensor, TensorSpec) else "unknown"


def common_framework(operation: str, tensors: Iterable[Any]) -> str:
    """The framework of all of them; an error names the first that differs."""
    given = [t for t in tensors if t is not None]
    first = framework_of(given[0]) if given else "unknown"
    for tensor in given:
        own = framework_of(tensor)
        if own in ("unknown", "spec"):
            raise refused(
                "op.framework",
                operation,
                f"Unsupported tensor framework: {type(tensor).__name__}",
                "arrays of NumPy, torch or JAX",
            )
        if own != first:
            raise refused("op.framework", operation, f"tensors of {first} and {own}", "one framework")
    return first


def refused(rule: str, operand: str, got: str, want: str) -> errors.Error:
    """The error of a call that breaks this rule."""
    return errors.make("invalid_call", rule, operand, got, want, f"invalid_call [{rule}] {operand}: got {got}, wanted {want}")


def spec_of(operand: str, shape: Sequence[int], dtype: Any, stride: Sequence[int] | None, device: str = "cpu") -> TensorSpec:
    """What a tensor without memory looks like; an error about its type names the operand."""
    try:
        return TensorSpec(shape, dtype, stride, device)
    except errors.InvalidGraphError as e:
        raise refused("op.dtype", operand, e.got, "a type of verglas.data_type") from None


def numpy_dtype(data_type: Any) -> Any:
    """NumPy's, or ml_dtypes' where NumPy has none."""
    import numpy

    name = data_type.name
    if name in _NUMPY or name in _PAIRS:
        return numpy.dtype(_NUMPY.get(name, "uint8"))
    try:
        import ml_dtypes

        return numpy.dtype(getattr(ml_dtypes, _ML_DTYPES[name]))
    except (ImportError, AttributeError):
        what = f"NumPy has no {_ML_DTYPES[name]} of its own"
        raise ImportError(f"{what}: pip install 'ml_dtypes>=0.5', or ask for another type of output") from None


def torch_dtype(data_type: Any) -> Any:
    import torch

    name = data_type.name
    return getattr(torch, _NUMPY.get(name) or _ML_DTYPES.get(name) or _PAIRS[name])


def empty(spec: TensorSpec, framework: str) -> Any:
    """Uninitialised memory of that layout; of fp4 bytes of two elements."""
    shape, stride = spec.shape, spec.stride
    if spec.data_type.name in _PAIRS:
        packed = stride.index(1)
        shape = [extent // 2 if axis == packed else extent for axis, extent in enumerate(shape)]
        stride = [step if axis == packed else step // 2 for axis, step in enumerate(stride)]
    if framework == "torch":
        import torch

        return torch.empty_strided(shape, stride, dtype=torch_dtype(spec.data_type), device=spec.device)
    import numpy

    order = sorted(range(len(shape)), key=lambda axis: (-stride[axis], axis))
    dense = numpy.empty([shape[axis] for axis in order], numpy_dtype(spec.data_type))
    return dense.transpose(_inverse(order))


def _inverse(order: Sequence[int]) -> list[int]:
    return [list(order).index(axis) for axis in range(len(order))]
