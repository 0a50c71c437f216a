"""cuDNN's front-end names: ``import verglas.compat.cudnn as cudnn`` runs scripts that use what docs/compat-cudnn.md lists.

A graph runs on CUDA device 0 where torch has been imported and sees one, else on the CPU. Architectures in names mean nothing.
"""

from __future__ import annotations

import functools as _functools
import sys
from typing import Any

from verglas import Error as _Error
from verglas import Graph as _Graph
from verglas import Tensor as _Tensor
from verglas import UnsupportedError as _UnsupportedError
from verglas import build_plan_policy, data_type, heur_mode, moe_grouped_matmul_mode, reduction_mode, tensor_reordering
from verglas import errors as _errors
from verglas import ops as _ops
from verglas import pointwise_mode as _pointwise_mode
from verglas.compat import _cudnn_graph as wrapper
from verglas.compat._cudnn_graph import Graph, graph, graph_cache, jit
from verglas.ops import TupleDict

__version__ = "1.28.0"  # whose names and argument order these are

tensor = Tensor = _Tensor
cudnnGraphNotSupportedError = _UnsupportedError
cudnnError = _Error


def backend_version() -> int:
    """The backend whose vocabulary is followed, as cuDNN counts; there is none behind it."""
    return 92200


def backend_version_string() -> str:
    """`backend_version` with points."""
    return "9.22.0"


class _Modes(type):
    """cuDNN ends its activations in _FWD."""

    def __getattr__(cls, name: str) -> _pointwise_mode:
        try:
            return _pointwise_mode[name.removesuffix("_FWD")]
        except KeyError:
            raise AttributeError(f"no pointwise mode {name}") from None

    def __iter__(cls):
        return iter(_pointwise_mode)

    def __getitem__(cls, name: str) -> _pointwise_mode:
        try:
            return getattr(cls, name)
        except AttributeError:
            raise KeyError(name) from None


class pointwise_mode(metaclass=_Modes):
    """Elementwise functions: ``RELU_FWD`` and ``RELU`` are one."""


class Handle:
    """A stream; what `create_handle` answers and `execute` takes."""

    def __init__(self) -> None:
        self.cuda_stream = 0


def create_handle() -> Handle:
    """A handle with the default stream."""
    return Handle()


def set_stream(handle: Handle, stream: Any) -> None:
    """Calls with this handle run on that stream: an address, or an object with ``cuda_stream``."""
    handle.cuda_stream = stream if isinstance(stream, int) else getattr(stream, "cuda_stream", stream)


def get_stream(handle: Handle) -> Any:
    """The stream of `set_stream`."""
    return handle.cuda_stream


def destroy_handle(handle: Handle) -> None:
    """There is nothing to free."""


_MISSING_METHODS = frozenset(
    """adalayernorm adalayernorm_backward batchnorm batchnorm_backward batchnorm_inference
    concatenate conv_dgrad conv_fprop conv_wgrad deserialize diagonal_band_mask
    genstats get_behavior_notes get_behavior_notes_for_plan_at_index get_numeric_notes instancenorm instancenorm_backward
    layernorm layernorm_backward paged_cache_load
    query_tensor_attributes_of_uid reshape resample rmsnorm rmsnorm_backward rng sdpa sdpa_backward sdpa_fp8
    sdpa_fp8_backward sdpa_mxfp8 select_behavior_notes deselect_behavior_notes select_numeric_notes deselect_numeric_notes
    serialize slice transpose update_cuda_graph populate_cuda_graph warmup""".split()
)


def _default_device() -> str:
    torch = sys.modules.get("torch")
    return "cuda:0" if torch is not None and torch.cuda.is_available() else "cpu"


class pygraph(_Graph):
    """`verglas.Graph` with cuDNN's constructor.

    ``handle``, ``sm_count``, ``sm_version`` and ``kernel_cache`` are accepted and have no effect; ``device`` names another device
    than the default.
    """

    def __init__(
        self,
        io_data_type: Any = data_type.NOT_SET,
        intermediate_data_type: Any = data_type.NOT_SET,
        compute_data_type: Any = data_type.NOT_SET,
        name: str = "",
        handle: Handle | None = None,
        sm_count: int | None = None,
        sm_version: int | None = None,
        kernel_cache: Any = None,
        is_dynamic_shape_enabled: bool = False,
        is_override_shape_enabled: bool = False,
        *,
        device: str | None = None,
    ) -> None:
        super().__init__(
            name=name,
            io_data_type=io_data_type,
            intermediate_data_type=intermediate_data_type,
            compute_data_type=compute_data_type,
            device=device or _default_device(),
        )

    def __getattr__(self, name: str) -> Any:
        if name in _MISSING_METHODS:
            raise NotImplementedError(f"pygraph.{name} is not there yet")
        raise AttributeError(f"pygraph has no attribute {name}")


GemmAmaxSm100 = _ops.GemmAmax
GemmSwigluSm100 = _ops.GemmSwiglu
GemmSreluSm100 = _ops.GemmSrelu
GemmDsreluSm100 = _ops.GemmDsrelu
GemmProjRopeMxfp8Bf16InSm100 = _ops.GemmProjRopeMxfp8Bf16In
GemmProjRopeMxfp8Mxfp8InSm100 = _ops.GemmProjRopeMxfp8Mxfp8In
gemm_amax_wrapper_sm100 = _ops.gemm_amax_forward
gemm_swiglu_wrapper_sm100 = _ops.gemm_swiglu_forward
gemm_srelu_wrapper_sm100 = _ops.gemm_srelu_forward
gemm_dsrelu_wrapper_sm100 = _ops.gemm_srelu_backward


class _ArgumentError(_errors.InvalidCallError, AssertionError):
    """Wrong arguments of the one wrapper that has assertions for them upstream: scripts that catch those find it."""


@_functools.wraps(_ops.gemm_proj_rope_mxfp8_forward)
def gemm_proj_rope_mxfp8_wrapper_sm100(*args: Any, **kwargs: Any) -> TupleDict:
    try:
        return _ops.gemm_proj_rope_mxfp8_forward(*args, **kwargs)
    except _errors.InvalidCallError as error:
        if error.rule not in ("op.dtype", "op.missing"):
            raise
        told = _ArgumentError(*error.args)
        vars(told).update(vars(error))
        raise told from None


_MISSING = frozenset(
    """BSA CSA CSACompressorBackward CSACompressorForward DSA DiscreteGroupedGemmDswigluSm100 DiscreteGroupedGemmSwigluSm100
    GraphContext GroupedGemmDgluSm100 GroupedGemmDsreluSm100 GroupedGemmDswigluSm100 GroupedGemmGluHadamardSm100
    GroupedGemmGluSm100 GroupedGemmQuantSm100 GroupedGemmSm100 GroupedGemmSreluSm100 GroupedGemmSwigluSm100
    GroupedGemmWgradSm100 NSA Node NodeType RmsNormRhtAmaxSm100 SdpabwdSm100D256 SdpafwdSm100D256 attention_implementation
    b2b_causal_conv1d_backward b2b_causal_conv1d_forward behavior_note block_sparse_attention_backward
    block_sparse_attention_forward causal_conv1d_backward causal_conv1d_forward causal_conv1d_nwh_backward
    causal_conv1d_nwh_forward convolution_mode create_device_properties create_kernel_cache
    csa_compressor_backward_wrapper csa_compressor_forward_wrapper diagonal_alignment discrete_grouped_gemm
    discrete_grouped_gemm_dswiglu_jax_sm100 discrete_grouped_gemm_dswiglu_wrapper_sm100
    discrete_grouped_gemm_swiglu_jax_sm100 discrete_grouped_gemm_swiglu_wrapper_sm100 experimental get_last_error_string
    grouped_gemm grouped_gemm_dglu_jax_sm100 grouped_gemm_dglu_wrapper_sm100 grouped_gemm_dsrelu_jax_sm100
    grouped_gemm_dsrelu_wrapper_sm100 grouped_gemm_dswiglu_wrapper_sm100 grouped_gemm_glu_hadamard_wrapper_sm100
    grouped_gemm_glu_jax_sm100 grouped_gemm_glu_wrapper_sm100 grouped_gemm_jax_sm100 grouped_gemm_quant_wrapper_sm100
    grouped_gemm_srelu_wrapper_sm100 grouped_gemm_swiglu_wrapper_sm100 grouped_gemm_wgrad_jax_sm100
    grouped_gemm_wgrad_wrapper_sm100 grouped_gemm_wrapper_sm100 jax knob knob_type
    norm_forward_phase numerical_note ops reshape_mode rmsnorm_rht_amax_wrapper_sm100 scalar_type
    scaled_dot_product_attention sdpa_bwd_wrapper_sm100_d256 sdpa_fwd_wrapper_sm100_d256""".split()
)

__all__ = [
    "GemmAmaxSm100",
    "GemmDsreluSm100",
    "GemmProjRopeMxfp8Bf16InSm100",
    "GemmProjRopeMxfp8Mxfp8InSm100",
    "GemmSreluSm100",
    "GemmSwigluSm100",
    "Graph",
    "Handle",
    "Tensor",
    "TupleDict",
    "backend_version",
    "backend_version_string",
    "build_plan_policy",
    "create_handle",
    "cudnnError",
    "cudnnGraphNotSupportedError",
    "data_type",
    "destroy_handle",
    "gemm_amax_wrapper_sm100",
    "gemm_dsrelu_wrapper_sm100",
    "gemm_proj_rope_mxfp8_wrapper_sm100",
    "gemm_srelu_wrapper_sm100",
    "gemm_swiglu_wrapper_sm100",
    "get_stream",
    "graph",
    "graph_cache",
    "heur_mode",
    "jit",
    "moe_grouped_matmul_mode",
    "pointwise_mode",
    "pygraph",
    "reduction_mode",
    "set_stream",
    "tensor",
    "tensor_reordering",
    "wrapper",
]


_WITH_JAX = {
    "gemm_amax_jax_sm100": "gemm_amax_jax_forward",
    "gemm_dsrelu_jax_sm100": "gemm_srelu_jax_backward",
    "gemm_proj_rope_mxfp8_jax_sm100": "gemm_proj_rope_mxfp8_jax_forward",
    "gemm_srelu_jax_sm100": "gemm_srelu_jax_forward",
    "gemm_swiglu_jax_sm100": "gemm_swiglu_jax_forward",
}


def __getattr__(name: str) -> Any:
    if name in _WITH_JAX:  # JAX is imported now
        return getattr(_ops, _WITH_JAX[name])
    if name in _MISSING:
        raise NotImplementedError(f"cudnn.{name} is not there yet")
    raise AttributeError(f"module {__name__} has no attribute {name}")
