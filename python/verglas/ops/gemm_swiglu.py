"""GEMM + SwiGLU; docs/ops/gemm_swiglu.md."""

from __future__ import annotations

from typing import Any

from verglas.ops._operation import PreparedOperation, constructor, executor, function_of
from verglas.ops._result import TupleDict


@function_of("gemm_swiglu", "ab12_tensor", "c_tensor", "sfc_tensor", "amax_tensor")
def gemm_swiglu_forward(
    a_tensor: Any,
    b_tensor: Any,
    alpha: float = 1.0,
    c_major: str = "n",
    ab12_dtype: Any = None,
    c_dtype: Any = None,
    acc_dtype: Any = None,
    mma_tiler_mn: tuple[int, int] = (128, 128),
    cluster_shape_mn: tuple[int, int] | None = None,
    sfa_tensor: Any = None,
    sfb_tensor: Any = None,
    norm_const_tensor: Any = None,
    sf_vec_size: int = 16,
    vector_f32: bool = False,
    ab12_stages: int = 4,
    stream: Any = None,
    deterministic: bool | None = None,
) -> TupleDict:
    """``ab12 = alpha · a · bᵀ`` and ``c = up · gate · sigmoid(gate)``, of runs of 32 columns of ab12: up, gate, up, gate, …

    Parameters
    ----------
    a_tensor, b_tensor : array
        (M, K, L) and (N, K, L), packed, of one type: fp32, fp16, bf16, fp8; fp4 with scales. N is a multiple
        of 64.
    c_major : str
        ``"n"`` or ``"m"``: which axis of the outputs is contiguous.
    ab12_dtype, c_dtype : data type
        fp32 and fp16 when ``None``; c in fp8 beside operands with scales.
    sfa_tensor, sfb_tensor : array
        Scales of blocks of ``sf_vec_size`` elements along K, both or none; then a and b are fp8 or fp4.
    norm_const_tensor : array
        One fp32, with c in fp8: c is multiplied by it before its blocks of ``sf_vec_size`` columns get their scales.

    Returns
    -------
    TupleDict
        ab12_tensor (M, N, L), c_tensor (M, N/2, L), sfc_tensor of an fp8 c, and amax_tensor of fp4 with c in bf16.
    """


class GemmSwiglu(PreparedOperation):
    """`gemm_swiglu_forward` with the caller's outputs; sample tensors say types, majors and device."""

    __slots__ = ()
    _operation = "gemm_swiglu"

    @constructor
    def __init__(
        self,
        sample_a: Any,
        sample_b: Any,
        sample_ab12: Any,
        sample_c: Any,
        alpha: float = 1.0,
        acc_dtype: Any = None,
        mma_tiler_mn: tuple[int, int] = (128, 128),
        cluster_shape_mn: tuple[int, int] | None = None,
        sample_sfa: Any = None,
        sample_sfb: Any = None,
        sample_amax: Any = None,
        sample_sfc: Any = None,
        sample_norm_const: Any = None,
        sf_vec_size: int = 16,
        vector_f32: bool = False,
        ab12_stages: int = 4,
        deterministic: bool | None = None,
    ) -> None:
        """Samples say types, majors and device."""

    @executor("gemm_swiglu")
    def execute(  # type: ignore[override]
        self,
        a_tensor: Any,
        b_tensor: Any,
        ab12_tensor: Any,
        c_tensor: Any,
        sfa_tensor: Any = None,
        sfb_tensor: Any = None,
        amax_tensor: Any = None,
        sfc_tensor: Any = None,
        norm_const_tensor: Any = None,
        alpha: float | None = None,
        current_stream: Any = None,
    ) -> None:
        """Launches into the outputs given; ``alpha=None`` is the constructor's."""
