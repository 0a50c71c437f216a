"""Operations on JAX' arrays: one foreign call of XLA, under `jax.jit` or without it. Imported with the first such array only."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from verglas import _verglas, errors
from verglas._verglas import OperationOptions, TensorSpec
from verglas.ops._frameworks import numpy_dtype
from verglas.ops._operation import named, options_of
from verglas.ops._result import TupleDict

_TARGET = "verglas.operation"


@functools.cache
def _register() -> None:
    handler = _verglas.xla_target()
    if handler is None:
        raise ImportError("this build of verglas knows nothing of XLA: build it where jax>=0.5 is installed")
    jax.ffi.register_ffi_target(_TARGET, handler, platform="cpu")
    jax.tree_util.register_pytree_node(
        TupleDict, lambda r: (list(r.values()), tuple(r.keys())), lambda keys, values: TupleDict(zip(keys, values, strict=True))
    )


def _refused(rule: str, operand: str, got: str, want: str) -> errors.Error:
    return errors.make("invalid_call", rule, operand, got, want, f"invalid_call [{rule}] {operand}: got {got}, wanted {want}")


def _spec(array: Any) -> TensorSpec:
    """As the handler will see it: of three axes the last is the outermost."""
    shape = list(array.shape)
    stride = [shape[1], 1, shape[0] * shape[1]] if len(shape) == 3 else None
    return TensorSpec(shape, np.dtype(array.dtype), stride)


def _layout(rank: int) -> tuple[int, ...]:
    return (2, 0, 1) if rank == 3 else tuple(range(rank))


def _batch_to_the_end(array: Any, axis_size: int, is_batched: bool) -> Any:
    if not is_batched:
        array = jnp.broadcast_to(array, (axis_size, *array.shape))
    moved = jnp.moveaxis(array, 0, -1)
    return moved.reshape(*moved.shape[:2], -1)


@functools.cache
def _callable(
    name: str,
    places: tuple[int, ...],
    ranks: tuple[int, ...],
    outputs: tuple[int, ...],
    shapes: tuple[Any, ...],
    sf_vec_size: int,
    alpha: float,
    takes_alpha: bool,
) -> Any:
    """The foreign call for inputs at these places; ``shapes`` are (shape, dtype) of the outputs."""
    _register()
    call = jax.ffi.ffi_call(
        _TARGET,
        [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in shapes],
        input_layouts=[_layout(rank) for rank in ranks] + ([()] if takes_alpha else []),
        output_layouts=[_layout(len(shape)) for shape, _ in shapes],
        vmap_method="sequential",
    )
    attributes = {
        "operation": name,
        "inputs": np.array(places, np.int32),
        "outputs": np.array(outputs, np.int32),
        "sf_vec_size": np.int32(sf_vec_size),
        "alpha": np.float32(alpha),
    }
    return lambda *arrays: tuple(call(*arrays, **attributes))


def call(name: str, tensors: dict[str, Any], options: dict[str, Any], alpha: Any = 1.0) -> dict[str, Any]:
    """The outputs by place. Everything that can be wrong is raised while tracing."""
    if name == "gemm_proj_rope_mxfp8":
        text = f"unsupported [op.not_yet] {name} takes no arrays of JAX yet"
        raise errors.make("unsupported", "op.not_yet", name, "", "", text)
    operation, places = named(name)
    given = [tensors.get(place) for place in places]
    for tensor in given:
        if tensor is not None and not isinstance(tensor, (jax.Array, np.ndarray)):
            raise _refused("op.framework", name, f"Unsupported tensor framework: {type(tensor).__name__}", "JAX' arrays")
    specs = operation.outputs([None if t is None else _spec(t) for t in given], OperationOptions(**options))
    inputs = tuple(i for i, t in enumerate(given) if t is not None)
    outputs = tuple(i for i, spec in enumerate(specs) if spec is not None)
    shapes = tuple((tuple(specs[i].shape), numpy_dtype(specs[i].data_type)) for i in outputs)
    takes_alpha = isinstance(alpha, jax.Array)
    fixed = 1.0 if takes_alpha else float(alpha)
    arrays = [given[i] for i in inputs]
    if takes_alpha:
        arrays.append(jnp.asarray(alpha, jnp.float32).reshape(()))
    ranks = tuple(given[i].ndim for i in inputs)
    if any(len(shape) > 3 for shape, _ in shapes):
        raise _refused("op.option", name, "a quantised output", "one without scales of its own, from JAX")
    # One maximum for each element of a vmap, so that its batch is no batch of ours; and scales lie in atoms of one batch.
    if name == "gemm_amax" or takes_alpha or max(ranks) > 3:
        results = _callable(name, inputs, ranks, outputs, shapes, options.get("sf_vec_size", 0), fixed, takes_alpha)(*arrays)
    else:
        results = _with_batches(name, inputs, outputs, shapes, fixed)(*arrays)
    return {places[i]: result for i, result in zip(outputs, results, strict=True)}


@functools.cache
def _with_batches(name: str, inputs: tuple[int, ...], outputs: tuple[int, ...], shapes: tuple[Any, ...], alpha: float) -> Any:
    """The call, whose batch L takes in the axis of a vmap: one launch for all of it."""
    function = jax.custom_batching.custom_vmap(_callable(name, inputs, (3,) * len(inputs), outputs, shapes, 0, alpha, False))

    @function.def_vmap
    def rule(axis_size: int, in_batched: list[bool], *arrays: Any) -> Any:
        folded = [_batch_to_the_end(a, axis_size, b) for a, b in zip(arrays, in_batched, strict=True)]
        wide = tuple(((*shape[:2], shape[2] * axis_size), dtype) for shape, dtype in shapes)
        results = _with_batches(name, inputs, outputs, wide, alpha)(*folded)
        split = [r.reshape(*shape, axis_size) for r, (shape, _) in zip(results, shapes, strict=True)]
        return tuple(jnp.moveaxis(r, -1, 0) for r in split), tuple(True for _ in shapes)

    return function


def run_eagerly(
    name: str, tensors: dict[str, Any], options: dict[str, Any], keys: tuple[str, ...], alpha: float, stream: Any
) -> TupleDict:
    """The function of an operation, called with JAX' arrays."""
    if stream is not None:
        raise _refused("op.option", f"{name}, stream", "a stream", "None: XLA has its own")
    made = call(name, tensors, options, alpha)
    return TupleDict((key, made.get(key.removesuffix("_tensor"))) for key in keys)


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
) -> tuple[Any, Any]:
    """(c, amax) of `gemm_amax_forward`, also under `jax.jit`. `jax.vmap` runs one element after another."""
    options = options_of(
        c_dtype=c_dtype,
        acc_dtype=acc_dtype,
        mma_tiler_mn=mma_tiler_mn,
        cluster_shape_mn=cluster_shape_mn,
        sf_vec_size=sf_vec_size,
    )
    made = call("gemm_amax", {"a": a_tensor, "b": b_tensor, "sfa": sfa_tensor, "sfb": sfb_tensor}, options)
    return made["c"], made["amax"]


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
) -> tuple[Any, Any]:
    """(ab12, c) of `gemm_swiglu_forward`, also under `jax.jit`, `jax.vmap` and `jax.grad`. alpha may be an array of one element.

    The gradient, for a and b, is computed from the stored ab12, so it is as precise as its type.
    """
    options = options_of(
        ab12_dtype=ab12_dtype,
        c_dtype=c_dtype,
        acc_dtype=acc_dtype,
        mma_tiler_mn=mma_tiler_mn,
        cluster_shape_mn=cluster_shape_mn,
        sf_vec_size=sf_vec_size,
        vector_f32=vector_f32,
        ab12_stages=ab12_stages,
    )
    scales = {"sfa": sfa_tensor, "sfb": sfb_tensor}

    def forward(a: Any, b: Any) -> tuple[Any, Any]:
        made = call("gemm_swiglu", {"a": a, "b": b, **scales}, options, alpha)
        return made["ab12"], made["c"]

    if sfa_tensor is not None or sfb_tensor is not None or isinstance(alpha, jax.Array):
        return forward(a_tensor, b_tensor)
    function = jax.custom_vjp(forward)

    def keep(a: Any, b: Any) -> tuple[Any, Any]:
        results = forward(a, b)
        return results, (a, b, results[0])

    def backward(kept: Any, gradients: Any) -> tuple[Any, Any]:
        a, b, ab12 = kept
        of_ab12, of_c = (g.astype(jnp.float32) for g in gradients)
        m, n, batch = ab12.shape
        runs = ab12.astype(jnp.float32).reshape(m, n // 64, 2, 32, batch)
        up, gate = runs[:, :, 0], runs[:, :, 1]
        sigmoid = jax.nn.sigmoid(gate)
        of_c = of_c.reshape(m, n // 64, 32, batch)
        both = (of_c * gate * sigmoid, of_c * up * sigmoid * (1 + gate * (1 - sigmoid)))
        return _product_gradients(jnp.stack(both, 2).reshape(m, n, batch) + of_ab12, a, b, alpha)

    function.defvjp(keep, backward)
    return function(a_tensor, b_tensor)


def _product_gradients(of_x: Any, a: Any, b: Any, alpha: float) -> tuple[Any, Any]:
    """Of x = alpha · a · bᵀ: in fp32, rounded once to the operand's type."""
    of_x = alpha * of_x
    of_a = jnp.einsum("mnl,nkl->mkl", of_x, b.astype(jnp.float32)).astype(a.dtype)
    return of_a, jnp.einsum("mnl,mkl->nkl", of_x, a.astype(jnp.float32)).astype(b.dtype)


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
) -> tuple[Any, Any]:
    """(d, dprob) of `gemm_srelu_backward`, also under `jax.jit` and `jax.vmap`. alpha may be an array of one element."""
    options = options_of(
        d_dtype=d_dtype,
        acc_dtype=acc_dtype,
        mma_tiler_mn=mma_tiler_mn,
        cluster_shape_mn=cluster_shape_mn,
        sf_vec_size=sf_vec_size,
        vector_f32=vector_f32,
    )
    tensors = {"a": a_tensor, "b": b_tensor, "c": c_tensor, "sfa": sfa_tensor, "sfb": sfb_tensor, "prob": prob_tensor}
    made = call("gemm_dsrelu", tensors, options, alpha)
    return made["d"], made["dprob"]


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
) -> tuple[Any, Any]:
    """(c, d) of `gemm_srelu_forward`, also under `jax.jit`, `jax.vmap` and `jax.grad`. alpha may be an array of one element.

    The gradient is `gemm_srelu_backward`'s, for a, b and prob; two products in fp32 follow it.
    """
    options = options_of(
        c_dtype=c_dtype,
        d_dtype=d_dtype,
        acc_dtype=acc_dtype,
        mma_tiler_mn=mma_tiler_mn,
        cluster_shape_mn=cluster_shape_mn,
        sf_vec_size=sf_vec_size,
        vector_f32=vector_f32,
    )
    scales = {"sfa": sfa_tensor, "sfb": sfb_tensor}

    def forward(a: Any, b: Any, prob: Any) -> tuple[Any, Any]:
        made = call("gemm_srelu", {"a": a, "b": b, "prob": prob, **scales}, options, alpha)
        return made["c"], made["d"]

    if sfa_tensor is not None or sfb_tensor is not None or isinstance(alpha, jax.Array):
        return forward(a_tensor, b_tensor, prob_tensor)
    function = jax.custom_vjp(forward)

    def keep(a: Any, b: Any, prob: Any) -> tuple[Any, Any]:
        return forward(a, b, prob), (a, b, prob)

    def backward(kept: Any, gradients: Any) -> tuple[Any, Any, Any]:
        a, b, prob = kept
        of_c, of_d = gradients
        if of_d.dtype not in (jnp.float32, jnp.float16, jnp.bfloat16):
            of_d = of_d.astype(jnp.float32)
        of_x, of_prob = gemm_srelu_jax_backward(a, b, of_d, prob_tensor=prob, alpha=alpha, d_dtype=jnp.float32)
        of_a, of_b = _product_gradients(of_x + of_c.astype(jnp.float32), a, b, alpha)
        return of_a, of_b, None if prob is None else of_prob

    function.defvjp(keep, backward)
    return function(a_tensor, b_tensor, prob_tensor)
