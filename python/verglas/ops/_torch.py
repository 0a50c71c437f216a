"""Operations on torch's tensors, as its custom operators ``torch.ops.verglas.*``. Imported with the first such tensor only."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter
from torch.utils import _pytree as pytree

from verglas._verglas import OperationFunction, OperationOptions, TensorSpec, data_type, use_torch
from verglas.ops._frameworks import empty, refused, spec_of, torch_dtype
from verglas.ops._operation import named
from verglas.ops._result import TupleDict


def _flat(r: TupleDict) -> tuple[list[Tensor], list[Any]]:
    """Outputs that were produced, and the names of all with whether they were."""
    return [v for v in r.values() if v is not None], [[key, v is not None] for key, v in r.items()]


def _from_flat(values: Any, names: list[Any]) -> TupleDict:
    rest = iter(values)
    return TupleDict([(key, next(rest) if is_there else None) for key, is_there in names])


# Results of what `torch.export` and `torch.func.vmap` are given.
pytree.register_pytree_node(TupleDict, _flat, _from_flat, serialized_type_name="verglas.TupleDict")

_FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)
_FP4 = getattr(torch, "float4_e2m1fn_x2", None)


@functools.cache
def _short(name: str) -> OperationFunction:
    """The operation by the names of its places and of the library's options."""
    operation, places = named(name)
    outputs = tuple(place for place, is_output, _ in operation.tensors if is_output)
    inputs = tuple(place for place in places if place not in outputs)
    options = {"ab12_dtype": None, "c_dtype": None, "d_dtype": None, "major": "n", "sf_vec_size": 0, "w_out_in": True}
    options["head_dim"] = 192
    defaults = (*(None for _ in inputs), *options.values(), 1.0, None)
    names = (*inputs, *options, "alpha", "stream")
    return OperationFunction(
        operation,
        names,
        defaults,
        {place: place for place in inputs},
        {o: o for o in options},
        outputs,
        dict,
        below_autograd=True,
    )


def _run(
    name: str, given: dict[str, Tensor | None], options: dict[str, Any], alpha: float, stream: int | None
) -> dict[str, Tensor]:
    """New outputs by place."""
    made = _short(name)((), {**given, **options, "alpha": alpha, "stream": stream})
    if made is not None:
        return {place: tensor for place, tensor in made.items() if tensor is not None}
    operation, places = named(name)
    tensors = [given.get(place) for place in places]
    specs = operation.outputs(tensors, OperationOptions(**options))
    made = [tensor if spec is None else empty(spec, "torch") for tensor, spec in zip(tensors, specs, strict=True)]
    operation.run(made, OperationOptions(**options), alpha, stream)
    return {place: tensor for place, tensor, spec in zip(places, made, specs, strict=True) if spec is not None}


def _amax_and_scales(made: dict[str, Tensor], a: Tensor, scales: str = "sfd") -> tuple[Tensor, Tensor]:
    """An operator has all of its outputs: one that was not asked for has no elements. Scales are bytes, which are no numbers
    that autograd would differentiate."""
    of_blocks = made[scales].view(torch.uint8) if scales in made else a.new_empty(0, dtype=torch.uint8)
    return made.get("amax", a.new_empty(0, dtype=torch.float32)), of_blocks


def _hint(size: Any) -> int | None:
    """The size, or of a symbol the one of the example that is being traced."""
    if isinstance(size, int):
        return size
    return int(size.node.hint) if size.node.has_hint() else None


def _spec(name: str, place: str, tensor: Tensor) -> TensorSpec | None:
    """What the tensor looks like; None where that is not known before the program runs."""
    shape, stride = [_hint(s) for s in tensor.shape], [_hint(s) for s in tensor.stride()]
    if None in shape or None in stride:
        return None
    dtype = torch.uint8 if tensor.dtype == _FP4 and place in ("a", "b") else tensor.dtype  # whose extents count bytes
    device = str(tensor.device) if tensor.device.type == "cuda" else "cpu"
    return spec_of(f"{name}, {place}", shape, dtype, stride, device)


def _check(name: str, tensors: dict[str, Tensor | None], options: dict[str, Any]) -> None:
    """Refuses for tensors without memory what the operation refuses, and those beside tensors that have some."""
    operation, places = named(name)
    devices = {place: tensor.device for place, tensor in tensors.items() if tensor is not None}
    first = next(iter(devices.values()))
    for place, device in devices.items():
        if device != first and "meta" in (device.type, first.type):
            raise refused("op.device", f"{name}, {place}", f"memory on {device}", f"{first} as the first tensor")
    specs = {place: _spec(name, place, tensor) for place, tensor in tensors.items() if tensor is not None}
    if None not in specs.values():
        operation.outputs([specs.get(place) for place in places], OperationOptions(**options))


def _like(a: Tensor, b: Tensor, dtype: torch.dtype, major: str, halves: int = 1) -> Tensor:
    """An output's layout: what `Operation.outputs` says, for sizes that may be symbols."""
    in_pairs = 2 if dtype in (torch.uint8, _FP4) else 1
    m, n, batch = a.shape[0], b.shape[0] // halves // in_pairs, a.shape[2]
    stride = (n, 1, m * n) if major == "n" else (1, m, m * n)
    return a.new_empty(0, dtype=dtype).new_empty_strided((m, n, batch), stride)


def _makes_amax(name: str, a: Tensor, dtype: torch.dtype, sfa: Tensor | None) -> bool:
    """Of fp4 operands: of a c in bf16 (SwiGLU), of a d that is not quantised."""
    is_fp4 = sfa is not None and a.dtype not in _FP8
    return is_fp4 and (dtype == torch.bfloat16 if name == "gemm_swiglu" else dtype not in _FP8)


def _amax_like(a: Tensor, d_dtype: torch.dtype, sfa: Tensor | None) -> Tensor:
    return a.new_empty(1 if _makes_amax("gemm_srelu", a, d_dtype, sfa) else 0, dtype=torch.float32)


def _scales_like(a: Tensor, b: Tensor, d_dtype: torch.dtype, sfa: Tensor | None, block: int, halves: int = 1) -> Tensor:
    """Atoms of 128 rows by 4 blocks."""
    scales = a.new_empty(0, dtype=torch.uint8)
    if sfa is None or d_dtype not in _FP8:
        return scales
    rows, columns = (a.shape[0] + 127) // 128, (b.shape[0] // halves + 4 * block - 1) // (4 * block)
    shape = (32, 4, rows, 4, columns, a.shape[2])
    return scales.new_empty_strided(shape, (16, 4, 512 * columns, 1, 512, 512 * columns * rows))


@torch.library.custom_op("verglas::gemm_amax", mutates_args=())
def gemm_amax(
    a: Tensor,
    b: Tensor,
    c_dtype: torch.dtype,
    major: str = "n",
    stream: int | None = None,
    sfa: Tensor | None = None,
    sfb: Tensor | None = None,
    sf_vec_size: int = 0,
) -> tuple[Tensor, Tensor]:
    options = {"c_dtype": c_dtype, "major": major, "sf_vec_size": sf_vec_size}
    made = _run("gemm_amax", {"a": a, "b": b, "sfa": sfa, "sfb": sfb}, options, 1.0, stream)
    return made["c"], made["amax"]


@gemm_amax.register_fake
def _(a, b, c_dtype, major="n", stream=None, sfa=None, sfb=None, sf_vec_size=0):
    options = {"c_dtype": c_dtype, "major": major, "sf_vec_size": sf_vec_size}
    _check("gemm_amax", {"a": a, "b": b, "sfa": sfa, "sfb": sfb}, options)
    return _like(a, b, c_dtype, major), a.new_empty((1, 1, 1), dtype=torch.float32)


@torch.library.custom_op("verglas::gemm_swiglu", mutates_args=())
def gemm_swiglu(
    a: Tensor,
    b: Tensor,
    alpha: float,
    ab12_dtype: torch.dtype,
    c_dtype: torch.dtype,
    major: str = "n",
    stream: int | None = None,
    sfa: Tensor | None = None,
    sfb: Tensor | None = None,
    norm_const: Tensor | None = None,
    sf_vec_size: int = 0,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    options = {"ab12_dtype": ab12_dtype, "c_dtype": c_dtype, "major": major, "sf_vec_size": sf_vec_size}
    tensors = {"a": a, "b": b, "sfa": sfa, "sfb": sfb, "norm_const": norm_const}
    made = _run("gemm_swiglu", tensors, options, alpha, stream)
    return made["ab12"], made["c"], *_amax_and_scales(made, a, "sfc")


@gemm_swiglu.register_fake
def _(a, b, alpha, ab12_dtype, c_dtype, major="n", stream=None, sfa=None, sfb=None, norm_const=None, sf_vec_size=0):
    options = {"ab12_dtype": ab12_dtype, "c_dtype": c_dtype, "major": major, "sf_vec_size": sf_vec_size}
    _check("gemm_swiglu", {"a": a, "b": b, "sfa": sfa, "sfb": sfb, "norm_const": norm_const}, options)
    amax = a.new_empty((1, 1, 1) if _makes_amax("gemm_swiglu", a, c_dtype, sfa) else (0,), dtype=torch.float32)
    scales = _scales_like(a, b, c_dtype, sfa, sf_vec_size, halves=2)
    return _like(a, b, ab12_dtype, major), _like(a, b, c_dtype, major, halves=2), amax, scales


@torch.library.custom_op("verglas::gemm_srelu", mutates_args=())
def gemm_srelu(
    a: Tensor,
    b: Tensor,
    prob: Tensor | None,
    alpha: float,
    c_dtype: torch.dtype,
    d_dtype: torch.dtype,
    major: str = "n",
    stream: int | None = None,
    sfa: Tensor | None = None,
    sfb: Tensor | None = None,
    norm_const: Tensor | None = None,
    sf_vec_size: int = 0,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    options = {"c_dtype": c_dtype, "d_dtype": d_dtype, "major": major, "sf_vec_size": sf_vec_size}
    tensors = {"a": a, "b": b, "prob": prob, "sfa": sfa, "sfb": sfb, "norm_const": norm_const}
    made = _run("gemm_srelu", tensors, options, alpha, stream)
    return made["c"], made["d"], *_amax_and_scales(made, a)


@gemm_srelu.register_fake
def _(a, b, prob, alpha, c_dtype, d_dtype, major="n", stream=None, sfa=None, sfb=None, norm_const=None, sf_vec_size=0):
    options = {"c_dtype": c_dtype, "d_dtype": d_dtype, "major": major, "sf_vec_size": sf_vec_size}
    _check("gemm_srelu", {"a": a, "b": b, "prob": prob, "sfa": sfa, "sfb": sfb, "norm_const": norm_const}, options)
    others = _amax_like(a, d_dtype, sfa), _scales_like(a, b, d_dtype, sfa, sf_vec_size)
    return _like(a, b, c_dtype, major), _like(a, b, d_dtype, major), *others


@torch.library.custom_op("verglas::gemm_dsrelu", mutates_args=())
def gemm_dsrelu(
    a: Tensor,
    b: Tensor,
    c: Tensor,
    prob: Tensor | None,
    alpha: float,
    d_dtype: torch.dtype,
    major: str = "n",
    stream: int | None = None,
    sfa: Tensor | None = None,
    sfb: Tensor | None = None,
    norm_const: Tensor | None = None,
    sf_vec_size: int = 0,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    options = {"d_dtype": d_dtype, "major": major, "sf_vec_size": sf_vec_size}
    tensors = {"a": a, "b": b, "c": c, "prob": prob, "sfa": sfa, "sfb": sfb, "norm_const": norm_const}
    made = _run("gemm_dsrelu", tensors, options, alpha, stream)
    return made["d"], made["dprob"], *_amax_and_scales(made, a)


@gemm_dsrelu.register_fake
def _(a, b, c, prob, alpha, d_dtype, major="n", stream=None, sfa=None, sfb=None, norm_const=None, sf_vec_size=0):
    tensors = {"a": a, "b": b, "c": c, "prob": prob, "sfa": sfa, "sfb": sfb, "norm_const": norm_const}
    _check("gemm_dsrelu", tensors, {"d_dtype": d_dtype, "major": major, "sf_vec_size": sf_vec_size})
    others = _amax_like(a, d_dtype, sfa), _scales_like(a, b, d_dtype, sfa, sf_vec_size)
    return _like(a, b, d_dtype, major), a.new_empty((a.shape[0], 1, a.shape[2]), dtype=torch.float32), *others


@torch.library.custom_op("verglas::gemm_proj_rope_mxfp8", mutates_args=())
def gemm_proj_rope_mxfp8(
    x: Tensor,
    w: Tensor,
    cos: Tensor,
    sin: Tensor,
    x_scale: Tensor | None = None,
    w_scale: Tensor | None = None,
    w_out_in: bool = True,
    stream: int | None = None,
    head_dim: int = 192,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    tensors = {"x": x, "w": w, "cos": cos, "sin": sin, "x_scale": x_scale, "w_scale": w_scale}
    made = _run("gemm_proj_rope_mxfp8", tensors, {"w_out_in": w_out_in, "head_dim": head_dim}, 1.0, stream)
    return made["out_fp8_row"], made["out_scales_row"], made["out_fp8_col"], made["out_scales_col"]


@gemm_proj_rope_mxfp8.register_fake
def _(x, w, cos, sin, x_scale=None, w_scale=None, w_out_in=True, stream=None, head_dim=192):
    tensors = {"x": x, "w": w, "cos": cos, "sin": sin, "x_scale": x_scale, "w_scale": w_scale}
    _check("gemm_proj_rope_mxfp8", tensors, {"w_out_in": w_out_in, "head_dim": head_dim})
    tokens, heads = x.shape[0], w.shape[0 if w_out_in else 1] // head_dim
    e4m3, scales = x.new_empty(0, dtype=torch.float8_e4m3fn), x.new_empty(0, dtype=torch.uint8)
    row, col = e4m3.new_empty((tokens, heads, head_dim)), e4m3.new_empty((tokens, heads, head_dim))
    return row, scales.new_empty((tokens, heads, head_dim // 32)), col, scales.new_empty((tokens // 32, heads, head_dim))


def _packed(x: Tensor) -> Tensor:
    """The tensor with the batch outermost, n-major: gradients come in any strides."""
    return x.permute(2, 0, 1).contiguous().permute(1, 2, 0)


def _one_of(x: Any, axis: int | None, i: int, is_projection: bool) -> Any:
    """An element of what a `vmap` maps, laid out as operations take it: strides of such elements are nobody's choice."""
    if not isinstance(x, Tensor):
        return x
    if axis is not None:
        x = x.select(axis, i) if x.shape[axis] > 0 else x.new_zeros([n for a, n in enumerate(x.shape) if a != axis])
    if is_projection or x.ndim not in (3, 6):
        return x.contiguous()
    if x.ndim == 3:
        return _packed(x)
    if x.shape[3] == 4:  # atoms: (32, 4, R', 4, K', L)
        return x.permute(5, 2, 4, 0, 1, 3).contiguous().permute(3, 4, 1, 5, 2, 0)
    return x.contiguous()


def _map_one_by_one(operator: Any) -> None:
    is_projection = operator is gemm_proj_rope_mxfp8

    def rule(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        axes = (*in_dims, *(None for _ in arguments[len(in_dims) :]))
        made = [
            operator(*(_one_of(x, axis, i, is_projection) for x, axis in zip(arguments, axes, strict=True)))
            for i in range(max(info.batch_size, 1))  # of nothing, too, an element says what it looks like
        ]
        outputs = tuple(torch.stack(each)[: info.batch_size] for each in zip(*made, strict=True))
        return outputs, (0,) * len(outputs)

    operator.register_vmap(rule)


for _operator in (gemm_amax, gemm_swiglu, gemm_srelu, gemm_dsrelu, gemm_proj_rope_mxfp8):
    if hasattr(_operator, "register_vmap"):  # before torch 2.5 elements are taken as they lie
        _map_one_by_one(_operator)


def _product_gradients(ctx: Any, of_x: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Of x = alpha · a · bᵀ: in fp32, whatever autocast says where backward is called, rounded once to the operand's type."""
    kind = of_x.device.type
    is_cast = kind in ("cpu", "cuda") and torch.is_autocast_enabled(kind)
    with torch.autocast(kind, enabled=False) if is_cast else contextlib.nullcontext():
        of_x = of_x.float() * ctx.alpha
        a_float, b_float, of_x = (t.float().permute(2, 0, 1) for t in (a, b, of_x))
        of_a = (of_x @ b_float).permute(1, 2, 0).to(a.dtype) if ctx.needs_input_grad[0] else None
        of_b = (of_x.mT @ a_float).permute(1, 2, 0).to(b.dtype) if ctx.needs_input_grad[1] else None
    return of_a, of_b


def _differentiable(operator: Any, keep: Callable[..., None], backward: Callable[..., Any]) -> Any:
    """The operator for torch.func's transforms, which look at no autograd of custom operators."""

    class Differentiable(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(*arguments: Any) -> Any:
            return operator(*arguments)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            keep(ctx, inputs, output)

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            return backward(ctx, *gradients)

    Differentiable.__name__ = operator._name
    return Differentiable


def _keep_nothing(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    pass


def _no_derivative(ctx: Any, *_: Any) -> Any:
    raise RuntimeError("this operation of verglas has no derivative")


# Of operators under torch.func's transforms.
_DIFFERENTIABLE: dict[str, Any] = {
    operator._name.removeprefix("verglas::"): _differentiable(operator, _keep_nothing, _no_derivative)
    for operator in (gemm_amax, gemm_dsrelu, gemm_proj_rope_mxfp8)
}


def _keep_srelu(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    a, b, prob, ctx.alpha, _, _, _, _, sfa, sfb, _, ctx.sf_vec_size = inputs
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(output[2])
    ctx.save_for_backward(a, b, prob, sfa, sfb)


def _srelu_backward(ctx: Any, of_c: Tensor | None, of_d: Tensor | None, *_: None) -> tuple[Any, ...]:
    a, b, prob, sfa, sfb = ctx.saved_tensors
    if sfa is not None and any(ctx.needs_input_grad[:2]):
        raise RuntimeError("verglas::gemm_srelu: operands with block scales have no gradient")
    if of_d is None:
        of_x, of_prob = 0.0, None
    elif of_d.dtype in _FP8:
        raise RuntimeError("verglas::gemm_srelu: a quantised d has no gradient")
    else:
        given = {"a": a, "b": b, "c": _packed(of_d), "prob": prob, "alpha": ctx.alpha, "d_dtype": torch.float32}
        of_x, of_prob, _, _ = _call("gemm_dsrelu", {**given, "sfa": sfa, "sfb": sfb, "sf_vec_size": ctx.sf_vec_size})
    if of_c is not None:
        of_x = of_x + of_c.float()
    gradients = (None, None) if sfa is not None or isinstance(of_x, float) else _product_gradients(ctx, of_x, a, b)
    return *gradients, of_prob if prob is not None and ctx.needs_input_grad[2] else None, *[None] * 9


gemm_srelu.register_autograd(_srelu_backward, setup_context=_keep_srelu)
_DIFFERENTIABLE["gemm_srelu"] = _differentiable(gemm_srelu, _keep_srelu, _srelu_backward)


def _keep_swiglu(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    a, b, ctx.alpha, *_ = inputs
    ctx.is_scaled = inputs[7] is not None
    ctx.mark_non_differentiable(output[2])
    ctx.save_for_backward(a, b, output[0])


def _swiglu_backward(ctx: Any, of_ab12: Tensor, of_c: Tensor, *_: None) -> tuple[Any, ...]:
    """From the stored ab12, so as precise as its type."""
    if ctx.is_scaled:
        raise RuntimeError("verglas::gemm_swiglu: operands with block scales have no gradient")
    a, b, ab12 = ctx.saved_tensors
    m, n, batch = ab12.shape
    up, gate = ab12.float().reshape(m, n // 64, 2, 32, batch).unbind(2)
    sigmoid = torch.sigmoid(gate)
    of_c = of_c.float().reshape(m, n // 64, 32, batch)
    of_up = of_c * gate * sigmoid
    of_gate = of_c * up * sigmoid * (1 + gate * (1 - sigmoid))
    of_x = torch.stack((of_up, of_gate), 2).reshape(m, n, batch) + of_ab12.float()
    return *_product_gradients(ctx, of_x, a, b), *[None] * 9


gemm_swiglu.register_autograd(_swiglu_backward, setup_context=_keep_swiglu)
_DIFFERENTIABLE["gemm_swiglu"] = _differentiable(gemm_swiglu, _keep_swiglu, _swiglu_backward)

# Operator, places of its inputs, its types and their defaults, whether it has alpha and majors, places of its outputs.
_SCALES = ("sfa", "sfb")
_QUANTISED = (*_SCALES, "norm_const")
_PROJECTION = ("x", "w", "cos", "sin", "x_scale", "w_scale")
_F32, _F16, _BF16 = torch.float32, torch.float16, torch.bfloat16
_OPERATORS: dict[str, tuple[Any, tuple[str, ...], dict[str, torch.dtype], tuple[str, ...], tuple[str, ...]]] = {
    "gemm_amax": (gemm_amax, ("a", "b", *_SCALES), {"c_dtype": _F32}, ("major", "sf_vec_size"), ("c", "amax")),
    "gemm_swiglu": (
        gemm_swiglu,
        ("a", "b", *_QUANTISED),
        {"ab12_dtype": _F32, "c_dtype": _F16},
        ("alpha", "major", "sf_vec_size"),
        ("ab12", "c", "amax", "sfc"),
    ),
    "gemm_srelu": (
        gemm_srelu,
        ("a", "b", "prob", *_QUANTISED),
        {"c_dtype": _BF16, "d_dtype": _BF16},
        ("alpha", "major", "sf_vec_size"),
        ("c", "d", "amax", "sfd"),
    ),
    "gemm_dsrelu": (
        gemm_dsrelu,
        ("a", "b", "c", "prob", *_QUANTISED),
        {"d_dtype": _BF16},
        ("alpha", "major", "sf_vec_size"),
        ("d", "dprob", "amax", "sfd"),
    ),
    "gemm_proj_rope_mxfp8": (
        gemm_proj_rope_mxfp8,
        _PROJECTION,
        {},
        ("w_out_in", "head_dim"),
        ("out_fp8_row", "out_scales_row", "out_fp8_col", "out_scales_col"),
    ),
}


def _names_of(kind: data_type) -> tuple[Any, ...]:
    dtype = torch_dtype(kind)
    plain = {"FLOAT": "fp32", "HALF": "fp16", "BFLOAT16": "bf16"}.get(kind.name, kind.name.lower())
    return kind, kind.name, plain, str(dtype).removeprefix("torch.")


# Types by what they are called, for torch's compiler, which cannot look into the library.
_NAMED = {
    name: torch_dtype(kind)
    for kind in (
        *(data_type.FLOAT, data_type.HALF, data_type.BFLOAT16, data_type.FP8_E4M3, data_type.FP8_E5M2, data_type.UINT8),
        *((data_type.FP4_E2M1,) if _FP4 is not None else ()),
    )
    for name in _names_of(kind)
}


def _dtype(option: str, given: Any, default: torch.dtype) -> torch.dtype:
    if given is None:
        return default
    if isinstance(given, torch.dtype):
        return given
    if isinstance(given, (str, data_type)) and given in _NAMED:
        return _NAMED[given]
    kind = spec_of(option, [], given, None).data_type
    try:
        return torch_dtype(kind)
    except KeyError:
        raise refused("op.dtype", option, kind.name, "a type of torch's") from None


def _handle(stream: Any) -> int | None:
    """The address that a stream has, as an operator takes it."""
    if stream is None or isinstance(stream, int):
        return stream
    if hasattr(stream, "cuda_stream"):
        return stream.cuda_stream
    if hasattr(stream, "__cuda_stream__"):
        return stream.__cuda_stream__()[1]
    if hasattr(stream, "__index__"):
        return stream.__index__()
    raise refused("pack.stream", "stream", repr(stream), "None, an address, or an object that has one")


_functorch = getattr(torch._C, "_functorch", None)
_can_be_plain = hasattr(_functorch, "peek_interpreter_stack")

# What torch's compiler allocates with; the second on the current device alone.
_guards = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
_current_device = getattr(torch._C, "_cuda_getDevice", None)

if _can_be_plain:
    use_torch(
        tensor=Tensor,
        parameter=Parameter,
        empty=torch.empty_strided,
        host_empty=getattr(_guards, "_empty_strided_cpu", None),
        cuda_empty=getattr(_guards, "_empty_strided_cuda", None) if _current_device is not None else None,
        current_device=_current_device,
        dtype_of=torch_dtype,
        device=torch.device,
        grad_enabled=torch.is_grad_enabled,
        transform=_functorch.peek_interpreter_stack,
        tracing=torch._C._get_tracing_state,
        modes=torch._C._len_torch_dispatch_stack,
        functions=torch._C._len_torch_function_stack,
        forward=vars(forward_ad),
    )


def _are_plain(tensors: list[Tensor]) -> bool:
    """True where no subclass, mode, transform or tracer of torch's looks at calls with these tensors, and all have memory."""
    return (
        _can_be_plain
        and all(type(t) in (Tensor, Parameter) and not t.is_meta for t in tensors)
        and forward_ad._current_level < 0
        and _functorch.peek_interpreter_stack() is None
        and torch._C._get_tracing_state() is None
        and torch._C._len_torch_dispatch_stack() == 0
        and torch._C._len_torch_function_stack() == 0
    )


def _call(name: str, arguments: dict[str, Any]) -> Any:
    operator = _OPERATORS[name][0]
    if not torch.compiler.is_compiling():
        if forward_ad._current_level >= 0:
            for tensor in arguments.values():
                if isinstance(tensor, Tensor) and forward_ad.unpack_dual(tensor).tangent is not None:
                    raise RuntimeError(f"verglas::{name} has no derivative in forward mode")
        if _can_be_plain and _functorch.peek_interpreter_stack() is not None:
            return _DIFFERENTIABLE[name].apply(*_positional(name)(**arguments))
    return operator(**arguments)


@functools.cache
def _positional(name: str) -> Callable[..., tuple[Any, ...]]:
    """All arguments of an operator in their order."""
    schema = _OPERATORS[name][0]._opoverload._schema.arguments
    return lambda **given: tuple(given[a.name] if a.name in given else a.default_value for a in schema)


def run(
    name: str, tensors: dict[str, Any], options: dict[str, Any], keys: tuple[str, ...], alpha: float, stream: Any
) -> TupleDict:
    """The function of an operation, called with torch's tensors: the operator, but without torch's dispatch where nothing needs
    it, which takes longer than all the rest."""
    if not torch.compiler.is_compiling() and _are_plain([t for t in tensors.values() if t is not None]):
        operation, places = named(name)
        tensors = {place: t if t is None else t.resolve_neg() for place, t in tensors.items()}  # types have no conjugates
        given, settings = [tensors.get(place) for place in places], OperationOptions(**options)
        specs = operation.outputs(given, settings)  # looks also at what the operator has no argument for
        if not (torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in given)):
            given = [tensor if spec is None else empty(spec, "torch") for tensor, spec in zip(given, specs, strict=True)]
            operation.run(given, settings, alpha, stream)
            made = {place: tensor for place, tensor, spec in zip(places, given, specs, strict=True) if spec is not None}
            return TupleDict([(key, made.get(key.removesuffix("_tensor"))) for key in keys])
    _, inputs, types, others, outputs = _OPERATORS[name]
    stream = _handle(stream)
    chosen = {**options, "alpha": float(alpha)}
    arguments = {place: tensors.get(place) for place in inputs}
    arguments |= {option: _dtype(option, options.get(option), default) for option, default in types.items()}
    arguments |= {option: chosen[option] for option in others if option in chosen}
    made = dict(zip(outputs, _call(name, {**arguments, "stream": stream}), strict=True))
    if "alpha" in others:  # its further outputs are not always made
        data, scales = ("c", "sfc") if name == "gemm_swiglu" else ("d", "sfd")
        sfa, dtype = tensors["sfa"], arguments[f"{data}_dtype"]
        if not _makes_amax(name, tensors["a"], dtype, sfa):
            made["amax"] = None
        kind = torch.float8_e4m3fn if sfa is not None and sfa.dtype == torch.float8_e4m3fn else torch.float8_e8m0fnu
        made[scales] = made[scales].view(kind) if dtype in _FP8 else None
    return TupleDict([(key, made.get(key.removesuffix("_tensor"))) for key in keys])
