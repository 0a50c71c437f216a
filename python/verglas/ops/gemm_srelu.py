"""GEMM + squared ReLU, and its gradient; docs/ops/gemm_srelu.md."""

from __future__ import annotations

from typing import Any

from verglas.ops._operation import PreparedOperation, constructor, executor, function_of
from verglas.ops._result import TupleDict


@function_of("gemm_srelu", "c_tensor", "d_tensor", "amax_tensor", "sfd_tensor")
def gemm_srelu_forward(
    a_tensor: Any,
    b_tensor: Any,
    sfa_tensor: Any = None,
    sfb_tensor: Any = None,
    prob_tensor: Any = None,
    alpha: float = 1.0,
    c_major: str = "n",
    c_dtype: Any = None,
    d_dtype: Any = None,
    acc_dtype: Any = None,
    mma_tiler_mn: tuple[int, int] = (256, 256),
    cluster_shape_mn: tuple[int, int] | None = None,
    norm_const_tensor: Any = None,
    sf_vec_size: int = 16,
    vector_f32: bool = False,
    stream: Any = None,
    deterministic: bool | None = None,
) -> TupleDict:
    """``c = alpha · a · bᵀ`` and ``d = prob · max(c, 0)²``, the latter of the unrounded c.

    Parameters
    ----------
    a_tensor, b_tensor : array
        (M, K, L) and (N, K, L), packed, of one type: fp32, fp16, bf16, fp8; fp4 with scales.
    sfa_tensor, sfb_tensor : array
        Scales of blocks of ``sf_vec_size`` elements along K, both or none; then a and b are fp8 or fp4.
    prob_tensor : array
        (M, 1, L) in fp32, any strides; ones when ``None``.
    c_major : str
        ``"n"`` or ``"m"``: which axis of the outputs is contiguous.
    c_dtype, d_dtype : data type
        bf16 when ``None``; d in fp8 beside fp8 with scales.
    norm_const_tensor : array
        One fp32, with d in fp8: d is multiplied by it before its blocks of ``sf_vec_size`` columns get their scales.

    Returns
    -------
    TupleDict
        c_tensor and d_tensor (M, N, L), amax_tensor of fp4 operands, and sfd_tensor of an fp8 d.
    """


@function_of("gemm_dsrelu", "d_tensor", "dprob_tensor", "amax_tensor", "sfd_tensor")
def gemm_srelu_backward(
    a_tensor: Any,
    b_tensor: Any,
    c_tensor: Any,
    sfa_tensor: Any = None,
    sfb_tensor: Any = None,
    prob_tensor: Any = None,
    alpha: float = 1.0,
    d_major: str = "n",
    d_dtype: Any = None,
    acc_dtype: Any = None,
    mma_tiler_mn: tuple[int, int] = (256, 256),
    cluster_shape_mn: tuple[int, int] | None = None,
    norm_const_tensor: Any = None,
    sf_vec_size: int = 16,
    vector_f32: bool = False,
    stream: Any = None,
    deterministic: bool | None = None,
) -> TupleDict:
    """The gradients of `gemm_srelu_forward` where it is squared: ``x = alpha · a · bᵀ`` is computed again.

    ``d = 2 · max(x, 0) · c · prob`` and ``dprob = Σ max(x, 0)² · c`` over the columns.

    Parameters
    ----------
    a_tensor, b_tensor, sfa_tensor, sfb_tensor, prob_tensor, norm_const_tensor : array
        As in `gemm_srelu_forward`.
    c_tensor : array
        (M, N, L), packed, fp32, fp16 or bf16: the gradient of the forward d.
    d_major : str
        ``"n"`` or ``"m"``: which axis of d is contiguous.
    d_dtype : data type
        bf16 when ``None``; fp8 beside fp8 with scales.

    Returns
    -------
    TupleDict
        d_tensor (M, N, L), the gradient of x; dprob_tensor (M, 1, L) in fp32; amax_tensor of fp4 operands; sfd_tensor of an
        fp8 d.
    """


class GemmSrelu(PreparedOperation):
    """`gemm_srelu_forward` with the caller's outputs."""

    __slots__ = ()
    _operation = "gemm_srelu"

    @constructor
    def __init__(
        self,
        sample_a: Any,
        sample_b: Any,
        sample_c: Any,
        sample_d: Any,
        sample_sfa: Any = None,
        sample_sfb: Any = None,
        sample_prob: Any = None,
        sample_sfd: Any = None,
        sample_amax: Any = None,
        sample_norm_const: Any = None,
        alpha: float = 1.0,
        acc_dtype: Any = None,
        mma_tiler_mn: tuple[int, int] = (256, 256),
        cluster_shape_mn: tuple[int, int] | None = None,
        sf_vec_size: int = 16,
        vector_f32: bool = False,
        deterministic: bool | None = None,
    ) -> None:
        """Samples say types, majors and device."""

    @executor("gemm_srelu")
    def execute(  # type: ignore[override]
        self,
        a_tensor: Any,
        b_tensor: Any,
        c_tensor: Any,
        d_tensor: Any,
        sfa_tensor: Any = None,
        sfb_tensor: Any = None,
        prob_tensor: Any = None,
        sfd_tensor: Any = None,
        amax_tensor: Any = None,
        norm_const_tensor: Any = None,
        alpha: float | None = None,
        current_stream: Any = None,
    ) -> None:
        """Launches into the outputs given; ``alpha=None`` is the constructor's."""


class GemmDsrelu(PreparedOperation):
    """`gemm_srelu_backward` with the caller's outputs. dprob is written, not added to."""

    __slots__ = ()
    _operation = "gemm_dsrelu"

    @constructor
    def __init__(
        self,
        sample_a: Any,
        sample_b: Any,
        sample_c: Any,
        sample_d: Any,
        sample_dprob: Any,
        sample_sfa: Any = None,
        sample_sfb: Any = None,
        sample_prob: Any = None,
        sample_sfd: Any = None,
        sample_amax: Any = None,
        sample_norm_const: Any = None,
        alpha: float = 1.0,
        acc_dtype: Any = None,
        mma_tiler_mn: tuple[int, int] = (256, 256),
        cluster_shape_mn: tuple[int, int] | None = None,
        sf_vec_size: int = 16,
        vector_f32: bool = False,
        deterministic: bool | None = None,
    ) -> None:
        """Samples say types, majors and device."""

    @executor("gemm_dsrelu")
    def execute(  # type: ignore[override]
        self,
        a_tensor: Any,
        b_tensor: Any,
        c_tensor: Any,
        d_tensor: Any,
        dprob_tensor: Any,
        sfa_tensor: Any = None,
        sfb_tensor: Any = None,
        prob_tensor: Any = None,
        sfd_tensor: Any = None,
        amax_tensor: Any = None,
        norm_const_tensor: Any = None,
        alpha: float | None = None,
        current_stream: Any = None,
    ) -> None:
        """Launches into the outputs given; ``alpha=None`` is the constructor's."""
