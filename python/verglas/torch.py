"""Helpers for torch's models. The operations themselves take tensors as they are: docs/frameworks.md."""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Callable

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
        runs = torch.stack([layer.weight.detach().reshape(-1, _RUN, width) for layer in (up, gate)], 1)
        self.weight = nn.Parameter(runs.reshape(2 * hidden, width), up.weight.requires_grad)
        self.down_proj = down

    def forward(self, x: Tensor) -> Tensor:
        rows, weight = _operands(x, self.weight)
        both = gemm_swiglu_forward(rows, weight, ab12_dtype=rows.dtype, c_dtype=rows.dtype)
        return _in_shape_of(x, self.down_proj(both["c_tensor"].squeeze(-1)))


class SquaredReluMlp(nn.Module):
    """``down(relu(up(x))²)`` with the activation in the epilogue of the first product."""

    def __init__(self, up: nn.Linear, down: nn.Linear) -> None:
        super().__init__()
        self.weight = up.weight
        self.down_proj = down

    def forward(self, x: Tensor) -> Tensor:
        rows, weight = _operands(x, self.weight)
        both = gemm_srelu_forward(rows, weight, c_dtype=rows.dtype, d_dtype=rows.dtype)
        return _in_shape_of(x, self.down_proj(both["d_tensor"].squeeze(-1)))


def _operands(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Rows and weights of the product, in autocast's type where a linear layer would take it."""
    if x.device.type in ("cpu", "cuda") and torch.is_autocast_enabled(x.device.type):
        dtype = torch.get_autocast_dtype(x.device.type)
        x, weight = x.to(dtype), weight.to(dtype)
    return x.reshape(-1, x.shape[-1]).contiguous().unsqueeze(-1), weight.unsqueeze(-1)


def _in_shape_of(x: Tensor, rows: Tensor) -> Tensor:
    return rows.reshape(*x.shape[:-1], rows.shape[-1])


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def _is_watched(module: nn.Module) -> bool:
    """Something else than its class says what happens in a call."""
    return "forward" in vars(module) or any(getattr(module, hooks, None) for hooks in _HOOKS)


def _is_plain_linear(layer: object) -> bool:
    """No class that is derived from it either, which may add to the product."""
    return (
        type(layer) is nn.Linear
        and layer.bias is None
        and layer.weight.dtype in (torch.float32, torch.float16, torch.bfloat16)
        and not _is_watched(layer)
    )


def _has_only(module: nn.Module, *names: str) -> bool:
    """Of modules, and neither parameters, buffers nor hooks of its own."""
    return set(module._modules) <= set(names) and not module._parameters and not module._buffers and not _is_watched(module)


def _is_swiglu(module: nn.Module, users: Counter[int]) -> bool:
    gate, up, down, act = (getattr(module, name, None) for name in ("gate_proj", "up_proj", "down_proj", "act_fn"))
    if not (_is_plain_linear(gate) and _is_plain_linear(up) and isinstance(down, nn.Linear)):
        return False
    if not _has_only(module, "gate_proj", "up_proj", "down_proj", "act_fn"):
        return False
    # Weights are copied: what else uses them, or learns one of them alone, would part from them.
    alone = gate is not up and users[id(gate.weight)] == users[id(up.weight)] == 1
    alike = all(getattr(gate.weight, what) == getattr(up.weight, what) for what in ("shape", "dtype", "device", "requires_grad"))
    if not (alone and alike and len(up.weight) % _RUN == 0 and _is(act, nn.functional.silu)):
        return False
    return _computes(module, lambda x, of: of["up_proj"](x) * nn.functional.silu(of["gate_proj"](x)))


_ON_HOST = {"device": "cpu", "dtype": torch.float32}  # whatever the defaults are


def _square_of_relu(x: Tensor) -> Tensor:
    return torch.relu(x).square()


def _is(act: object, function: Callable[[Tensor], Tensor]) -> bool:
    """Models have classes of their own for activations: what they do tells."""
    if not callable(act) or (isinstance(act, nn.Module) and (any(True for _ in act.parameters()) or _is_watched(act))):
        return False
    probe = torch.tensor([-1e4, -3.0, -0.5, 0.0, 0.5, 3.0, 7.0, 1e4], **_ON_HOST)
    try:
        found = act(probe.clone())
    except Exception:  # an activation of something else
        return False
    return isinstance(found, Tensor) and found.shape == probe.shape and torch.allclose(found, function(probe), 1e-5, 1e-6)


def _computes(block: nn.Module, inner: Callable[[Tensor, dict[str, nn.Linear]], Tensor]) -> bool:
    """Its ``forward`` is ``down_proj`` of this and nothing beside it, in training too: told by a copy of the block with small
    layers on the host, since parameters may be large, or not be there yet."""
    generator = torch.Generator("cpu").manual_seed(0)
    try:
        twin, width = copy.copy(block), block.up_proj.in_features
        layers = {}
        for name in ("gate_proj", "up_proj", "down_proj"):
            layer = block._modules.get(name)
            if layer is None:
                continue
            rows, columns = (layer.out_features, _RUN) if name == "down_proj" else (_RUN, width)
            layers[name] = nn.Linear(columns, rows, layer.bias is not None, device="meta")
            for key, given in list(layers[name].named_parameters()):
                value = torch.randn(given.shape, generator=generator, **_ON_HOST) / math.sqrt(columns)
                setattr(layers[name], key, nn.Parameter(value, False))
        vars(twin)["_modules"] = {**block._modules, **layers}
        sizes = torch.tensor([1e-3, 0.1, 1, 10, 1e2, 1e3], **_ON_HOST).view(1, -1, 1)
        x = sizes * torch.randn(1, 6, width, generator=generator, **_ON_HOST)
        with torch.no_grad(), torch.random.fork_rng(devices=[]), torch.autocast("cpu", enabled=False):
            want = layers["down_proj"](inner(x, layers))
            for training in (True, False):
                for module in (twin, *layers.values()):
                    module.training = training
                found = twin.forward(x)
                if not isinstance(found, Tensor) or found.shape != want.shape or found.dtype != want.dtype:
                    return False
                if not ((found - want).abs() <= 1e-4 * want.abs().amax(-1, keepdim=True)).all():
                    return False
    except Exception:  # it asks for more than its layers and rows
        return False
    return True


def _is_squared_relu(module: nn.Module) -> bool:
    up, down, act = (getattr(module, name, None) for name in ("up_proj", "down_proj", "act_fn"))
    if not (_is_plain_linear(up) and isinstance(down, nn.Linear) and _has_only(module, "up_proj", "down_proj", "act_fn")):
        return False
    return _is(act, _square_of_relu) and _computes(module, lambda x, of: _square_of_relu(of["up_proj"](x)))


def swap_mlp(model: nn.Module) -> int:
    """Replaces, in place, each feed-forward block inside of the model that has a fused counterpart; answers how many.

    A block like Llama's has ``gate_proj``, ``up_proj`` and ``down_proj`` (linear layers, the first two without bias) and SiLU as
    ``act_fn``: it becomes a `SwigluMlp`. One like Nemotron's has ``up_proj`` without bias, ``down_proj`` and a squared ReLU as
    ``act_fn``: it becomes a `SquaredReluMlp`. Others stay as they are: with other modules, parameters or hooks, a ``forward``
    that gives something else for small layers in place of theirs, layers of derived classes before the activation, where the
    weights of a `SwigluMlp` are used elsewhere or one of them alone is frozen. So does a model that is itself such a block.
    Optimizers have to be made and checkpoints loaded accordingly, since a `SwigluMlp` has one new parameter for both.
    """
    users = Counter(id(parameter) for module in model.modules() for parameter in module._parameters.values())
    swapped: dict[nn.Module, nn.Module] = {}  # a block that stands in several places becomes one that does
    for parent in list(model.modules()):
        for name, block in list(parent._modules.items()):
            if block is None or block in swapped:
                pass
            elif _is_swiglu(block, users):
                swapped[block] = SwigluMlp(block.gate_proj, block.up_proj, block.down_proj).train(block.training)
            elif _is_squared_relu(block):
                swapped[block] = SquaredReluMlp(block.up_proj, block.down_proj).train(block.training)
            if block in swapped:
                setattr(parent, name, swapped[block])
    return len(swapped)
