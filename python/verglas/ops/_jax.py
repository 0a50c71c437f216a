"""Operations on JAX' arrays: one foreign call of XLA, under `jax.jit` or without it. Imported with the first such array only."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from verglas import _verglas
from verglas._verglas import OperationOptions, TensorSpec
from verglas.ops._frameworks import numpy_dtype, refused, spec_of
from verglas.ops._operation import by_name, named
from verglas.ops._result import TupleDict

_TARGET = "verglas.operation"
_ROPE = "gemm_proj_rope_mxfp8"
_MOST_SITES = 256  # foreign calls that are kept


@functools.cache
def _register() -> None:
    targets = _verglas.xla_targets()
    if targets is None:
        raise ImportError("this build of verglas knows nothing of XLA: build it where jaxlib is installed")
    for platform, handlers in targets.items():
        jax.ffi.register_ffi_target(_TARGET, handlers, platform=platform)
    jax.tree_util.register_pytree_node(
        TupleDict, lambda r: (list(r.values()), tuple(r.keys())), lambda keys, values: TupleDict(zip(keys, values, strict=True))
    )


if _verglas.xla_targets() is not None:
    _register()  # now, for programs that another process has exported


@dataclasses.dataclass(frozen=True)
class _Site:
    """A foreign call but for its arrays: places of inputs and outputs, (shape, dtype) of the latter."""

    operation: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    ranks: tuple[int, ...]
    shapes: tuple[tuple[tuple[int, ...], Any], ...]
    sf_vec_size: int
    alpha: float
    w_out_in: bool
    head_dim: int
    takes_alpha: bool  # as an array, behind the inputs
    axes: frozenset[str]  # of a mesh, along which results differ

    @property
    def batch_last(self) -> bool:
        """Of three axes the last is the outermost."""
        return self.operation != _ROPE

    def layout(self, rank: int) -> tuple[int, ...]:
        return (2, 0, 1) if rank == 3 and self.batch_last else tuple(range(rank))


def _spec(name: str, place: str, array: Any) -> TensorSpec:
    """As the handler will see it."""
    shape = list(array.shape)
    stride = [shape[1], 1, shape[0] * shape[1]] if len(shape) == 3 and name != _ROPE else None
    return spec_of(f"{name}, {place}", shape, np.dtype(array.dtype), stride)


def _axes_of(array: Any) -> frozenset[str]:
    """Axes of a mesh along which the array differs from device to device, where `jax.shard_map` keeps count of that."""
    aval = jax.typeof(array)
    manual = getattr(aval, "manual_axis_type", None)  # JAX 0.10; before that vma
    return frozenset(getattr(aval, "vma", ()) if manual is None else manual.varying)


def _spread(array: Any, axes: frozenset[str]) -> Any:
    """The array as one that differs along these axes, whose gradient then is the sum of those of all devices."""
    missing = tuple(sorted(axes - _axes_of(array)))
    if not missing:
        return array
    return jax.lax.pcast(array, missing, to="varying") if hasattr(jax.lax, "pcast") else jax.lax.pvary(array, missing)


def _as(array: Any, like: Any) -> Any:
    """The array on the devices that the type of the other one says, where axes of a mesh are explicit."""
    want, have = (getattr(jax.typeof(a), "sharding", None) for a in (like, array))
    if getattr(want, "spec", None) == getattr(have, "spec", None):
        return array
    return (jax.reshard if hasattr(jax, "reshard") else jax.sharding.reshard)(array, want)


@functools.lru_cache(_MOST_SITES)
def _one_by_one(site: _Site) -> Callable[..., tuple[Any, ...]]:
    """The foreign call; the elements of a vmap run one after another."""
    _register()
    attributes = {
        "operation": site.operation,
        "inputs": np.array(site.inputs, np.int32),
        "outputs": np.array(site.outputs, np.int32),
        "sf_vec_size": np.int32(site.sf_vec_size),
        "alpha": np.float32(site.alpha),
        "w_out_in": site.w_out_in,
        "head_dim": np.int32(site.head_dim),
        "batch_last": site.batch_last,
    }

    def call_of(results: list[Any]) -> Callable[..., Any]:
        return jax.ffi.ffi_call(
            _TARGET,
            results,
            input_layouts=[site.layout(rank) for rank in site.ranks] + ([()] if site.takes_alpha else []),
            output_layouts=[site.layout(len(shape)) for shape, _ in site.shapes],
            vmap_method="sequential",
        )

    if not site.axes:
        call = call_of([jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in site.shapes])
        return lambda *arrays: tuple(call(*arrays, **attributes))

    def on_mesh(*arrays: Any) -> tuple[Any, ...]:  # what results look like depends on the mesh, which is not the site's
        empty = lambda: [_spread(jnp.zeros(shape, dtype), site.axes) for shape, dtype in site.shapes]  # noqa: E731
        return tuple(call_of(jax.eval_shape(empty))(*arrays, **attributes))

    return on_mesh


def _into_batch(array: Any, size: int, is_batched: bool) -> Any:
    if not is_batched:
        array = jnp.broadcast_to(array, (size, *array.shape))
    if array.ndim > 4:  # scales in atoms: L is their first axis
        return jnp.moveaxis(array, 0, 1).reshape(array.shape[1] * size, *array.shape[2:])
    moved = jnp.moveaxis(array, 0, -1)
    return moved.reshape(*moved.shape[:2], moved.shape[2] * size)


@functools.lru_cache(_MOST_SITES)
def _with_batches(site: _Site) -> Callable[..., tuple[Any, ...]]:
    """The call, whose batch L takes in the axis of a vmap: one launch for all of it."""
    function = jax.custom_batching.custom_vmap(_one_by_one(site))

    @function.def_vmap
    def rule(size: int, batched: list[bool], *arrays: Any) -> Any:
        folded = [_into_batch(a, size, b) for a, b in zip(arrays, batched, strict=True)]
        wide = tuple(((*shape[:2], shape[2] * size), dtype) for shape, dtype in site.shapes)
        results = _with_batches(dataclasses.replace(site, shapes=wide))(*folded)
        split = [r.reshape(*shape, size) for r, (shape, _) in zip(results, site.shapes, strict=True)]
        return tuple(jnp.moveaxis(r, -1, 0) for r in split), (True,) * len(split)

    return function


@functools.lru_cache(_MOST_SITES)
def _with_tokens(site: _Site) -> Callable[..., tuple[Any, ...]]:
    """The projection, whose tokens take in the axis of a vmap; one after another where weights are mapped too."""
    plain = _one_by_one(site)
    function = jax.custom_batching.custom_vmap(plain)
    weights = {1, 5}  # places of w and its scales

    @function.def_vmap
    def rule(size: int, batched: list[bool], *arrays: Any) -> Any:
        if any(b for place, b in zip(site.inputs, batched, strict=True) if place in weights):
            axes = [0 if b else None for b in batched]
            return jax.vmap(plain, axes)(*arrays), (True,) * len(site.shapes)
        full = [
            a if b or p in weights else jnp.broadcast_to(a, (size, *a.shape))
            for p, a, b in zip(site.inputs, arrays, batched, strict=True)
        ]
        folded = [
            a if p in weights else a.reshape(size * a.shape[1], *a.shape[2:]) for p, a in zip(site.inputs, full, strict=True)
        ]
        wide = tuple(((shape[0] * size, *shape[1:]), dtype) for shape, dtype in site.shapes)
        results = _with_tokens(dataclasses.replace(site, shapes=wide))(*folded)
        return tuple(r.reshape(size, *s) for r, (s, _) in zip(results, site.shapes, strict=True)), (True,) * len(site.shapes)

    return function


def _in_pairs(operand: str, array: Any) -> Any:
    """Of fp4 (M, K, L), which XLA keeps one by one, bytes of two along K."""
    if str(array.dtype) != "float4_e2m1fn" or array.ndim != 3:
        return array
    m, k, batch = array.shape
    if k % 2 != 0:
        raise refused("op.extent", operand, f"{k} fp4 along K", "an even number: two have a byte")
    return jax.lax.bitcast_convert_type(jnp.moveaxis(jnp.asarray(array).reshape(m, k // 2, 2, batch), 2, -1), jnp.uint8)


def _result(spec: TensorSpec) -> tuple[tuple[int, ...], Any]:
    """Shape and type of an output: of fp4 (M, N, L) bytes of two along N."""
    shape = tuple(spec.shape)
    if spec.data_type.name == "FP4_E2M1":
        shape = (shape[0], shape[1] // 2, *shape[2:])
    return shape, numpy_dtype(spec.data_type)


def _with_depth(place: str, array: Any) -> Any:
    """Of an operand without depth one of zeros, whose products are nothing as well: XLA's compiler divides by the number of
    elements where a program has others of that shape."""
    if array.size > 0:
        return array
    is_scale = place in ("sfa", "sfb", "x_scale", "w_scale")
    deep = 1 if is_scale else 16 if str(array.dtype) == "uint8" else 32
    shape = [extent or deep for extent in array.shape]
    if not is_scale:
        return jnp.zeros(shape, array.dtype)
    one = 0x38 if str(array.dtype) == "float8_e4m3fn" else 127
    return jax.lax.bitcast_convert_type(jnp.full(shape, one, jnp.uint8), array.dtype)


def call(name: str, tensors: dict[str, Any], options: dict[str, Any], alpha: Any = 1.0) -> dict[str, Any]:
    """The outputs by place. Everything that can be wrong is raised while tracing."""
    operation, places = named(name)
    given = [tensors.get(place) for place in places]
    for place, tensor in zip(places, given, strict=True):
        if tensor is not None and not isinstance(tensor, (jax.Array, np.ndarray)):
            raise refused("op.framework", name, f"Unsupported tensor framework: {type(tensor).__name__}", "JAX' arrays")
        if tensor is not None and not all(isinstance(extent, int) for extent in tensor.shape):
            raise refused("op.extent", f"{name}, {place}", f"shape {tuple(tensor.shape)}", "numbers")
    given = [jnp.asarray(t) if isinstance(t, np.ndarray) else t for t in given]  # of JAX' types, whatever transforms there are
    if tensors.get("sfa") is not None and tensors.get("sfb") is not None:
        given = [
            _in_pairs(f"{name}, {place}", t) if place in ("a", "b") and t is not None else t
            for place, t in zip(places, given, strict=True)
        ]
    looks = [None if t is None else _spec(name, place, t) for place, t in zip(places, given, strict=True)]
    specs = operation.outputs(looks, OperationOptions(**options))
    inputs = tuple(i for i, t in enumerate(given) if t is not None)
    outputs = tuple(i for i, spec in enumerate(specs) if spec is not None)
    takes_alpha = isinstance(alpha, jax.Array)
    if takes_alpha and alpha.size != 1:
        raise refused("op.dtype", f"{name}, alpha", "several elements", "one element of fp32")
    arrays = [given[i] for i in inputs] + ([jnp.asarray(alpha, jnp.float32).reshape(())] if takes_alpha else [])
    axes = frozenset().union(*map(_axes_of, arrays))
    site = _Site(
        name,
        inputs,
        outputs,
        ranks=tuple(given[i].ndim for i in inputs),
        shapes=tuple(_result(specs[i]) for i in outputs),
        sf_vec_size=options.get("sf_vec_size", 0),
        alpha=1.0 if takes_alpha else float(alpha),
        w_out_in=options.get("w_out_in", True),
        head_dim=options.get("head_dim", 192),
        takes_alpha=takes_alpha,
        axes=axes,
    )
    if any(len(shape) > 3 for shape, _ in site.shapes):
        raise refused("op.option", name, "a quantised output", "one without scales of its own, from JAX")
    if any(0 in shape for shape, _ in site.shapes):  # XLA's compiler divides by their number of elements
        nothing = {"amax": -jnp.inf}
        return {
            places[i]: _spread(jnp.full(s, nothing.get(places[i], 0), t), axes)
            for i, (s, t) in zip(outputs, site.shapes, strict=True)
        }
    depths = [_with_depth(places[i], array) for i, array in zip(inputs, arrays, strict=False)]
    arrays = [_spread(array, axes) for array in (*depths, *arrays[len(depths) :])]
    # One maximum for each element of a vmap, so that its batch is no batch of ours.
    if name == _ROPE:
        function = _with_tokens(site)
    elif takes_alpha or any(shape in ((1,), (1, 1, 1)) for shape, _ in site.shapes):
        function = _one_by_one(site)
    else:
        function = _with_batches(site)
    return {places[i]: result for i, result in zip(outputs, function(*arrays), strict=True)}


def run_eagerly(
    name: str, tensors: dict[str, Any], options: dict[str, Any], keys: tuple[str, ...], alpha: float, stream: Any
) -> TupleDict:
    """The function of an operation, called with JAX' arrays."""
    if stream is not None:
        raise refused("op.option", f"{name}, stream", "a stream", "None: XLA has its own")
    if options.get("major", "n") == "m":
        raise refused("op.option", f"{name}, major", "m", "n: JAX' arrays are row-major")
    if alpha != 1 and not any(isinstance(t, jax.core.Tracer) for t in (*tensors.values(), alpha)):
        alpha = jax.device_put(np.float32(alpha))  # an operand: no program is compiled for each value
    made = call(name, tensors, options, alpha)
    return TupleDict((key, made.get(key.removesuffix("_tensor"))) for key in keys)


def _entry(name: str, *wanted: str) -> Any:
    """Of a declared signature the function that answers these outputs as a plain tuple."""

    def use(tensors: dict[str, Any], options: dict[str, Any], given: dict[str, Any]) -> tuple[Any, ...]:
        made = call(name, tensors, options, given.get("alpha", 1.0))
        return tuple(made[place] for place in wanted)

    return by_name(use)


@jax.custom_jvp
def _constant(x: Any) -> Any:
    return x


@_constant.defjvp
def _(primals: Any, tangents: Any) -> Any:
    raise TypeError("operands with block scales, and alpha beside them, cannot be differentiated")


Backward = Callable[[dict[str, Any], Any, dict[str, Any], Any, tuple[Any, Any]], dict[str, Any]]


def _differentiable(name: str, outputs: tuple[str, str], backward: Backward) -> Any:
    """The same with gradients for a, b, prob, and alpha where it is an array: ``backward`` answers them by place, given tensors,
    alpha, options, the first output, and the gradients of both.

    Operands with scales have none, since another operand would have other scales.
    """

    def use(tensors: dict[str, Any], options: dict[str, Any], given: dict[str, Any]) -> tuple[Any, ...]:
        scaled = tensors["sfa"] is not None or tensors["sfb"] is not None
        alpha = given["alpha"]
        all_of = {**tensors, "alpha": alpha if isinstance(alpha, jax.Array) else float(alpha)}
        arrays = {place: t for place, t in all_of.items() if isinstance(t, (jax.Array, np.ndarray))}
        axes = frozenset().union(*map(_axes_of, arrays.values()))
        all_of |= {place: _spread(t, axes) for place, t in arrays.items()}
        wanted = ("prob", "alpha") if scaled else ("a", "b", "prob", "alpha")
        chosen = {place: all_of[place] for place in wanted if isinstance(all_of.get(place), (jax.Array, np.ndarray))}
        if scaled:
            chosen.pop("alpha", None)
            all_of = {place: _constant(t) if isinstance(t, jax.Array) and place != "prob" else t for place, t in all_of.items()}

        def forward(chosen: dict[str, Any]) -> tuple[Any, ...]:
            full = {**all_of, **chosen}
            made = call(name, {place: full[place] for place in tensors}, options, full["alpha"])
            return tuple(made[place] for place in outputs)

        def keep(chosen: dict[str, Any]) -> tuple[Any, Any]:
            results = forward(chosen)
            return results, (chosen, results[0])

        def back(kept: Any, gradients: Any) -> tuple[dict[str, Any]]:
            chosen, first = kept
            chosen = {place: jnp.asarray(t) for place, t in chosen.items()}  # alpha may come as a number
            full = {**all_of, **chosen}
            found = backward(full, options, first, gradients)
            if not scaled:
                found |= _of_product(found["x"], full, "alpha" in chosen)
            return ({place: _as(found[place].astype(t.dtype).reshape(t.shape), t) for place, t in chosen.items()},)

        if not chosen:
            return forward(chosen)
        function = jax.custom_vjp(forward)
        function.defvjp(keep, back)
        return function(chosen)

    return by_name(use)


def _of_product(of_x: Any, of: dict[str, Any], with_alpha: bool) -> dict[str, Any]:
    """Gradients of x = alpha · a · bᵀ, in fp32."""
    a, b = of["a"].astype(jnp.float32), of["b"].astype(jnp.float32)
    if 0 in (*a.shape, *b.shape):  # XLA's compiler divides by their number of elements
        return {"a": jnp.zeros_like(a), "b": jnp.zeros_like(b), "alpha": jnp.float32(0)}
    found = {"a": jnp.einsum("mnl,nkl->mkl", of["alpha"] * of_x, b), "b": jnp.einsum("mnl,mkl->nkl", of["alpha"] * of_x, a)}
    if with_alpha:
        found["alpha"] = (of_x * jnp.einsum("mkl,nkl->mnl", a, b)).sum()
    return found


def _swiglu_backward(of: dict[str, Any], options: dict[str, Any], ab12: Any, gradients: tuple[Any, Any]) -> dict[str, Any]:
    """From the stored ab12, so as precise as its type."""
    of_ab12, of_c = (g.astype(jnp.float32) for g in gradients)
    m, n, batch = ab12.shape
    runs = ab12.astype(jnp.float32).reshape(m, n // 64, 2, 32, batch)
    up, gate = runs[:, :, 0], runs[:, :, 1]
    sigmoid = jax.nn.sigmoid(gate)
    of_c = of_c.reshape(m, n // 64, 32, batch)
    both = (of_c * gate * sigmoid, of_c * up * sigmoid * (1 + gate * (1 - sigmoid)))
    return {"x": jnp.stack(both, 2).reshape(m, n, batch) + of_ab12}


def _srelu_backward(of: dict[str, Any], options: dict[str, Any], c: Any, gradients: tuple[Any, Any]) -> dict[str, Any]:
    of_c, of_d = gradients
    if of_d.dtype not in (jnp.float32, jnp.float16, jnp.bfloat16):
        of_d = of_d.astype(jnp.float32)
    tensors = {**{place: of[place] for place in ("a", "b", "sfa", "sfb", "prob")}, "c": of_d}
    made = call("gemm_dsrelu", tensors, {"d_dtype": "fp32", "sf_vec_size": options["sf_vec_size"]}, of["alpha"])
    return {"x": made["d"] + of_c.astype(jnp.float32), "prob": made["dprob"]}


@_entry("gemm_amax", "c", "amax")
def gemm_amax_jax_forward(
    a_tensor: Any,
    b_tensor: Any,
    sfa_tensor: Any = None,
    sfb_tensor: Any = None,
    c_dtype: Any = None,
    acc_dtype: Any = None,
    mma_tiler_mn: tuple[int, int] = (128, 128),
    cluster_shape_mn: tuple[int, int] = (1, 1),
    sf_vec_size: int = 32,
    deterministic: bool | None = None,
) -> tuple[Any, Any]:
    """(c, amax) of `gemm_amax_forward`, also under `jax.jit`. `jax.vmap` runs one element after another."""


@_differentiable("gemm_swiglu", ("ab12", "c"), _swiglu_backward)
def gemm_swiglu_jax_forward(
    a_tensor: Any,
    b_tensor: Any,
    alpha: Any = 1.0,
    ab12_dtype: Any = None,
    c_dtype: Any = None,
    acc_dtype: Any = None,
    mma_tiler_mn: tuple[int, int] = (128, 128),
    cluster_shape_mn: tuple[int, int] | None = None,
    sfa_tensor: Any = None,
    sfb_tensor: Any = None,
    sf_vec_size: int = 16,
    vector_f32: bool = False,
    ab12_stages: int = 4,
    deterministic: bool | None = None,
) -> tuple[Any, Any]:
    """(ab12, c) of `gemm_swiglu_forward`, also under `jax.jit`, `jax.vmap` and `jax.grad`. alpha may be an array of one element.

    The gradient, for a, b and such an alpha, is computed from the stored ab12, so it is as precise as its type.
    """


@_entry("gemm_dsrelu", "d", "dprob")
def gemm_srelu_jax_backward(
    a_tensor: Any,
    b_tensor: Any,
    c_tensor: Any,
    sfa_tensor: Any = None,
    sfb_tensor: Any = None,
    prob_tensor: Any = None,
    alpha: Any = 1.0,
    d_dtype: Any = None,
    acc_dtype: Any = None,
    mma_tiler_mn: tuple[int, int] = (256, 256),
    cluster_shape_mn: tuple[int, int] | None = None,
    sf_vec_size: int = 16,
    vector_f32: bool = False,
    deterministic: bool | None = None,
) -> tuple[Any, Any]:
    """(d, dprob) of `gemm_srelu_backward`, also under `jax.jit` and `jax.vmap`. alpha may be an array of one element."""


@_differentiable("gemm_srelu", ("c", "d"), _srelu_backward)
def gemm_srelu_jax_forward(
    a_tensor: Any,
    b_tensor: Any,
    sfa_tensor: Any = None,
    sfb_tensor: Any = None,
    prob_tensor: Any = None,
    alpha: Any = 1.0,
    c_dtype: Any = None,
    d_dtype: Any = None,
    acc_dtype: Any = None,
    mma_tiler_mn: tuple[int, int] = (256, 256),
    cluster_shape_mn: tuple[int, int] | None = None,
    sf_vec_size: int = 16,
    vector_f32: bool = False,
    deterministic: bool | None = None,
) -> tuple[Any, Any]:
    """(c, d) of `gemm_srelu_forward`, also under `jax.jit`, `jax.vmap` and `jax.grad`. alpha may be an array of one element.

    The gradient, for a, b, prob and such an alpha, is `gemm_srelu_backward`'s; products in fp32 follow it. Beside operands with
    scales only prob has one.
    """


@_entry(_ROPE, "out_fp8_row", "out_scales_row", "out_fp8_col", "out_scales_col")
def gemm_proj_rope_mxfp8_jax_forward(
    x: Any,
    w: Any,
    cos: Any,
    sin: Any,
    x_scale: Any = None,
    w_scale: Any = None,
    w_out_in: bool = True,
    deterministic: bool | None = None,
    head_dim: int = 192,
) -> tuple[Any, Any, Any, Any]:
    """The outputs of `gemm_proj_rope_mxfp8_forward`, also under `jax.jit` and `jax.vmap`."""
