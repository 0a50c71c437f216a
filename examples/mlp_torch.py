#!/usr/bin/env python3
"""The feed-forward block of a Llama-style model in torch: swapped for the fused one, and compared with itself before, forward and
backward."""

import copy

import torch
from torch import nn
from verglas.torch import swap_mlp


class Mlp(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.down_proj, self.act_fn = nn.Linear(hidden, width, bias=False), nn.SiLU()

    def forward(self, x):
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


torch.manual_seed(0)
plain = nn.Sequential(nn.LayerNorm(48), Mlp(48, 96), nn.LayerNorm(48), Mlp(48, 160))
fused = copy.deepcopy(plain)
print(f"{swap_mlp(fused)} blocks are fused")

x = torch.randn(2, 7, 48)
results = []
for model in (plain, fused):
    source = x.clone().requires_grad_()
    y = model(source)
    (y**2).sum().backward()
    results.append((y.detach(), source.grad, model[1].down_proj.weight.grad))
worst = max(((f - p).abs().max() / p.abs().max()).item() for p, f in zip(*results, strict=True))
print(f"largest difference of results and gradients {worst:.1e}, of the largest of each")
assert worst < 1e-5
