"""Helpers for torch's models. The operations themselves take tensors as they are: docs/frameworks.md."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from verglas.ops import (
    _torch,  # noqa: F401 -- registers torch.ops.verglas
    gemm_swiglu_forward,
)

_RUN = 32  # rows of up, then rows of gate


class SwigluMlp(nn.Module):
    """``down(up(x) · silu(gate(x)))`` with up and gate as one product and the activation in its epilogue.

    ``weight`` has the rows of both, in runs of 32: up, gate, up, gate, …
    """

    def __init__(self, gate: nn.Linear, up: nn.Linear, down: nn.Linear) -> None:
        super().__init__()
        hidden, width = up.weight.shape
        runs = torch.stack((up.weight.detach().view(-1, _RUN, width), gate.weight.detach().view(-1, _RUN, width)), 1)
        self.weight = nn.Parameter(runs.reshape(2 * hidden, width))
        self.down_proj = down

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1]).contiguous().unsqueeze(-1)
        both = gemm_swiglu_forward(rows, self.weight.unsqueeze(-1), ab12_dtype=x.dtype, c_dtype=x.dtype)
        return self.down_proj(both["c_tensor"].squeeze(-1)).reshape(*x.shape[:-1], -1)


def _is_swiglu(module: nn.Module) -> bool:
    linear = [getattr(module, name, None) for name in ("gate_proj", "up_proj", "down_proj")]
    if not all(isinstance(layer, nn.Linear) for layer in linear):
        return False
    gate, up, _ = linear
    is_plain = gate.bias is None and up.bias is None and gate.weight.shape == up.weight.shape
    silu = isinstance(getattr(module, "act_fn", None), nn.SiLU) or getattr(module, "act_fn", None) is nn.functional.silu
    return (
        is_plain and silu and up.weight.shape[0] % _RUN == 0 and up.weight.dtype in (torch.float32, torch.float16, torch.bfloat16)
    )


def swap_mlp(model: nn.Module) -> int:
    """Replaces, in place, each feed-forward block of the kind that Llama models have by a `SwigluMlp`; answers how many.

    A block has ``gate_proj``, ``up_proj`` and ``down_proj`` (linear layers, the first two without bias) and SiLU as ``act_fn``.
    Others stay as they are. Optimizers have to be made afterwards: the parameters are new.
    """
    found = [(parent, name) for parent in model.modules() for name, child in parent.named_children() if _is_swiglu(child)]
    for parent, name in found:
        block = getattr(parent, name)
        setattr(parent, name, SwigluMlp(block.gate_proj, block.up_proj, block.down_proj))
    return len(found)
