#!/usr/bin/env python3
"""A layer of a mixture of experts: rows of tokens gathered by expert, a bias and the largest result of each expert."""

import sys
from pathlib import Path

import numpy as np
import verglas

TOKENS, TOP_K, EXPERTS, K, N = 24, 2, 4, 16, 32
ROWS = TOKENS * TOP_K

graph = verglas.Graph("moe", io_data_type=verglas.data_type.FLOAT)
x = graph.tensor(name="x", dim=[1, TOKENS, K], stride=[TOKENS * K, K, 1])
w = graph.tensor(name="w", dim=[EXPERTS, K, N], stride=[K * N, N, 1])
offset = graph.tensor(name="offset", dim=[EXPERTS], stride=[1], data_type=verglas.data_type.INT32)
index = graph.tensor(name="index", dim=[1, ROWS, 1], stride=[ROWS, 1, 1], data_type=verglas.data_type.INT32)
bias = graph.tensor(name="bias", dim=[EXPERTS, 1, N], stride=[N, N, 1])
c = graph.moe_grouped_matmul(x, w, offset, index, mode=verglas.moe_grouped_matmul_mode.GATHER)
y = graph.relu(graph.add(c, bias)).set_name("y").set_output(True)
most = graph.reduction(y, verglas.reduction_mode.AMAX, group_offset=offset)
most.set_name("most").set_dim([EXPERTS, 1, 1]).set_output(True)
if len(sys.argv) > 1:
    Path(sys.argv[1]).write_text(graph.to_json(), encoding="utf-8")
graph.build()
print(graph.describe())

# Every token goes to expert 0 or 2, and to expert 3; expert 1 has none.
expert_of = np.stack([np.arange(TOKENS) // 2 % 2 * 2, np.full(TOKENS, 3)], axis=1).ravel()
order = np.argsort(expert_of, kind="stable")
vo = np.searchsorted(expert_of[order], np.arange(EXPERTS)).astype(np.int32)
vi = (order // TOP_K).astype(np.int32).reshape(1, ROWS, 1)
vx = (np.arange(TOKENS * K) % 7 - 3).astype(np.float32).reshape(1, TOKENS, K)
vw = (np.arange(EXPERTS * K * N) % 5 - 2).astype(np.float32).reshape(EXPERTS, K, N)
vb = (np.arange(EXPERTS * N) % 3 - 1).astype(np.float32).reshape(EXPERTS, 1, N)
vy = np.empty((1, ROWS, N), np.float32)
vm = np.empty((EXPERTS, 1, 1), np.float32)
graph.execute({x: vx, w: vw, offset: vo, index: vi, bias: vb, y: vy, most: vm})
graph.check()  # offsets and indices fitted

# Small integers: every sum is exact.
for row, expert in enumerate(expert_of[order]):
    assert (vy[0, row] == np.maximum(vx[0, vi[0, row, 0]] @ vw[expert] + vb[expert, 0], 0)).all()
for expert in range(EXPERTS):
    assert vm[expert, 0, 0] == vy[0][expert_of[order] == expert].max(initial=0)
print("rows of each expert", np.bincount(expert_of, minlength=EXPERTS).tolist(), "largest result", vm.ravel().tolist())
