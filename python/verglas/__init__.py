"""Fused GEMM graphs, compiled once, launched with every check."""

from verglas._verglas import Graph, Operand, Plan, Tensor, __version__, data_type, pointwise_mode, reduction_mode
from verglas.enums import build_plan_policy, heur_mode
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

__all__ = [
    "CompileError",
    "DriverError",
    "Error",
    "FrozenError",
    "Graph",
    "InternalError",
    "InvalidCallError",
    "InvalidGraphError",
    "IoError",
    "NotABufferError",
    "Operand",
    "OutOfMemoryError",
    "Plan",
    "PlanIndexError",
    "Tensor",
    "UnsupportedError",
    "__version__",
    "build_plan_policy",
    "data_type",
    "heur_mode",
    "pointwise_mode",
    "reduction_mode",
]
