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
from verglas import build_plan_policy, heur_mode, moe_grouped_matmul_mode
from verglas import data_type as _data_type
from verglas import errors as _errors
from verglas import ops as _ops
from verglas import pointwise_mode as _pointwise_mode
from verglas import reduction_mode as _reduction_mode
from verglas import tensor_reordering as _tensor_reordering
from verglas.compat import _cudnn_graph as wrapper
from verglas.compat._cudnn_graph import Graph, graph, graph_cache, jit
from verglas.ops import TupleDict

__version__ = "1.28.0"  # whose names and argument order these are

tensor = Tensor = _Tensor


def _missing_of_tensors(name: str) -> Any:
    def missing(self: _Tensor, *_: Any, **__: Any) -> Any:
        raise NotImplementedError(f"tensor.{name} is not there yet")

    return missing


_MISSING_OF_TENSORS = ("get_ragged_offset", "set_ragged_offset")
for _name in _MISSING_OF_TENSORS:
    setattr(_Tensor, _name, _missing_of_tensors(_name))
cudnnGraphNotSupportedError = _UnsupportedError
cudnnError = _Error


def backend_version() -> int:
    """The backend whose vocabulary is followed, as cuDNN counts; there is none behind it."""
    return 92200


def backend_version_string() -> str:
    """`backend_version` with points."""
    return "9.22.0"


class _Names(type):
    """The members of one of our enumerations under cuDNN's names; what cuDNN has beside them is missing, and says so."""

    _members: Any
    _missing: frozenset[str]

    def __getattr__(cls, name: str) -> Any:
        if name in cls._missing:
            raise NotImplementedError(f"cudnn.{cls.__name__}.{name} is not there yet")
        try:
            return cls._members[name.removesuffix("_FWD")]
        except KeyError:
            raise AttributeError(f"cudnn.{cls.__name__} has no {name}") from None

    def __getitem__(cls, name: str) -> Any:
        try:
            return getattr(cls, name)
        except AttributeError:
            raise KeyError(name) from None

    def __iter__(cls) -> Any:
        return iter(cls._members)

    def __len__(cls) -> int:
        return len(cls._members)

    def __contains__(cls, value: Any) -> bool:
        return isinstance(value, cls._members)

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, cls._members)

    def __call__(cls, value: Any) -> Any:
        return cls._members(value)

    @property
    def __members__(cls) -> Any:
        return cls._members.__members__


class data_type(metaclass=_Names):
    """Types of elements and of arithmetic."""

    _members = _data_type
    _missing = frozenset({"DOUBLE", "FAST_FLOAT_FOR_FP8", "INT4", "INT8x32", "INT8x4", "UINT8x4"})


class pointwise_mode(metaclass=_Names):
    """Elementwise functions: ``RELU_FWD`` and ``RELU`` are one."""

    _members = _pointwise_mode
    _missing: frozenset[str] = frozenset()


class reduction_mode(metaclass=_Names):
    """How elements are combined."""

    _members = _reduction_mode
    _missing = frozenset({"NOT_SET"})


class tensor_reordering(metaclass=_Names):
    """How scales of blocks lie."""

    _members = _tensor_reordering
    _missing = frozenset({"F16x16", "INT8x32"})


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
    genstats get_behavior_notes get_behavior_notes_for_plan_at_index get_engine_count get_knobs_for_engine get_numeric_notes
    instancenorm instancenorm_backward key layernorm layernorm_backward paged_cache_load
    query_tensor_attributes_of_uid reshape resample rmsnorm rmsnorm_backward rng sdpa sdpa_backward sdpa_fp8
    sdpa_fp8_backward sdpa_mxfp8 select_behavior_notes deselect_behavior_notes select_numeric_notes deselect_numeric_notes
    serialize slice transpose update_cuda_graph populate_cuda_graph warmup""".split()
)


def _default_device() -> str:
    torch = sys.modules.get("torch")
    return "cuda:0" if torch is not None and torch.cuda.is_available() else "cpu"


def _is_number_on_host(buffer: Any) -> bool:
    """Of one element, in memory that a GPU does not have."""
    where = getattr(buffer, "__dlpack_device__", None)
    return where is not None and where()[0] == 1 and all(extent == 1 for extent in buffer.shape)


def _type(given: Any) -> Any:
    return _data_type.NOT_SET if given is None else given


class pygraph(_Graph):
    """`verglas.Graph` with cuDNN's constructor, and the arguments of its methods in cuDNN's order.

    Calls without a handle are on the stream of ``handle`` where `set_stream` has given it one. ``sm_count``, ``sm_version``,
    ``kernel_cache``, ``device_property`` and ``is_cuda_graph_replay_expected`` are accepted and have no effect; ``device`` names
    another device than the default.
    """

    def __init__(
        self,
        name: str = "",
        io_data_type: Any = None,
        intermediate_data_type: Any = None,
        compute_data_type: Any = None,
        handle: Handle | None = None,
        sm_count: int | None = None,
        sm_version: int | None = None,
        kernel_cache: Any = None,
        device_property: Any = None,
        is_dynamic_shape_enabled: bool = False,
        is_override_shape_enabled: bool = False,
        *,
        is_cuda_graph_replay_expected: bool = False,
        device: str | None = None,
    ) -> None:
        self._handle = handle
        self._on_gpu = (device or _default_device()) != "cpu"
        super().__init__(
            name=name,
            io_data_type=_type(io_data_type),
            intermediate_data_type=_type(intermediate_data_type),
            compute_data_type=_type(compute_data_type),
            device=device or _default_device(),
        )

    def tensor(
        self,
        dim: Any = None,
        stride: Any = None,
        data_type: Any = None,
        is_virtual: bool = False,
        is_pass_by_value: bool = False,
        ragged_offset: Any = None,
        reordering_type: Any = _tensor_reordering.NONE,
        name: str = "",
        uid: int | None = None,
        ragged_offset_multiplier: int = 1,
    ) -> _Tensor:
        if ragged_offset is not None or ragged_offset_multiplier != 1:
            raise NotImplementedError("ragged_offset of pygraph.tensor is not there yet")
        return super().tensor(
            dim,
            stride,
            _type(data_type),
            is_virtual,
            is_pass_by_value,
            name,
            None if uid == -1 else uid,
            reordering_type=_tensor_reordering.NONE if reordering_type is None else reordering_type,
        )

    def tensor_like(self, input: Any, name: str = "") -> _Tensor:
        made = super().tensor_like(input, name)
        if self._on_gpu and _is_number_on_host(input):
            made.set_is_pass_by_value(True)
        return made

    def moe_grouped_matmul(
        self,
        token: _Tensor,
        weight: _Tensor,
        first_token_offset: _Tensor,
        token_index: _Tensor | None = None,
        token_ks: _Tensor | None = None,
        mode: Any = moe_grouped_matmul_mode.NONE,
        compute_data_type: Any = None,
        top_k: int = 0,
        name: str = "",
        top_k_scores: _Tensor | None = None,
        **ours: Any,
    ) -> _Tensor:
        return super().moe_grouped_matmul(
            token,
            weight,
            first_token_offset,
            token_index,
            token_ks,
            mode,
            _type(compute_data_type),
            top_k or 1,
            name,
            top_k_scores=top_k_scores,
            **ours,
        )

    def moe_grouped_matmul_bwd(
        self,
        doutput: _Tensor,
        token: _Tensor,
        first_token_offset: _Tensor,
        compute_data_type: Any = None,
        name: str = "",
        **ours: Any,
    ) -> _Tensor:
        return super().moe_grouped_matmul_bwd(token, doutput, first_token_offset, _type(compute_data_type), name, **ours)

    def get_workspace_size(
        self, handle: Handle | None = None, override_uids: Any = None, override_shapes: Any = None, override_strides: Any = None
    ) -> int:
        return super().get_workspace_size(override_uids, override_shapes, override_strides)

    def get_workspace_size_plan_at_index(
        self,
        index: int,
        handle: Handle | None = None,
        override_uids: Any = None,
        override_shapes: Any = None,
        override_strides: Any = None,
    ) -> int:
        return super().get_workspace_size_plan_at_index(index)

    def build_plan_at_index(self, index: int) -> None:
        super().build_plan_at_index(index)
        self.select_plan(index)  # what `execute` runs from now on
        self.build_plans()

    def execute(
        self,
        pack: Any,
        workspace: Any = None,
        handle: Any = None,
        override_uids: Any = None,
        override_shapes: Any = None,
        override_strides: Any = None,
        *,
        tensor_uids: Any = None,
        stream: Any = None,
    ) -> None:
        rest = stream, self._handle_of(handle, stream), override_uids, override_shapes, override_strides
        run = super().execute
        self._with_pack(pack, tensor_uids, lambda given: run(given, workspace, *rest))

    def execute_plan_at_index(
        self,
        pack: Any,
        workspace: Any = None,
        index: int = 0,
        handle: Any = None,
        override_uids: Any = None,
        override_shapes: Any = None,
        override_strides: Any = None,
        *,
        tensor_uids: Any = None,
        stream: Any = None,
    ) -> None:
        rest = stream, self._handle_of(handle, stream), override_uids, override_shapes, override_strides
        run = super().execute_plan_at_index
        self._with_pack(pack, tensor_uids, lambda given: run(given, workspace, index, *rest))

    def _with_pack(self, pack: Any, tensor_uids: Any, run: Any) -> None:
        """With what the graph knows of the pack: cuDNN does not mind what else is in it."""
        if tensor_uids is not None:
            pack = dict(zip(tensor_uids, pack, strict=True))
        try:
            run(pack)
        except _errors.InvalidCallError as error:
            if error.rule != "pack.unknown" or not isinstance(pack, dict):
                raise
            known = {key for operand in self.plan.operands() for key in (operand.uid, operand.name)}
            run({key: v for key, v in pack.items() if (key.get_uid() if isinstance(key, _Tensor) else key) in known})

    def _handle_of(self, handle: Any, stream: Any) -> Any:
        """Of a call that names neither, the graph's own where it has a stream."""
        is_named = handle is not None or stream is not None
        return handle if is_named or not getattr(self._handle, "cuda_stream", 0) else self._handle

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
