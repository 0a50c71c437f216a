#!/usr/bin/env python3
"""Reductions in the same pass: row sums, column maxima and the largest magnitude of c = a · b, beside c itself."""

import sys
from pathlib import Path

import numpy as np
import verglas

M, N, K = 36, 50, 20
mode = verglas.reduction_mode

graph = verglas.Graph("reductions", io_data_type=verglas.data_type.FLOAT)
a = graph.tensor(name="a", dim=[M, K], stride=[K, 1])  # rank 2 is a batch of 1
b = graph.tensor(name="b", dim=[K, N], stride=[N, 1])
c = graph.matmul(a, b).set_name("c").set_output(True)
# The extents of a reduction's output say what is reduced: where they are 1.
row_sum = graph.reduction(c, mode.ADD).set_name("row_sum").set_dim([M, 1]).set_output(True)
column_max = graph.reduction(c, mode.MAX).set_name("column_max").set_dim([1, N]).set_output(True)
amax = graph.reduction(c, mode.AMAX).set_name("amax").set_dim([1, 1]).set_output(True)
if len(sys.argv) > 1:
    Path(sys.argv[1]).write_text(graph.to_json(), encoding="utf-8")
graph.build()
print(graph.describe())

va = (np.arange(M * K) % 7 - 3).astype(np.float32).reshape(M, K)
vb = (np.arange(K * N) % 5 - 2).astype(np.float32).reshape(K, N)
shapes = {c: (M, N), row_sum: (M, 1), column_max: (1, N), amax: (1, 1)}
out = {tensor: np.empty(shape, np.float32) for tensor, shape in shapes.items()}
graph.execute({a: va, b: vb, **out})

exact = va.astype(np.float64) @ vb
assert (out[c] == exact).all()
assert (out[row_sum] == exact.sum(1, keepdims=True)).all()
assert (out[column_max] == exact.max(0, keepdims=True)).all()
assert out[amax] == np.abs(exact).max()
print("all as float64 has them")
