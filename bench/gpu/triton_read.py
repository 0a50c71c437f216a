"""Reading memory and nothing else: the time that bytes take at the least, in the run that they are compared in."""

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl

# Words of a step, programs, warps: what was fastest on an H200 (4.36 and 4.52 TB/s of 369 MB and 1.5 GB; 132 long programs 2.7).
WORDS, PROGRAMS, WARPS = 4096, 1056, 4


@triton.jit
def _read(words, sums, count, WORDS: tl.constexpr, PROGRAMS: tl.constexpr):
    total = tl.zeros((WORDS,), tl.int32)
    for first in range(tl.program_id(0) * WORDS, count, PROGRAMS * WORDS):
        at = first + tl.arange(0, WORDS)
        total += tl.load(words + at, mask=at < count, other=0)
    tl.store(sums + tl.program_id(0), tl.sum(total, 0))


def launch(sets: list[torch.Tensor]) -> Callable[[int], None]:
    """Reads all of a tensor, that of set i."""
    sums = torch.empty(PROGRAMS, dtype=torch.int32, device="cuda")
    words = [t.view(-1).view(torch.int32) for t in sets]
    return lambda i: _read[(PROGRAMS,)](words[i], sums, words[i].numel(), WORDS, PROGRAMS, num_warps=WARPS)
