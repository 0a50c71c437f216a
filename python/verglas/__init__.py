"""Fused GEMM graphs, compiled once, launched with every check."""

from verglas import scale_layout
from verglas._verglas import (
    BoundCall,
    Graph,
    Operand,
    Operation,
    OperationOptions,
    Plan,
    Prepared,
    Tensor,
    TensorSpec,
    __version__,
    build_plan_policy,
    data_type,
    heur_mode,
    load_plan,
    pointwise_mode,
    reduction_mode,
    tensor_reordering,
)
from verglas.errors import (
    CompileError,
    DriverError,
    Error,
    FrozenError,
    InternalError,
    InvalidCallError,
    InvalidGraphError,
    IoError,
    NotABufferError,
    OutOfMemoryError,
    PlanIndexError,
    UnsupportedError,
)
from verglas.ops import (
    _WITH_JAX,
    GemmAmax,
    GemmDsrelu,
    GemmProjRopeMxfp8Bf16In,
    GemmProjRopeMxfp8Mxfp8In,
    GemmSrelu,
    GemmSwiglu,
    TupleDict,
    gemm_amax_forward,
    gemm_proj_rope_mxfp8_forward,
    gemm_srelu_backward,
    gemm_srelu_forward,
    gemm_swiglu_forward,
)

__all__ = [
    "BoundCall",
    "CompileError",
    "DriverError",
    "Error",
    "FrozenError",
    "GemmAmax",
    "GemmDsrelu",
    "GemmProjRopeMxfp8Bf16In",
    "GemmProjRopeMxfp8Mxfp8In",
    "GemmSrelu",
    "GemmSwiglu",
    "Graph",
    "InternalError",
    "InvalidCallError",
    "InvalidGraphError",
    "IoError",
    "NotABufferError",
    "Operand",
    "Operation",
    "OperationOptions",
    "OutOfMemoryError",
    "Plan",
    "PlanIndexError",
    "Prepared",
    "Tensor",
    "TensorSpec",
    "TupleDict",
    "UnsupportedError",
    "__version__",
    "build_plan_policy",
    "data_type",
    "gemm_amax_forward",
    "gemm_proj_rope_mxfp8_forward",
    "gemm_srelu_backward",
    "gemm_srelu_forward",
    "gemm_swiglu_forward",
    "heur_mode",
    "load_plan",
    "pointwise_mode",
    "reduction_mode",
    "scale_layout",
    "tensor_reordering",
]


def __getattr__(name: str):
    if name in _WITH_JAX:
        from verglas.ops import _jax

        return getattr(_jax, name)
    raise AttributeError(f"module {__name__} has no attribute {name}")
