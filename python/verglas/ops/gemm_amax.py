"""GEMM + amax; docs/ops/gemm_amax.md."""

from __future__ import annotations

from typing import Any

from verglas.ops._operation import PreparedOperation, constructor, executor, function_of
from verglas.ops._result import TupleDict


@function_of("gemm_amax", "c_tensor", "amax_tensor")
def gemm_amax_forward(
    a_tensor: Any,
    b_tensor: Any,
    sfa_tensor: Any = None,
    sfb_tensor: Any = None,
    c_major: str = "n",
    c_dtype: Any = None,
    acc_dtype: Any = None,
    mma_tiler_mn: tuple[int, int] = (128, 128),
    cluster_shape_mn: tuple[int, int] = (1, 1),
    sf_vec_size: int = 32,
    stream: Any = None,
    deterministic: bool | None = None,
) -> TupleDict:
    """``c = a · bᵀ`` and the largest magnitude in it, taken in fp32 before c is rounded.

    Parameters
    ----------
    a_tensor, b_tensor : array
        (M, K, L) and (N, K, L), packed, of one type: fp32, fp16, bf16, fp8; fp4 with scales.
    sfa_tensor, sfb_tensor : array
        Scales of blocks of ``sf_vec_size`` elements along K, both or none; then a and b are fp8 or fp4.
    c_major : str
        ``"n"`` or ``"m"``: which axis of c is contiguous.
    c_dtype : data type
        fp32 when ``None``; beside fp4 operands also fp4, or uint8 for its bytes: (M, N/2, L).

    Returns
    -------
    TupleDict
        c_tensor (M, N, L), amax_tensor (1, 1, 1) in fp32: -inf where c has no element, NaN where c has one.
    """


class GemmAmax(PreparedOperation):
    """`gemm_amax_forward` with the caller's outputs. amax is written, whatever it held."""

    __slots__ = ()
    _operation = "gemm_amax"

    @constructor
    def __init__(
        self,
        sample_a: Any,
        sample_b: Any,
        sample_sfa: Any,
        sample_sfb: Any,
        sample_c: Any,
        sample_amax: Any,
        acc_dtype: Any = None,
        mma_tiler_mn: tuple[int, int] = (128, 128),
        cluster_shape_mn: tuple[int, int] = (1, 1),
        sf_vec_size: int = 32,
        deterministic: bool | None = None,
    ) -> None:
        """Samples say types, majors and device."""

    @executor("gemm_amax")
    def execute(  # type: ignore[override]
        self,
        a_tensor: Any,
        b_tensor: Any,
        sfa_tensor: Any,
        sfb_tensor: Any,
        c_tensor: Any,
        amax_tensor: Any,
        current_stream: Any = None,
    ) -> None:
        """Launches into the outputs given."""
