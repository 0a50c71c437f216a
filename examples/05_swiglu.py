#!/usr/bin/env python3
"""SwiGLU: two products that share A, joined in the epilogue. y = swish(x · G) ∘ (x · U) without storing either product."""

import sys
from pathlib import Path

import numpy as np
import verglas

M, N, K = 32, 56, 24

graph = verglas.Graph("swiglu", io_data_type=verglas.data_type.FLOAT)
x = graph.tensor(name="x", dim=[1, M, K], stride=[M * K, K, 1])
gate = graph.tensor(name="gate", dim=[1, K, N], stride=[K * N, 1, K])
up = graph.tensor(name="up", dim=[1, K, N], stride=[K * N, 1, K])
g = graph.matmul(x, gate)
u = graph.matmul(x, up)
y = graph.mul(graph.swish(g), u).set_name("y").set_output(True)
if len(sys.argv) > 1:
    Path(sys.argv[1]).write_text(graph.to_json(), encoding="utf-8")
graph.build()
print(graph.describe())

vx = (np.arange(M * K) % 7 / 8 - 0.375).astype(np.float32).reshape(1, M, K)
vg = (np.arange(N * K) % 5 / 2 - 1).astype(np.float32).reshape(1, N, K)
vu = (np.arange(N * K) % 3 - 1).astype(np.float32).reshape(1, N, K)
vy = np.empty((1, M, N), np.float32)
graph.execute({x: vx, gate: vg.transpose(0, 2, 1), up: vu.transpose(0, 2, 1), y: vy})

# These sums are exact in fp32, so only swish and the last product round: a few units of 2⁻²⁴ of the result.
sum_g = vx.astype(np.float64) @ vg.transpose(0, 2, 1)
sum_u = vx.astype(np.float64) @ vu.transpose(0, 2, 1)
exact = sum_g / (1 + np.exp(-sum_g)) * sum_u
worst = float((np.abs(vy - exact) / np.maximum(np.abs(exact), 1e-30)).max() * 2**24)
print(f"largest relative error {worst:.2f} units of 2^-24")
assert worst <= 16
