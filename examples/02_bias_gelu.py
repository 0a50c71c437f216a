#!/usr/bin/env python3
"""A linear layer with bias and GELU in one pass over memory: y = gelu(x · Wᵀ + bias), bf16 in and out, sums in fp32."""

import math
import sys
from pathlib import Path

import numpy as np
import verglas
from ml_dtypes import bfloat16

M, N, K = 40, 96, 64

# Types: tensors that are passed have the io type, what stays inside the intermediate type, sums the compute type.
graph = verglas.Graph("bias_gelu", io_data_type="bf16", intermediate_data_type="fp32", compute_data_type="fp32")
x = graph.tensor(name="x", dim=[1, M, K], stride=[M * K, K, 1])
w = graph.tensor(name="w", dim=[1, K, N], stride=[K * N, 1, K])
bias = graph.tensor(name="bias", dim=[1, 1, N], stride=[N, N, 1])  # broadcasts along M
y = graph.gelu(graph.bias(graph.matmul(x, w), bias)).set_name("y").set_output(True)
if len(sys.argv) > 1:
    Path(sys.argv[1]).write_text(graph.to_json(), encoding="utf-8")
graph.build()
print(graph.describe())

# ml_dtypes gives NumPy its bfloat16; Verglas reads such arrays as they are.
vx = (np.arange(M * K) % 9 / 4 - 1).astype(bfloat16).reshape(1, M, K)
weight = (np.arange(N * K) % 11 / 16 - 0.3125).astype(bfloat16).reshape(N, K)
vb = (np.arange(N) % 3 - 1).astype(bfloat16)
vy = np.empty((1, M, N), bfloat16)
graph.execute({"x": vx, "w": weight.T[None], "bias": vb, "y": vy})  # names are keys too; a bias may leave out its unit axes

total = vx.astype(np.float64) @ weight.T.astype(np.float64) + vb.astype(np.float64)
exact = 0.5 * total * np.vectorize(math.erfc)(-total / math.sqrt(2))
half_ulp = 2.0 ** (np.maximum(np.floor(np.log2(np.abs(exact))), -126) - 8)
worst = float((np.abs(vy.astype(np.float64) - exact) / half_ulp).max())
print(f"largest error {worst:.4f} half units in the last place of bf16")
assert worst <= 1.01  # one rounding to bf16, and a little for the sum and the function in fp32
