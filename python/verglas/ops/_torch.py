"""Operations on torch's tensors, as its custom operators ``torch.ops.verglas.*``. Imported with the first such tensor only."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from verglas._verglas import OperationOptions
from verglas.ops._frameworks import empty
from verglas.ops._operation import named
from verglas.ops._result import TupleDict


def _run(
    name: str, given: dict[str, Tensor | None], options: dict[str, Any], alpha: float, stream: int | None
) -> tuple[Tensor, ...]:
    operation, places = named(name)
    tensors = [given.get(place) for place in places]
    specs = operation.outputs(tensors, OperationOptions(**options))
    made = [tensor if spec is None else empty(spec, "torch") for tensor, spec in zip(tensors, specs, strict=True)]
    operation.run(made, OperationOptions(), alpha, stream)
    return tuple(tensor for tensor, spec in zip(made, specs, strict=True) if spec is not None)


def _like(a: Tensor, b: Tensor, dtype: torch.dtype, major: str, halves: int = 1) -> Tensor:
    """An output's layout: what `Operation.outputs` says, for sizes that may be symbols."""
    m, n, batch = a.shape[0], b.shape[0] // halves, a.shape[2]
    stride = (n, 1, m * n) if major == "n" else (1, m, m * n)
    return a.new_empty(0, dtype=dtype).new_empty_strided((m, n, batch), stride)


@torch.library.custom_op("verglas::gemm_amax", mutates_args=())
def gemm_amax(a: Tensor, b: Tensor, c_dtype: torch.dtype, major: str = "n", stream: int | None = None) -> tuple[Tensor, Tensor]:
    c, amax = _run("gemm_amax", {"a": a, "b": b}, {"c_dtype": c_dtype, "major": major}, 1.0, stream)
    return c, amax


@gemm_amax.register_fake
def _(a, b, c_dtype, major="n", stream=None):
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
) -> tuple[Tensor, Tensor]:
    options = {"ab12_dtype": ab12_dtype, "c_dtype": c_dtype, "major": major}
    ab12, c = _run("gemm_swiglu", {"a": a, "b": b}, options, alpha, stream)
    return ab12, c


@gemm_swiglu.register_fake
def _(a, b, alpha, ab12_dtype, c_dtype, major="n", stream=None):
    return _like(a, b, ab12_dtype, major), _like(a, b, c_dtype, major, halves=2)


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
) -> tuple[Tensor, Tensor]:
    options = {"c_dtype": c_dtype, "d_dtype": d_dtype, "major": major}
    c, d = _run("gemm_srelu", {"a": a, "b": b, "prob": prob}, options, alpha, stream)
    return c, d


@gemm_srelu.register_fake
def _(a, b, prob, alpha, c_dtype, d_dtype, major="n", stream=None):
    return _like(a, b, c_dtype, major), _like(a, b, d_dtype, major)


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
) -> tuple[Tensor, Tensor]:
    options = {"d_dtype": d_dtype, "major": major}
    d, dprob = _run("gemm_dsrelu", {"a": a, "b": b, "c": c, "prob": prob}, options, alpha, stream)
    return d, dprob


@gemm_dsrelu.register_fake
def _(a, b, c, prob, alpha, d_dtype, major="n", stream=None):
    return _like(a, b, d_dtype, major), a.new_empty((a.shape[0], 1, a.shape[2]), dtype=torch.float32)


def _packed(x: Tensor) -> Tensor:
    """The tensor with the batch outermost, n-major: gradients come in any strides."""
    return x.permute(2, 0, 1).contiguous().permute(1, 2, 0)


def _product_gradients(ctx: Any, of_x: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Of x = alpha · a · bᵀ: in fp32, rounded once to the operand's type."""
    of_x = of_x.float() * ctx.alpha
    of_a = torch.einsum("mnl,nkl->mkl", of_x, b.float()).to(a.dtype) if ctx.needs_input_grad[0] else None
    of_b = torch.einsum("mnl,mkl->nkl", of_x, a.float()).to(b.dtype) if ctx.needs_input_grad[1] else None
    return of_a, of_b


def _keep_srelu(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    a, b, prob, ctx.alpha, *_ = inputs
    ctx.save_for_backward(a, b, prob)


def _srelu_backward(ctx: Any, of_c: Tensor, of_d: Tensor) -> tuple[Any, ...]:
    a, b, prob = ctx.saved_tensors
    of_x, of_prob = gemm_dsrelu(a, b, _packed(of_d), prob, ctx.alpha, torch.float32)
    of_a, of_b = _product_gradients(ctx, of_x + of_c.float(), a, b)
    return of_a, of_b, of_prob if prob is not None and ctx.needs_input_grad[2] else None, None, None, None, None, None


gemm_srelu.register_autograd(_srelu_backward, setup_context=_keep_srelu)


def _keep_swiglu(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    a, b, ctx.alpha, *_ = inputs
    ctx.save_for_backward(a, b, output[0])


def _swiglu_backward(ctx: Any, of_ab12: Tensor, of_c: Tensor) -> tuple[Any, ...]:
    """From the stored ab12, so as precise as its type."""
    a, b, ab12 = ctx.saved_tensors
    m, n, batch = ab12.shape
    up, gate = ab12.float().reshape(m, n // 64, 2, 32, batch).unbind(2)
    sigmoid = torch.sigmoid(gate)
    of_c = of_c.float().reshape(m, n // 64, 32, batch)
    of_up = of_c * gate * sigmoid
    of_gate = of_c * up * sigmoid * (1 + gate * (1 - sigmoid))
    of_x = torch.stack((of_up, of_gate), 2).reshape(m, n, batch) + of_ab12.float()
    return *_product_gradients(ctx, of_x, a, b), None, None, None, None, None


gemm_swiglu.register_autograd(_swiglu_backward, setup_context=_keep_swiglu)

_OPERATORS = {
    "gemm_amax": (gemm_amax, ("a", "b"), ("c",), ("c", "amax")),
    "gemm_swiglu": (gemm_swiglu, ("a", "b"), ("ab12", "c"), ("ab12", "c")),
    "gemm_srelu": (gemm_srelu, ("a", "b", "prob"), ("c", "d"), ("c", "d")),
    "gemm_dsrelu": (gemm_dsrelu, ("a", "b", "c", "prob"), ("d",), ("d", "dprob")),
}
_DEFAULTS = {
    "gemm_amax": (torch.float32,),
    "gemm_swiglu": (torch.float32, torch.float16),
    "gemm_srelu": (torch.bfloat16, torch.bfloat16),
    "gemm_dsrelu": (torch.bfloat16,),
}


def _dtype(given: Any, default: torch.dtype) -> torch.dtype:
    if given is None:
        return default
    if isinstance(given, torch.dtype):
        return given
    from verglas._verglas import TensorSpec
    from verglas.ops._frameworks import torch_dtype

    return torch_dtype(TensorSpec([], given).data_type)


@torch.compiler.disable
def _run_with_scales(
    name: str, tensors: dict[str, Any], options: dict[str, Any], keys: tuple[str, ...], alpha: float, stream: Any
) -> TupleDict:
    """What has no operator, as operands with scales: nothing is differentiated, and a compiled program breaks here."""
    operation, places = named(name)
    given = [tensors.get(place) for place in places]
    specs = operation.outputs(given, OperationOptions(**options))
    given = [tensor if spec is None else empty(spec, "torch") for tensor, spec in zip(given, specs, strict=True)]
    operation.run(given, OperationOptions(**options), alpha, stream)
    made = {place: tensor for place, tensor, spec in zip(places, given, specs, strict=True) if spec is not None}
    return TupleDict((key, made.get(key.removesuffix("_tensor"))) for key in keys)


def run(
    name: str, tensors: dict[str, Any], options: dict[str, Any], keys: tuple[str, ...], alpha: float, stream: Any
) -> TupleDict:
    """The function of an operation, called with torch's tensors."""
    if name not in _OPERATORS:
        return _run_with_scales(name, tensors, options, keys, alpha, stream)
    operator, inputs, types, outputs = _OPERATORS[name]
    if not torch.compiler.is_compiling():  # what the operator has no argument for is checked here
        operation, places = named(name)
        tensors = {place: t if t is None else t.resolve_neg() for place, t in tensors.items()}  # types have no conjugates
        operation.outputs([tensors.get(place) for place in places], OperationOptions(**options))
    if any(tensor is not None and place not in inputs for place, tensor in tensors.items()):
        return _run_with_scales(name, tensors, options, keys, alpha, stream)
    if stream is not None and not isinstance(stream, int):
        stream = stream.cuda_stream
    arguments = [tensors.get(place) for place in inputs]
    if name != "gemm_amax":
        arguments.append(float(alpha))
    arguments += [_dtype(options.get(f"{t}_dtype"), d) for t, d in zip(types, _DEFAULTS[name], strict=True)]
    results = operator(*arguments, options.get("major", "n"), stream)
    made = dict(zip(outputs, results, strict=True))
    return TupleDict([(key, made.get(key.removesuffix("_tensor"))) for key in keys])
