"""The library of contenders (bench/gpu/contenders.cpp) as Python calls it, and the schedule of a measurement."""

from __future__ import annotations

import ctypes
import json
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch

WARM_US, WINDOW_US, REST_S, GRAPH_US = 1e5, 2.5e4, 0.02, 2e3
WINDOWS = 3
LIMITED_MHZ, SETTLE_US = 1550, 2.5e5  # below that clock power is the limit, which takes longer to settle
HEAT_US = 1e6  # of a device that has rested; else the first contender is measured on a cool one
SHORT_LAUNCHES, SHORT_US = 4, 100
ONCE = {"itself", "eager", "triton", "torch.compile"}  # in steady state by the windows of one round, to save time


class Failed(RuntimeError):
    pass


class Device:
    def __init__(self, library: Path) -> None:
        self.lib = ctypes.CDLL(str(library))
        for name, answers, *takes in (
            ("error", ctypes.c_char_p),
            ("open", ctypes.c_char_p),
            ("plan", ctypes.c_int, ctypes.c_char_p, ctypes.c_int),
            ("about", ctypes.c_char_p, ctypes.c_int),
            ("product", ctypes.c_int, ctypes.c_char_p, *[ctypes.c_int64] * 4),
            ("algorithms", ctypes.c_int, ctypes.c_int),
            ("choose", ctypes.c_int, ctypes.c_int, ctypes.c_int),
            ("launch", ctypes.c_int, ctypes.c_int, ctypes.POINTER(ctypes.c_void_p)),
            ("capture", ctypes.c_int),
            ("captured", ctypes.c_int),
            ("replay", ctypes.c_double, *[ctypes.c_int] * 3, *[ctypes.POINTER(ctypes.c_double)] * 2),
            ("clear", ctypes.c_int),
        ):
            call = getattr(self.lib, f"verglas_bench_{name}")
            call.restype, call.argtypes = answers, takes
        torch.cuda.init()
        self.about: dict = json.loads(self._call("open"))
        self.stream = torch.cuda.ExternalStream(self.about["stream"])
        self.flush = torch.empty(4 * self.about["l2_bytes"], dtype=torch.uint8, device="cuda")

    def _call(self, name: str, *arguments: object):
        answer = getattr(self.lib, f"verglas_bench_{name}")(*arguments)
        if answer is None or (not isinstance(answer, bytes) and answer < 0):
            raise Failed(self.lib.verglas_bench_error().decode())
        return answer

    def plan(self, graph: str, index: int = 0) -> tuple[int, dict]:
        number = self._call("plan", graph.encode(), index)
        return number, json.loads(self._call("about", number))

    def product(self, kind: str, l: int, m: int, n: int, k: int) -> int:  # noqa: E741
        return self._call("product", kind.encode(), l, m, n, k)

    def algorithms(self, number: int) -> int:
        return self._call("algorithms", number)

    def choose(self, number: int, algorithm: int) -> None:
        self._call("choose", number, algorithm)

    def launcher(self, number: int, sets: list[list[torch.Tensor]]) -> Callable[[int], None]:
        """A launch with set i, in the order in which the contender takes its operands."""
        packs = [(ctypes.c_void_p * len(tensors))(*[t.data_ptr() for t in tensors]) for tensors in sets]
        return lambda i: self._call("launch", number, packs[i])

    def graph(self, launch: Callable[[int], None], sets: list[int]) -> int:
        with torch.cuda.stream(self.stream):
            self._call("capture")
            try:
                for i in sets:
                    launch(i)
            finally:
                number = self._call("captured")
        return number

    def replay_us(self, graph: int, warm: int, count: int) -> float:
        return self._call("replay", graph, warm, count, None, None)

    def window(self, graph: int, warm: int, count: int) -> tuple[float, float, float]:
        """Microseconds, mean cycles of an SM and nanoseconds of `count` replays."""
        cycles, ns = ctypes.c_double(), ctypes.c_double()
        us = self._call("replay", graph, warm, count, ctypes.byref(cycles), ctypes.byref(ns))
        return us, cycles.value, ns.value

    def clear(self) -> None:
        self._call("clear")


@dataclass
class Contender:
    """Something that launches one call on operand set i of the device's stream."""

    name: str
    launch: Callable[[int], None]
    note: str = ""  # which plan, algorithm, tile
    burst: int = -1
    short: int = -1
    calls: int = 0  # of a replay of `burst`
    short_calls: int = SHORT_LAUNCHES
    steady: list[float] = field(default_factory=list)
    quick: list[float] = field(default_factory=list)
    cycles: list[float] = field(default_factory=list)  # a call
    mhz: list[float] = field(default_factory=list)

    @property
    def us(self) -> float:
        return statistics.median(self.steady)

    @property
    def short_us(self) -> float:
        return statistics.median(self.quick)

    def spread(self) -> float:
        return (max(self.steady) - min(self.steady)) / self.us


def capture(device: Device, c: Contender, sets: int, estimate_us: float) -> None:
    """Two graphs: calls for about 2 ms, through all sets, and those of a short run."""
    rounds = max(1, math.ceil(GRAPH_US / estimate_us / sets))
    order = [i for _ in range(min(rounds, max(1, 512 // sets))) for i in range(sets)]
    c.burst, c.calls = device.graph(c.launch, order), len(order)
    c.short_calls = max(SHORT_LAUNCHES, round(SHORT_US / estimate_us))
    c.short = device.graph(c.launch, [i % sets for i in range(c.short_calls)])
    device.replay_us(c.short, 0, 1)


def steady(device: Device, c: Contender) -> None:
    """Windows of 25 ms, one after the other, behind 0.1 s of the contender itself, or 0.37 s where power limits the clock."""
    one = device.replay_us(c.burst, 0, 1)
    warm, count = max(1, round(WARM_US / one)), max(2, round(WINDOW_US / one))
    _, cycles, ns = device.window(c.burst, warm, count)
    settle = round(SETTLE_US / one) if 1e3 * cycles / ns < LIMITED_MHZ else 0
    for i in range(WINDOWS):
        us, cycles, ns = device.window(c.burst, 0 if i else settle, count)
        c.steady.append(us / count / c.calls)
        c.cycles.append(cycles / count / c.calls)
        c.mhz.append(1e3 * cycles / ns)


def short(device: Device, c: Contender) -> None:
    """Four calls, or 0.1 ms of shorter ones, after a rest, none of the operands in L2."""
    with torch.cuda.stream(device.stream):
        device.flush.fill_(1)
    device.stream.synchronize()
    time.sleep(REST_S)
    c.quick.append(device.replay_us(c.short, 0, 1) / c.short_calls)


def compare(device: Device, contenders: list[Contender], rounds: int) -> None:
    """All in turn, the order reversed each round: steady state, then short runs, twice as often."""
    one = device.replay_us(contenders[0].burst, 0, 1)
    _, cycles, ns = device.window(contenders[0].burst, round(WARM_US / one), round(WINDOW_US / one) + 1)
    if 1e3 * cycles / ns < LIMITED_MHZ:
        device.replay_us(contenders[0].burst, 0, round(HEAT_US / one))
    for r in range(rounds):
        for c in contenders if r % 2 == 0 else reversed(contenders):
            if r == 0 or c.name not in ONCE:
                steady(device, c)
    for r in range(2 * rounds):
        for c in contenders if r % 2 == 0 else reversed(contenders):
            short(device, c)
