"""What the functions and classes of all operations share. Arithmetic, checks and the cache of plans are in the library."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

from verglas._verglas import Operation, OperationOptions, Prepared
from verglas.ops._frameworks import common_framework, empty
from verglas.ops._result import TupleDict

F = TypeVar("F", bound=Callable[..., Any])

# Arguments of cuDNN's that are options of the library, and their names there. vector_f32 only steers cuDNN's kernels.
_OPTIONS = {
    "ab12_dtype": "ab12_dtype",
    "c_dtype": "c_dtype",
    "d_dtype": "d_dtype",
    "acc_dtype": "acc_dtype",
    "c_major": "major",
    "d_major": "major",
    "sf_vec_size": "sf_vec_size",
    "mma_tiler_mn": "mma_tiler_mn",
    "cluster_shape_mn": "cluster_shape_mn",
    "w_out_in": "w_out_in",
}
# Arguments that are neither options nor tensors. vector_f32 and ab12_stages only steer cuDNN's kernels.
_OTHERS = frozenset({"self", "alpha", "stream", "current_stream", "vector_f32", "ab12_stages"})

Use = Callable[[dict[str, Any], dict[str, Any], dict[str, Any]], Any]


def by_name(use: Use) -> Callable[[F], F]:
    """Of a declared signature a function: ``use`` gets tensors by place, options, and all arguments with their defaults."""

    def decorate(declared: F) -> F:
        parameters = inspect.signature(declared).parameters
        names = tuple(parameters)
        defaults = {name: p.default for name, p in parameters.items() if p.default is not p.empty}
        options = tuple((name, _OPTIONS[name]) for name in names if name in _OPTIONS)
        others = [name for name in names if name not in _OPTIONS and name not in _OTHERS]
        tensors = tuple((name, name.removeprefix("sample_").removesuffix("_tensor")) for name in others)

        @functools.wraps(declared)
        def function(*args: Any, **kwargs: Any) -> Any:
            declared(*args, **kwargs)  # has no body, but says what Python says of wrong arguments
            given = {**defaults, **dict(zip(names, args, strict=False)), **kwargs}
            stages = given.get("ab12_stages", 1)
            if stages < 1:
                raise ValueError(f"ab12_stages is {stages}, wanted 1 or more")
            return use({place: given[name] for name, place in tensors}, {option: given[name] for name, option in options}, given)

        return function

    return decorate


@functools.cache
def named(name: str) -> tuple[Operation, tuple[str, ...]]:
    """The operation, and the names of its places."""
    operation = Operation(name)
    return operation, tuple(place for place, _, _ in operation.tensors)


def function_of(name: str, *keys: str) -> Callable[[F], F]:
    """Of a declared signature the function that answers new outputs under these keys."""

    return by_name(lambda tensors, options, given: run(name, tensors, options, keys, given.get("alpha", 1.0), given["stream"]))


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


# Of a declared signature the constructor of a class.
constructor = by_name(
    lambda tensors, options, given: PreparedOperation.__init__(given["self"], tensors, options, given.get("alpha", 1.0))
)


def executor(name: str) -> Callable[[F], F]:
    """Of a declared signature the method that launches into the outputs given: `by_name` for a call that has no time for it."""

    def decorate(declared: F) -> F:
        parameters = list(inspect.signature(declared).parameters.values())[1:]
        names = [p.name for p in parameters]
        tail = tuple(p.default for p in parameters if p.default is not p.empty)
        least, most = len(names) - len(tail), len(names)
        defaults = dict(zip(names[least:], tail, strict=True))
        places = [names.index(f"{place}_tensor") for place in named(name)[1]]
        alpha = names.index("alpha") if "alpha" in names else None
        stream = names.index("current_stream")

        @functools.wraps(declared)
        def execute(self: Any, *args: Any, **kwargs: Any) -> None:
            if kwargs or not least <= len(args) <= most:
                declared(self, *args, **kwargs)  # says what Python says of wrong arguments
                given = {**defaults, **dict(zip(names, args, strict=False)), **kwargs}
                args = tuple([given[name] for name in names])
            else:
                args += tail[len(args) - least :]
            self._prepared.execute(
                self._handle, [args[place] for place in places], None if alpha is None else args[alpha], args[stream]
            )

        return execute

    return decorate
