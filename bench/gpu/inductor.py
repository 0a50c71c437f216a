#!/usr/bin/env python3
"""torch.compile (max-autotune) of fused graphs. Most of what it takes is Triton compiling on the host, so processes do that
beside each other into Inductor's cache, and the one that measures finds everything there. Only one of them times kernels at a
time: what Inductor chooses is chosen on a device of its own.

    bench/gpu/inductor.py CASE...     as a process of `ahead`: compiles these, a line for each that is ready"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import graphs
import torch

LOCK = Path(tempfile.gettempdir()) / "verglas-inductor.lock"


def one_at_a_time() -> None:
    """Inductor's timings hold a lock that all processes share."""
    from torch._inductor.runtime import benchmarking

    real, depth, file = benchmarking.benchmarker.benchmark_gpu, threading.local(), LOCK.open("w")

    def locked(*arguments, **named):
        if getattr(depth, "held", False):
            return real(*arguments, **named)
        fcntl.flock(file, fcntl.LOCK_EX)
        depth.held = True
        try:
            return real(*arguments, **named)
        finally:
            torch.cuda.synchronize()
            depth.held = False
            fcntl.flock(file, fcntl.LOCK_UN)

    benchmarking.benchmarker.benchmark_gpu = locked


def compiled(case: graphs.Case, inputs: list[list[torch.Tensor]]) -> Callable[[int], object]:
    """A call with set i. Both of the first sets are run, so that nothing is left to do."""
    torch._dynamo.reset()
    fast = torch.compile(case.eager, mode="max-autotune-no-cudagraphs", dynamic=False)
    for i in range(2):
        fast(*inputs[i])
    return lambda i: fast(*inputs[i])


def inputs_of(case: graphs.Case) -> list[torch.Tensor]:
    graph = json.loads(case.graph)
    named = {t["name"]: t for t in graph["tensors"]}

    def tensor(name: str) -> torch.Tensor:
        t = named[name]
        x = torch.empty_strided(
            t["dim"], t["stride"], dtype=graphs.TYPES[t.get("data_type", graph["io_data_type"])], device="cuda"
        )
        return x.normal_() if x.dtype.is_floating_point else x.random_(-127, 128)

    return [tensor(name) for name in case.inputs]


def flavor_of(text: str) -> graphs.Case:
    shape, name = text.split(" ", 1)
    return graphs.flavor(name, *(int(e) for e in shape.split("x")))


def ahead(cases: list[graphs.Case], seconds: float) -> set[str]:
    """Those of the cases that were ready in time. A process has a few graphs of one shape, whose product is tuned once."""
    by_shape: dict[str, list[str]] = {}
    for case in cases:
        by_shape.setdefault(case.shape, []).append(case.name)
    each = max(2, 8 // max(1, len(by_shape)))
    parts = [names[i::each] for names in by_shape.values() for i in range(each) if names[i::each]]
    threads = max(2, (os.cpu_count() or 2) // max(1, len(parts)))
    environment = os.environ | {"TORCHINDUCTOR_COMPILE_THREADS": str(threads)}
    start, ready = time.monotonic(), set()

    def follow(process: subprocess.Popen) -> None:
        for line in process.stdout:
            if line.startswith("ready "):
                ready.add(line.split(" ", 2)[2].strip())
            print(f"  {time.monotonic() - start:5.1f} s: {line.rstrip()}", flush=True)

    quiet = subprocess.DEVNULL  # Inductor tells all that it tries
    running = [
        subprocess.Popen([sys.executable, __file__, *names], env=environment, stdout=subprocess.PIPE, stderr=quiet, text=True)
        for names in parts
    ]
    followers = [threading.Thread(target=follow, args=(p,)) for p in running]
    for f in followers:
        f.start()
    for p in running:
        try:
            p.wait(max(0.1, seconds - (time.monotonic() - start)))
        except subprocess.TimeoutExpired:
            p.kill()
            p.wait()
    for f in followers:
        f.join(5)
    return ready


def main() -> int:
    one_at_a_time()
    for name in sys.argv[1:]:
        before = time.monotonic()
        try:
            case = flavor_of(name)
            compiled(case, [inputs_of(case)] * 2)
            torch.cuda.synchronize()
            print(f"ready {time.monotonic() - before:.1f} {name}", flush=True)
        except Exception as error:  # a rival that cannot is no rival
            print(f"failed {name}: {str(error).splitlines()[0] if str(error) else error!r}", flush=True)
        torch.cuda.empty_cache()
    return 0


if __name__ == "__main__":
    sys.exit(main())
