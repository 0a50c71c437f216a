"""Ready-made fusions: functions that allocate what they answer, and classes whose outputs are the caller's. docs/ops has a page
for each. NumPy, torch and JAX come in with their arrays only."""

from verglas.ops._result import TupleDict
from verglas.ops.gemm_amax import GemmAmax, gemm_amax_forward
from verglas.ops.gemm_proj_rope_mxfp8 import (
    GemmProjRopeMxfp8Bf16In,
    GemmProjRopeMxfp8Mxfp8In,
    gemm_proj_rope_mxfp8_forward,
)
from verglas.ops.gemm_srelu import GemmDsrelu, GemmSrelu, gemm_srelu_backward, gemm_srelu_forward
from verglas.ops.gemm_swiglu import GemmSwiglu, gemm_swiglu_forward

# Functions for programs that JAX compiles, imported when they are asked for: docs/frameworks.md.
_WITH_JAX = frozenset(
    {
        "gemm_amax_jax_forward",
        "gemm_proj_rope_mxfp8_jax_forward",
        "gemm_srelu_jax_backward",
        "gemm_srelu_jax_forward",
        "gemm_swiglu_jax_forward",
    }
)

__all__ = [
    "GemmAmax",
    "GemmDsrelu",
    "GemmProjRopeMxfp8Bf16In",
    "GemmProjRopeMxfp8Mxfp8In",
    "GemmSrelu",
    "GemmSwiglu",
    "TupleDict",
    "gemm_amax_forward",
    "gemm_proj_rope_mxfp8_forward",
    "gemm_srelu_backward",
    "gemm_srelu_forward",
    "gemm_swiglu_forward",
]


def __getattr__(name: str):
    if name in _WITH_JAX:
        from verglas.ops import _jax

        return getattr(_jax, name)
    raise AttributeError(f"module {__name__} has no attribute {name}")
