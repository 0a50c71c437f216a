"""Projection + rotary embedding + MXFP8 in both directions; docs/ops/gemm_proj_rope_mxfp8.md."""

from __future__ import annotations

from typing import Any

from verglas.ops._operation import PreparedOperation, function_of
from verglas.ops._result import TupleDict

_KEYS = ("out_fp8_row", "out_scales_row", "out_fp8_col", "out_scales_col")


@function_of("gemm_proj_rope_mxfp8", *_KEYS)
def gemm_proj_rope_mxfp8_forward(
    x: Any,
    w: Any,
    cos: Any,
    sin: Any,
    x_scale: Any = None,
    w_scale: Any = None,
    w_out_in: bool = True,
    stream: Any = None,
) -> TupleDict:
    """``x · wᵀ`` in heads of 192 features, the last 64 of each rotated, quantised along features and along tokens.

    Parameters
    ----------
    x : array
        (tokens, K) in bf16, or in e4m3 with x_scale (tokens, K/32) in e8m0 or uint8. Tokens are a multiple of 32.
    w : array
        (192·H, K), or (K, 192·H) with ``w_out_in=False``, of x's type; w_scale as x_scale.
    cos, sin : array
        (tokens, 64) in bf16.

    Returns
    -------
    TupleDict
        out_fp8_row (tokens, H, 192) in e4m3, out_scales_row (tokens, H, 6) in uint8, out_fp8_col (tokens, H, 192),
        out_scales_col (tokens/32, H, 192).
    """


class GemmProjRopeMxfp8Bf16In(PreparedOperation):
    """`gemm_proj_rope_mxfp8_forward` of bf16 operands with the caller's outputs; w is (K, 192·H) unless ``w_out_in``."""

    _operation = "gemm_proj_rope_mxfp8"
    _order = ("x", "w", "cos", "sin", *_KEYS)

    def __init__(self, *samples: Any, w_out_in: bool = False) -> None:
        super().__init__(dict(zip(self._order, samples, strict=True)), {"w_out_in": w_out_in})

    def execute(self, *tensors: Any, current_stream: Any = None) -> None:
        """Launches into the outputs given: x, w, cos, sin, then the four outputs."""
        self._execute(dict(zip(self._order, tensors, strict=True)), None, current_stream)


class GemmProjRopeMxfp8Mxfp8In(GemmProjRopeMxfp8Bf16In):
    """The same of e4m3 operands with scales: x, x_scale, w, w_scale, cos, sin, then the outputs; w is (192·H, K)."""

    _order = ("x", "x_scale", "w", "w_scale", "cos", "sin", *_KEYS)

    def __init__(self, *samples: Any) -> None:
        super().__init__(*samples, w_out_in=True)
