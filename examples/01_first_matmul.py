#!/usr/bin/env python3
"""One matrix product: describe it, compile it, run it. The twin of 01_first_matmul.cpp.

With an argument it writes its graph there, for `verglas run` and `verglas explain`.
"""

import sys
from pathlib import Path

import numpy as np
import verglas

M, N, K = 64, 48, 32

# 1. Describe. A is (L, M, K), B is (L, K, N); L is the batch, 1 here. Strides are in elements: B is stored with K contiguous,
#    which is how the weights of a linear layer lie in memory.
graph = verglas.Graph("first_matmul", io_data_type=verglas.data_type.FLOAT)
a = graph.tensor(name="a", dim=[1, M, K], stride=[M * K, K, 1])
b = graph.tensor(name="b", dim=[1, K, N], stride=[K * N, 1, K])
c = graph.matmul(a, b).set_name("c").set_output(True)
if len(sys.argv) > 1:
    Path(sys.argv[1]).write_text(graph.to_json(), encoding="utf-8")

# 2. Compile. Engines are asked best first; the graph can then be called any number of times, from any thread.
graph.build()
print(graph.describe())

# 3. Run. The memory is yours. Small integers make every sum exact, so the result can be compared with ==.
x = (np.arange(M * K) % 7 - 3).astype(np.float32).reshape(1, M, K)
weight = (np.arange(N * K) % 5 - 2).astype(np.float32).reshape(N, K)
out = np.empty((1, M, N), np.float32)
graph.execute({a: x, b: weight.T[None], c: out})

assert (out == x.astype(np.float64) @ weight.T).all()
print(f"{out.size} elements, all as float64 has them")
