"""A persistent Triton product of groups, tokens and weights by tensor descriptors: a rival, with a few tiles to choose from. Each
program walks the groups in their order, as the one of Triton's tutorials does."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

#        BLOCK_M, BLOCK_N, BLOCK_K, stages, warps
TILES = [(128, 256, 64, 3, 8), (128, 128, 64, 4, 8), (64, 128, 64, 5, 4)]


@triton.jit
def _grouped(x, w, y, ends, groups, n, k, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
             BLOCKS: tl.constexpr):  # fmt: skip
    tile = tl.program_id(0)
    tiles_n = tl.cdiv(n, BLOCK_N)
    before = 0
    first = 0
    for g in range(groups):
        end = tl.load(ends + g)
        tiles_m = tl.cdiv(end - first, BLOCK_M)
        while tile < before + tiles_m * tiles_n:
            row = first + (tile - before) % tiles_m * BLOCK_M
            column = (tile - before) // tiles_m * BLOCK_N
            total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
            for step in range(tl.cdiv(k, BLOCK_K)):
                a = x.load([row, step * BLOCK_K])
                b = w.load([g * n + column, step * BLOCK_K])
                total = tl.dot(a, b.T, total)
            rows = row + tl.arange(0, BLOCK_M)
            columns = column + tl.arange(0, BLOCK_N)
            here = (rows[:, None] < end) & (columns[None, :] < n)
            tl.store(y + rows[:, None].to(tl.int64) * n + columns[None, :], total.to(tl.bfloat16), mask=here)
            tile += BLOCKS
        before += tiles_m * tiles_n
        first = end


def launches(x: list[torch.Tensor], w: list[torch.Tensor], y: list[torch.Tensor], ends: torch.Tensor,
             ) -> Iterator[tuple[str, Callable[[int], None]]]:  # fmt: skip
    """For each tile its name and a launch with set i: x (rows, K), w (groups, N, K), y (rows, N), rows contiguous."""
    processors = torch.cuda.get_device_properties(0).multi_processor_count
    groups, n, k = w[0].shape
    for block_m, block_n, block_k, stages, warps in TILES:
        described = [
            (
                TensorDescriptor(a, list(a.shape), [k, 1], [block_m, block_k]),
                TensorDescriptor(b, [groups * n, k], [k, 1], [block_n, block_k]),
                d,
            )
            for a, b, d in zip(x, w, y, strict=True)
        ]

        def launch(i: int, described=described, tile=(block_m, block_n, block_k, stages, warps)) -> None:
            _grouped[(processors,)](*described[i], ends, groups, n, k, BLOCK_M=tile[0], BLOCK_N=tile[1], BLOCK_K=tile[2],
                                    BLOCKS=processors, num_stages=tile[3], num_warps=tile[4])  # fmt: skip

        yield f"{block_m}x{block_n}x{block_k}", launch
