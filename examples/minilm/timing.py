"""Two ways to compute the same, timed against each other in one run."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass


class Timed:
    """Passes every call on to `inner` and adds its seconds up, by the name of the method."""

    def __init__(self, inner: object):
        self._inner = inner
        self.seconds: dict[str, float] = defaultdict(float)

    def __getattr__(self, name: str):
        method = getattr(self._inner, name)

        def call(*arguments):
            start = time.perf_counter()
            result = method(*arguments)
            self.seconds[name] += time.perf_counter() - start
            return result

        return call


@dataclass(frozen=True)
class Run:
    """Seconds of one run: all of it, and its parts by name."""

    total: float
    parts: dict[str, float]


def interleave(work: Callable[[object], object], inners: tuple[object, object], rounds: int) -> tuple[list[Run], list[Run]]:
    """Runs of work(inner) for both inners, `rounds` batches of five each, in turn, the order swapped from batch to batch."""
    runs: tuple[list[Run], list[Run]] = ([], [])
    for inner in inners:
        work(inner)
    for index in range(rounds):
        for which in (0, 1) if index % 2 == 0 else (1, 0):
            for _ in range(5):
                timed = Timed(inners[which])
                start = time.perf_counter()
                work(timed)
                runs[which].append(Run(time.perf_counter() - start, dict(timed.seconds)))
    return runs


def median(runs: list[Run], part: str | None = None) -> float:
    return statistics.median(run.total if part is None else run.parts[part] for run in runs)
