"""cuDNN's wrappers of `pygraph`: ``cudnn.Graph``, which is built when its block ends and is then called like a function, and the
decorators ``graph``, ``jit`` and ``graph_cache``."""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from verglas import FrozenError, Tensor, TensorSpec, heur_mode
from verglas.ops._frameworks import common_framework, empty, framework_of

# Steps that the end of the block takes.
_TAKEN = frozenset(
    """build build_operation_graph build_plan_at_index build_plans check_support create_execution_plan create_execution_plans
    deselect_engines execute execute_plan_at_index get_execution_plan_count get_plan_name_at_index validate""".split()
)
_PLAIN = frozenset({"get_workspace_size", "get_workspace_size_plan_at_index", "to_json", "describe", "explain", "plan"})
# What cuDNN calls the results of a node, where it is not OUT_0.
_RESULTS = {"matmul": "C", "reduction": "Y", "block_scale_dequantize": "Y"}


def _arguments_of(method: Callable[..., Any]) -> list[str]:
    """Names of its arguments, in their order."""
    declared = getattr(method, "__nb_signature__", None)
    return re.findall(r", (\w+): ", declared[0][0]) if declared else list(inspect.signature(method).parameters)


class Graph:
    """A graph that takes arrays where it takes tensors, allocates its outputs, and needs no steps.

    ``with Graph(...) as graph:`` describes it with the methods of `pygraph`; a node's tensors may be arrays, which then are
    declared as they look. At the end it is compiled. ``graph(*arrays)`` takes the tensors of ``inputs`` and answers those of
    ``outputs``, one or a tuple; ``graph({name: array})`` adds the outputs to the dictionary. Names are those of tensors, or
    ``node::argument`` for inputs and ``node::OUT_0`` or ``node::0`` for outputs. Outputs are new arrays of the inputs' framework.
    """

    def __init__(
        self,
        *,
        handle: Any = None,
        inputs: Sequence[Any] | None = None,
        outputs: Sequence[Any] | None = None,
        heuristics: Sequence[heur_mode] | None = None,
        workspace_alloc: bool = True,
        **options: Any,
    ) -> None:
        for name, value in [("inputs", inputs), ("outputs", outputs), ("heuristics", heuristics)]:
            if value is not None and not isinstance(value, (list, tuple)):
                raise ValueError(f"{name} must be a list or tuple")
        self._handle, self._options = handle, options
        self._heuristics = list(heuristics or [heur_mode.A, heur_mode.FALLBACK])
        self._wanted = list(inputs or []), list(outputs or [])
        self._allocates = workspace_alloc
        self._graph: Any = None
        self._built = False
        self._nodes: set[str] = set()
        self._inputs: dict[str, Tensor] = {}
        self._outputs: dict[str, Tensor] = {}
        self._arrays: dict[int, tuple[Any, Tensor]] = {}  # kept, so that no other array gets the same id
        self._order: tuple[list[Tensor], list[Tensor]] | None = None

    def __enter__(self) -> Graph:
        from verglas.compat import cudnn

        if self._graph is not None:
            raise RuntimeError("Graph already created")
        self._device = self._options.pop("device", None) or cudnn._default_device()
        self._graph = cudnn.pygraph(**self._options, device=self._device)
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is not None:
            self._graph = None
            return
        self._graph.build(self._heuristics)
        self._built = True
        if any(self._wanted):
            self.set_io_tuples(*self._wanted)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if self._graph is None:
            raise RuntimeError("a graph has nodes inside of its with block")
        if name in _TAKEN:
            raise RuntimeError(f"{name} is called by the graph itself, at the end of its block")
        method = getattr(self._graph, name)
        if name in _PLAIN or not callable(method):
            return method
        return self._declare(method) if name in ("tensor", "tensor_like", "scalar") else self._node(name, method)

    def _declare(self, method: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def declare(*args: Any, **options: Any) -> Tensor:
            made = method(*args, **options)
            self._inputs[made.get_name() or f"tensor::{len(self._inputs)}"] = made
            return made

        return declare

    def _tensor(self, value: Any, place: str) -> Any:
        """An operand as the graph knows it."""
        if framework_of(value) in ("numpy", "torch", "jax"):
            if id(value) not in self._arrays:
                self._arrays[id(value)] = value, self._graph.tensor_like(value)
            value = self._arrays[id(value)][1]
        if isinstance(value, Tensor):
            self._inputs[place] = value
        return value

    def _node(self, kind: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def add(*args: Any, **options: Any) -> Any:
            by_place = dict(zip(_arguments_of(method), args, strict=False))
            if len(by_place) < len(args) or not by_place.keys().isdisjoint(options):
                return method(*args, **options)  # which says what is wrong with them
            given = {**by_place, **options}
            if not given.get("name"):
                given["name"] = next(f"{kind}.{i}" for i in itertools.count() if f"{kind}.{i}" not in self._nodes)
            name = given["name"]
            if name in self._nodes:
                raise ValueError(f"Node name {name} already used")
            self._nodes.add(name)
            made = method(**{key: self._tensor(value, f"{name}::{key}") for key, value in given.items()})
            for i, result in enumerate(made if isinstance(made, (list, tuple)) else [made]):
                self._outputs[f"{name}::{i}"] = result
                if i == 0:
                    self._outputs[f"{name}::{_RESULTS.get(kind, 'OUT_0')}"] = result
            return made

        return add

    def _found(self, what: Any, among: dict[str, Tensor], role: str) -> Tensor:
        for name, tensor in among.items():
            array = self._arrays.get(id(what))
            if (
                what is tensor
                or (isinstance(what, str) and what in (name, tensor.get_name()))
                or (isinstance(what, int) and what == tensor.get_uid())
                or (array is not None and array[1].get_uid() == tensor.get_uid())
            ):
                return tensor
        raise ValueError(f"{role} {what!r} is no tensor of this graph")

    def _real(self, among: dict[str, Tensor]) -> dict[int, str]:
        """uid and a name of each tensor that has memory."""
        produced = {tensor.get_uid() for tensor in self._outputs.values()}
        is_output = among is self._outputs
        real: dict[int, str] = {}
        for name, tensor in among.items():
            uid = tensor.get_uid()
            if not tensor.get_is_virtual() and (uid in produced) == is_output:
                real.setdefault(uid, tensor.get_name() or name)
        return real

    def set_io_tuples(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Which tensors a call by position takes and answers: all that have memory."""
        if not self._built:
            self._wanted = list(inputs), list(outputs)
            return
        order = (
            [self._found(t, self._inputs, "Input") for t in inputs],
            [self._found(t, self._outputs, "Output") for t in outputs],
        )
        for role, given, all_of in zip(("input", "output"), order, (self._inputs, self._outputs), strict=True):
            uids = [tensor.get_uid() for tensor in given]
            if len(set(uids)) != len(uids):
                raise ValueError(f"an {role} is a duplicate")
            for uid, name in self._real(all_of).items():
                if uid not in uids:
                    raise ValueError(f"{role} {name} has memory and is not named")
        self._order = order

    def __call__(self, *args: Any, handle: Any = None, workspace: Any = None) -> Any:
        if not self._built:
            raise RuntimeError("a graph can be called after its block")
        if len(args) == 1 and isinstance(args[0], dict):
            return self._call_by_name(args[0], handle, workspace)
        if self._order is None:
            raise ValueError("a call by position needs inputs and outputs, or set_io_tuples()")
        inputs, outputs = self._order
        if len(args) != len(inputs):
            raise ValueError(f"Number of arguments ({len(args)}) does not match number of inputs ({len(inputs)})")
        made = [self._empty(tensor, args) for tensor in outputs]
        pack = {t.get_uid(): array for t, array in zip([*inputs, *outputs], [*args, *made], strict=True)}
        self._execute(pack, handle, workspace)
        return made[0] if len(made) == 1 else tuple(made)

    def _call_by_name(self, given: dict[Any, Any], handle: Any, workspace: Any) -> dict[Any, Any]:
        pack: dict[int, Any] = {}
        for what, array in given.items():
            pack[self._found(what, {**self._inputs, **self._outputs}, "Tensor").get_uid()] = array
        if missing := [name for uid, name in self._real(self._inputs).items() if uid not in pack]:
            raise RuntimeError(f"inputs are missing: {', '.join(missing)}")
        arrays = list(pack.values())
        for uid, name in self._real(self._outputs).items():
            if uid not in pack:
                pack[uid] = given[name] = self._empty(self._found(uid, self._outputs, "Output"), arrays)
        self._execute(pack, handle, workspace)
        return given

    def _empty(self, like: Tensor, inputs: Sequence[Any]) -> Any:
        spec = TensorSpec(like.get_dim(), like.get_data_type(), like.get_stride(), self._device)
        return empty(spec, common_framework("Graph", inputs))

    def _execute(self, pack: dict[int, Any], handle: Any, workspace: Any) -> None:
        size = self._graph.get_workspace_size()
        if workspace is None and size > 0:
            if not self._allocates:
                raise RuntimeError("Need to specify workspace to execute graph")
            workspace = empty(TensorSpec([size], "uint8", None, self._device), common_framework("Graph", pack.values()))
        used = handle if handle is not None else None if self._handle == "auto" else self._handle
        self._graph.execute(pack, workspace, handle=used)


@contextlib.contextmanager
def graph(handle: Any, name: str = "cudnn_graph", **types: Any) -> Iterator[tuple[Any, list[Tensor]]]:
    """A `pygraph` and an empty list, for a ``with`` block; fp16 data and fp32 inside unless ``*_data_type`` says otherwise."""
    from verglas.compat.cudnn import pygraph

    given = {"io_data_type": "fp16", "intermediate_data_type": "fp32", "compute_data_type": "fp32", **types}
    yield pygraph(handle=handle, name=name, **given), []


def jit(heur_modes: Any = heur_mode.A, **options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Of a function that answers a graph and tensors one that answers the graph built, and their uids."""
    modes = heur_modes if isinstance(heur_modes, list) else [heur_modes]

    def decorate(describe: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(describe)
        def build(*args: Any, **kwargs: Any) -> Any:
            made, tensors = describe(*args, **kwargs)
            try:
                made.get_execution_plan_count()
            except FrozenError:  # no plans yet
                made.build(modes)
            return made, [t.get_uid() for t in tensors]

        return build

    return decorate


def graph_cache(key_fn: Callable[..., Any], maxsize: int = 256) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Keeps what the function below answered for each key, at most so many."""

    def decorate(describe: Callable[..., Any]) -> Callable[..., Any]:
        kept: dict[Any, Any] = {}

        @functools.wraps(describe)
        def look_up(*args: Any, **kwargs: Any) -> Any:
            key = key_fn(*args, **kwargs)
            if key not in kept:
                made = describe(*args, **kwargs)
                while len(kept) >= maxsize:
                    kept.pop(next(iter(kept)))
                kept[key] = made
            return kept[key]

        return look_up

    return decorate
