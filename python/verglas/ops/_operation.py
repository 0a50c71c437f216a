"""What the functions and classes of all operations share. Arithmetic, checks and the cache of plans are in the library."""

from __future__ import annotations

import functools
from typing import Any, ClassVar

from verglas._verglas import Operation, OperationOptions, Prepared
from verglas.ops._frameworks import common_framework, empty
from verglas.ops._result import TupleDict


def options_of(*, vector_f32: bool = False, ab12_stages: int = 4, **options: Any) -> dict[str, Any]:
    """Options of the library; what only steers cuDNN's kernels is looked at here and left out."""
    if ab12_stages < 1:
        raise ValueError(f"ab12_stages is {ab12_stages}, wanted 1 or more")
    return options


@functools.cache
def named(name: str) -> tuple[Operation, tuple[str, ...]]:
    """The operation, and the names of its places."""
    operation = Operation(name)
    return operation, tuple(place for place, _, _ in operation.tensors)


def run(
    name: str, tensors: dict[str, Any], options: dict[str, Any], keys: tuple[str, ...], alpha: float = 1.0, stream: Any = None
) -> TupleDict:
    """Allocates the outputs, runs the operation, and answers them under their keys."""
    framework = common_framework(name, tensors.values())
    if framework == "torch":
        from verglas.ops import _torch

        return _torch.run(name, tensors, options, keys, alpha, stream)
    if framework == "jax":
        from verglas.ops import _jax

        return _jax.run_eagerly(name, tensors, options, keys, alpha, stream)
    operation, places = named(name)
    settings = OperationOptions(**options)
    given = [tensors.get(place) for place in places]
    specs = operation.outputs(given, settings)
    given = [tensor if spec is None else empty(spec, framework) for tensor, spec in zip(given, specs, strict=True)]
    operation.run(given, settings, alpha, stream)
    made = {place: tensor for place, tensor, spec in zip(places, given, specs, strict=True) if spec is not None}
    return TupleDict((key, made.get(key.removesuffix("_tensor"))) for key in keys)


class PreparedOperation:
    """An operation whose outputs are the caller's, compiled for tensors like the samples.

    ``check_support()`` is true or raises; ``compile()`` does so too and compiles once; ``execute(...)`` checks its tensors and
    launches, and may be called from several threads. An instance can be called: it compiles if need be, then executes.
    """

    _operation: ClassVar[str]

    def __init__(self, samples: dict[str, Any], options: dict[str, Any], alpha: float = 1.0) -> None:
        self._handle, self._places = named(self._operation)
        self._prepared = Prepared(
            self._handle, [samples.get(place) for place in self._places], OperationOptions(**options), alpha
        )

    def check_support(self) -> bool:
        """True, or raises what is wrong with the samples."""
        return self._prepared.check_support()

    def compile(self) -> None:
        """Checks and compiles; the second call does nothing."""
        self._prepared.compile()

    def _execute(self, tensors: dict[str, Any], alpha: float | None, stream: Any) -> None:
        self._prepared.execute(self._handle, [tensors.get(place) for place in self._places], alpha, stream)

    def execute(self, *tensors: Any, **options: Any) -> None:
        raise NotImplementedError

    def __call__(self, *tensors: Any, **options: Any) -> None:
        self.compile()
        self.execute(*tensors, **options)
