"""What the functions and classes of all operations share. Arithmetic, checks and the cache of plans are in the library."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

from verglas._verglas import Operation, OperationFunction, OperationMethod, OperationOptions, Prepared
from verglas.ops._frameworks import common_framework, empty, refused
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
    "head_dim": "head_dim",
}
# Arguments that are neither options nor tensors. vector_f32 and ab12_stages only steer cuDNN's kernels; deterministic asks for
# what every operation is.
_OTHERS = frozenset({"self", "alpha", "stream", "current_stream", "vector_f32", "ab12_stages", "deterministic"})

Use = Callable[[dict[str, Any], dict[str, Any], dict[str, Any]], Any]


def arguments_of(declared: Callable[..., Any]) -> tuple[tuple[str, ...], tuple[Any, ...]]:
    """The names of its arguments, and the defaults of the last of them."""
    parameters = inspect.signature(declared).parameters
    return tuple(parameters), tuple(p.default for p in parameters.values() if p.default is not p.empty)


def roles_of(names: tuple[str, ...]) -> tuple[dict[str, str], dict[str, str]]:
    """Which arguments are tensors, with their places, and which are options, with their names in the library."""
    others = [name for name in names if name not in _OPTIONS and name not in _OTHERS]
    tensors = {name: name.removeprefix("sample_").removesuffix("_tensor").removesuffix("_code") for name in others}
    return tensors, {name: _OPTIONS[name] for name in names if name in _OPTIONS}


def by_name(use: Use) -> Callable[[F], F]:
    """Of a declared signature a function: ``use`` gets tensors by place, options, and all arguments with their defaults."""

    def decorate(declared: F) -> F:
        names, tail = arguments_of(declared)
        defaults = dict(zip(names[len(names) - len(tail) :], tail, strict=True))
        tensors, options = roles_of(names)

        @functools.wraps(declared)
        def function(*args: Any, **kwargs: Any) -> Any:
            declared(*args, **kwargs)  # has no body, but says what Python says of wrong arguments
            given = {**defaults, **dict(zip(names, args)), **kwargs}  # noqa: B905 -- torch 2.9 compiles no `strict`
            stages = given.get("ab12_stages", 1)
            if not isinstance(stages, int) or stages < 1:
                raise refused("op.option", "ab12_stages", repr(stages), "1 or more")
            return use(
                {place: given[name] for name, place in tensors.items()},
                {option: given[name] for name, option in options.items()},
                given,
            )

        return function

    return decorate


@functools.cache
def named(name: str) -> tuple[Operation, tuple[str, ...]]:
    """The operation, and the names of its places."""
    operation = Operation(name)
    return operation, tuple(place for place, _, _ in operation.tensors)


def function_of(name: str, *keys: str) -> Callable[[F], F]:
    """Of a declared signature the function that answers new outputs under these keys."""

    def decorate(declared: F) -> F:
        names, defaults = arguments_of(declared)
        short = OperationFunction(named(name)[0], names, defaults, *roles_of(names), keys, TupleDict)
        whole = by_name(
            lambda tensors, options, given: run(name, tensors, options, keys, given.get("alpha", 1.0), given["stream"])
        )(declared)

        @functools.wraps(declared)
        def function(*args: Any, **kwargs: Any) -> Any:
            compiler = getattr(sys.modules.get("torch"), "compiler", None)
            if compiler is not None and not compiler.is_compiling():
                made = short(args, kwargs)
                if made is not None:
                    return made
            return whole(*args, **kwargs)

        return function

    return decorate


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
    launches, and may be called from several threads. An instance can be called: it compiles if need be, then executes. Copies and
    pickles are compiled where the original was.
    """

    __slots__ = ("__weakref__", "_prepared")  # with a dict torch's compiler would take `execute` from the class, unbound
    _operation: ClassVar[str]

    def __init__(self, samples: dict[str, Any], options: dict[str, Any], alpha: float = 1.0) -> None:
        handle, places = named(self._operation)
        self._prepared = Prepared(handle, [samples.get(place) for place in places], OperationOptions(**options), alpha)

    def check_support(self) -> bool:
        """True, or raises what is wrong with the samples."""
        return self._prepared.check_support()

    def compile(self, current_stream: Any = None) -> None:
        """Checks and compiles; the second call does nothing. A stream, which cuDNN's takes, has no effect."""
        self._prepared.compile()

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
        names, defaults = arguments_of(declared)
        return OperationMethod(named(name)[0], declared, names[1:], defaults, roles_of(names)[0])

    return decorate
