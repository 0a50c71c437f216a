"""A persistent Triton product with tensor descriptors: a rival, with a few tiles to choose from."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

#        BLOCK_M, BLOCK_N, BLOCK_K, stages, warps
TILES = [(128, 256, 64, 3, 8), (128, 128, 64, 4, 8), (128, 128, 64, 4, 4), (64, 128, 64, 5, 4), (64, 64, 128, 5, 4)]  # fmt: skip
GROUP = 8


@triton.jit
def _product(a, b, d, rows, m, n, k, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
             GROUP: tl.constexpr, BLOCKS: tl.constexpr, OUT: tl.constexpr):  # fmt: skip
    tiles_m = tl.cdiv(rows, BLOCK_M)
    tiles_n = tl.cdiv(n, BLOCK_N)
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, BLOCKS, flatten=True):
        first = tile // (GROUP * tiles_n) * GROUP
        size = min(tiles_m - first, GROUP)
        inside = tile % (GROUP * tiles_n)
        row = (first + inside % size) * BLOCK_M
        column = inside // size * BLOCK_N
        weights = row // m * n + column  # rows of a further matrix of the batch have weights of their own
        total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for step in range(tl.cdiv(k, BLOCK_K)):
            x = a.load([row, step * BLOCK_K])
            y = b.load([weights, step * BLOCK_K])
            total = tl.dot(x, y.T, total)
        d.store([row, column], total.to(OUT))


def launches(sets: list[list[torch.Tensor]], l: int, m: int, n: int, k: int) -> Iterator[tuple[str, Callable[[int], None]]]:  # noqa: E741
    """For each tile that fits, its name and a launch with set i: a (l, m, k), b (l, n, k), d (l, m, n), rows contiguous."""
    processors = torch.cuda.get_device_properties(0).multi_processor_count
    out = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float32: tl.float32}[sets[0][2].dtype]
    for block_m, block_n, block_k, stages, warps in TILES:
        if (l > 1 and m % block_m) or (m <= 64 < block_m):
            continue
        blocks = min(processors, l * triton.cdiv(m, block_m) * triton.cdiv(n, block_n))
        described = [
            (
                TensorDescriptor(a, [l * m, k], [k, 1], [block_m, block_k]),
                TensorDescriptor(b, [l * n, k], [k, 1], [block_n, block_k]),
                TensorDescriptor(d, [l * m, n], [n, 1], [block_m, block_n]),
            )
            for a, b, d in sets
        ]

        def launch(i: int, described=described, blocks=blocks, tile=(block_m, block_n, block_k, stages, warps)) -> None:
            _product[(blocks,)](*described[i], l * m, m, n, k, BLOCK_M=tile[0], BLOCK_N=tile[1], BLOCK_K=tile[2], GROUP=GROUP,
                                BLOCKS=blocks, OUT=out, num_stages=tile[3], num_warps=tile[4])  # fmt: skip

        yield f"{block_m}x{block_n}x{block_k}", launch
