"""Helpers for torch's models. The operations themselves take tensors as they are: docs/frameworks.md."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from verglas.ops import (
    _torch,  # noqa: F401 -- registers torch.ops.verglas
    gemm_srelu_forward,
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


class SquaredReluMlp(nn.Module):
    """``down(relu(up(x))²)`` with the activation in the epilogue of the first product."""

    def __init__(self, up: nn.Linear, down: nn.Linear) -> None:
        super().__init__()
        self.weight = up.weight
        self.down_proj = down

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1]).contiguous().unsqueeze(-1)
        both = gemm_srelu_forward(rows, self.weight.unsqueeze(-1), c_dtype=x.dtype, d_dtype=x.dtype)
        return self.down_proj(both["d_tensor"].squeeze(-1)).reshape(*x.shape[:-1], -1)


def _is_linear(layer: object, with_bias: bool = False) -> bool:
    return (
        isinstance(layer, nn.Linear)
        and (with_bias or layer.bias is None)
        and layer.weight.dtype in (torch.float32, torch.float16, torch.bfloat16)
    )


def _is_swiglu(module: nn.Module) -> bool:
    gate, up, down = (getattr(module, name, None) for name in ("gate_proj", "up_proj", "down_proj"))
    if not (_is_linear(gate) and _is_linear(up) and _is_linear(down, with_bias=True)):
        return False
    act = getattr(module, "act_fn", None)
    silu = isinstance(act, nn.SiLU) or act is nn.functional.silu
    return silu and gate.weight.shape == up.weight.shape and gate.weight.dtype == up.weight.dtype and len(up.weight) % _RUN == 0


def _is_squared_relu(module: nn.Module) -> bool:
    up, down, act = (getattr(module, name, None) for name in ("up_proj", "down_proj", "act_fn"))
    if getattr(module, "gate_proj", None) is not None or not (_is_linear(up) and _is_linear(down, with_bias=True)):
        return False
    # Models have classes of their own for it: what it does tells.
    probe = torch.tensor([-3.0, -0.5, 0.0, 0.5, 3.0])
    plain = callable(act) and not (isinstance(act, nn.Module) and any(True for _ in act.parameters()))
    return plain and torch.equal(act(probe), torch.relu(probe).square())


def swap_mlp(model: nn.Module) -> int:
    """Replaces, in place, each feed-forward block that has a fused counterpart; answers how many.

    A block like Llama's has ``gate_proj``, ``up_proj`` and ``down_proj`` (linear layers, the first two without bias) and SiLU as
    ``act_fn``: it becomes a `SwigluMlp`. One like Nemotron's has ``up_proj`` without bias, ``down_proj`` and a squared ReLU as
    ``act_fn``: it becomes a `SquaredReluMlp`. Others stay as they are. Optimizers have to be made afterwards, since a
    `SwigluMlp` has new parameters.
    """
    found = 0
    for parent in list(model.modules()):
        for name, block in list(parent.named_children()):
            if _is_swiglu(block):
                setattr(parent, name, SwigluMlp(block.gate_proj, block.up_proj, block.down_proj))
            elif _is_squared_relu(block):
                setattr(parent, name, SquaredReluMlp(block.up_proj, block.down_proj))
            else:
                continue
            found += 1
    return found
