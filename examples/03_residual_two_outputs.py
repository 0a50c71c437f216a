#!/usr/bin/env python3
"""A residual connection, and two outputs of one kernel: h = x · W + r is stored for the backward pass, y = relu(h) goes on."""

import sys
from pathlib import Path

import numpy as np
import verglas

L, M, N, K = 2, 24, 40, 16

graph = verglas.Graph("residual_two_outputs", io_data_type=verglas.data_type.FLOAT)
x = graph.tensor(name="x", dim=[L, M, K], stride=[M * K, K, 1])
w = graph.tensor(name="w", dim=[1, K, N], stride=[K * N, N, 1])  # one W for both batches
r = graph.tensor(name="r", dim=[L, M, N], stride=[M * N, N, 1])
h = graph.add(graph.matmul(x, w), r).set_name("h").set_output(True)
y = graph.relu(h).set_name("y").set_output(True)
if len(sys.argv) > 1:
    Path(sys.argv[1]).write_text(graph.to_json(), encoding="utf-8")
graph.build()
print(graph.describe())
for operand in graph.plan.operands():
    print(f"  {operand.name} is {operand.roles}")

vx = (np.arange(L * M * K) % 7 - 3).astype(np.float32).reshape(L, M, K)
vw = (np.arange(K * N) % 5 - 2).astype(np.float32).reshape(1, K, N)
vr = (np.arange(L * M * N) % 13 - 6).astype(np.float32).reshape(L, M, N)
vh, vy = np.empty_like(vr), np.empty_like(vr)
graph.execute([vx, vw, vr, vh, vy])  # a sequence is in the order of operands()

exact = vx.astype(np.float64) @ vw + vr
assert (vh == exact).all()
assert (vy == np.maximum(exact, 0)).all()
print(f"{vh.size} elements of each output, all as float64 has them")

# A call that is wrong says what it got and what it wanted, before anything is written.
try:
    graph.execute([vx, vw, vr[:, :, :-1], vh, vy])
except verglas.InvalidCallError as error:
    print(error)
