"""Fused GEMM graphs, compiled once, launched with every check."""

from verglas._verglas import __version__

__all__ = ["__version__"]
