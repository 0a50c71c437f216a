"""Projection + rotary embedding + MXFP8 in both directions; docs/ops/gemm_proj_rope_mxfp8.md."""

from __future__ import annotations

from typing import Any

from verglas.ops._operation import PreparedOperation, constructor, executor, function_of
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
    deterministic: bool | None = None,
    head_dim: int = 192,
) -> TupleDict:
    """``x · wᵀ`` in heads of 192 features, the last 64 of each rotated, quantised along features and along tokens.

    Parameters
    ----------
    x : array
        (tokens, K) in bf16, or in e4m3 with x_scale (tokens, K/32) in e8m0 or uint8. Tokens are a multiple of 32.
    w : array
        (192·H, K), or (K, 192·H) with ``w_out_in=False``, of x's type; w_scale as x_scale.
    cos, sin : array
        (tokens, 64) in bf16; with another number of columns, a multiple of 32, so many features are rotated.
    head_dim : int
        Features of a head, a multiple of 32: what stands for 192 here.

    Returns
    -------
    TupleDict
        out_fp8_row (tokens, H, 192) in e4m3, out_scales_row (tokens, H, 6) in uint8, out_fp8_col (tokens, H, 192),
        out_scales_col (tokens/32, H, 192).
    """


class GemmProjRopeMxfp8Bf16In(PreparedOperation):
    """`gemm_proj_rope_mxfp8_forward` of bf16 operands with the caller's outputs; w is (K, 192·H) unless ``w_out_in``."""

    __slots__ = ()
    _operation = "gemm_proj_rope_mxfp8"

    @constructor
    def __init__(
        self,
        sample_x: Any,
        sample_w: Any,
        sample_cos: Any,
        sample_sin: Any,
        sample_out_fp8_row: Any,
        sample_out_scales_row: Any,
        sample_out_fp8_col: Any,
        sample_out_scales_col: Any,
        w_out_in: bool = False,
        deterministic: bool | None = None,
        head_dim: int = 192,
    ) -> None:
        """Samples say types, layouts and device."""

    @executor("gemm_proj_rope_mxfp8")
    def execute(  # type: ignore[override]
        self,
        x: Any,
        w: Any,
        cos: Any,
        sin: Any,
        out_fp8_row: Any,
        out_scales_row: Any,
        out_fp8_col: Any,
        out_scales_col: Any,
        current_stream: Any = None,
    ) -> None:
        """Launches into the outputs given."""


class GemmProjRopeMxfp8Mxfp8In(PreparedOperation):
    """The same of e4m3 operands, each with its scales behind it; w is (192·H, K)."""

    __slots__ = ()
    _operation = "gemm_proj_rope_mxfp8"

    @constructor
    def __init__(
        self,
        sample_x_code: Any,
        sample_x_scale: Any,
        sample_w_code: Any,
        sample_w_scale: Any,
        sample_cos: Any,
        sample_sin: Any,
        sample_out_fp8_row: Any,
        sample_out_scales_row: Any,
        sample_out_fp8_col: Any,
        sample_out_scales_col: Any,
        deterministic: bool | None = None,
        head_dim: int = 192,
    ) -> None:
        """Samples say types, layouts and device."""

    @executor("gemm_proj_rope_mxfp8")
    def execute(  # type: ignore[override]
        self,
        x_code: Any,
        x_scale: Any,
        w_code: Any,
        w_scale: Any,
        cos: Any,
        sin: Any,
        out_fp8_row: Any,
        out_scales_row: Any,
        out_fp8_col: Any,
        out_scales_col: Any,
        current_stream: Any = None,
    ) -> None:
        """Launches into the outputs given."""
