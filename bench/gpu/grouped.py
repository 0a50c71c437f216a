#!/usr/bin/env python3
"""Grouped products on a GPU beside torch._grouped_mm and a loop of torch.mm (cuBLASLt), in one run.

    bench/gpu/grouped.py BUILD_FOLDER FILE [--only TEXT] [--seconds N] [--rounds N] [--plans N] [--commit C]

Method as bench/gpu/measure.py: CUDA graphs, random normal data, operand sets rotated beyond L2, contenders in turn and in
reverse; steady state and short runs. The groups end where int32 numbers in device memory say so; only the loop knows them on the
host, and it skips the empty ones. ratio = rival's time / ours."""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import graphs
import torch
from device import Contender, Device, Failed, capture, compare

FLOP_A_CLOCK = 4096  # of an SM, bf16


@dataclass
class Case:
    groups: int
    rows: int
    k: int
    n: int
    skew: str  # even, or zipf: rows of a group fall with its rank
    gradient: bool = False  # of the weights

    @property
    def name(self) -> str:
        of = "gradient of " if self.gradient else ""
        return f"bf16 {of}{self.groups} groups, {self.rows} rows, K {self.k}, N {self.n}, {self.skew}"

    @property
    def flop(self) -> float:
        return 2.0 * self.rows * self.k * self.n

    def ends(self) -> list[int]:
        weight = [1.0 if self.skew == "even" else 1.0 / (1 + 37 * g % self.groups) for g in range(self.groups)]
        total, ends, sum_ = sum(weight), [], 0.0
        for w in weight:
            sum_ += w
            ends.append(round(self.rows * sum_ / total))
        return ends

    def graph(self) -> str:
        text = graphs.Text("bf16")
        text.tensor("x", [1, self.rows, self.k], [self.rows * self.k, self.k, 1])
        text.tensor("ends", [self.groups], [1], "int32")
        if self.gradient:
            text.tensor("y", [1, self.rows, self.n], [self.rows * self.n, self.n, 1])
            text.node("moe_grouped_matmul_bwd", ["x", "y", "ends"], "w", type="bf16", offsets="end")
            return text.json()
        text.tensor("w", [self.groups, self.k, self.n], [self.k * self.n, 1, self.k])
        text.node("moe_grouped_matmul", ["x", "w", "ends"], "y", type="bf16", offsets="end")
        return text.json()


CASES = [
    Case(8, 8192, 4096, 4096, "even"),
    Case(64, 8192, 2048, 1408, "even"),
    Case(128, 65536, 2048, 1536, "even"),
    Case(256, 1024, 2048, 1408, "even"),
    Case(8, 8192, 4096, 4096, "zipf"),
    Case(64, 8192, 2048, 1408, "zipf"),
    Case(128, 65536, 2048, 1536, "zipf"),
    Case(8, 8192, 4096, 4096, "even", gradient=True),
    Case(64, 8192, 2048, 1408, "even", gradient=True),
    Case(128, 65536, 2048, 1536, "even", gradient=True),
    Case(128, 65536, 2048, 1536, "zipf", gradient=True),
]


class Operands:
    def __init__(self, device: Device, case: Case) -> None:
        self.bytes = 2 * (case.rows * case.k + case.groups * case.k * case.n + case.rows * case.n)
        count = max(3, min(32, 2 * device.about["l2_bytes"] // self.bytes + 1))
        options = {"dtype": torch.bfloat16, "device": "cuda"}
        self.x = [torch.randn(case.rows, case.k, **options) for _ in range(count)]
        if case.gradient:
            self.w = [torch.full((case.groups, case.k, case.n), float("nan"), **options) for _ in range(count)]
            self.y = [torch.randn(case.rows, case.n, **options) for _ in range(count)]
        else:
            self.w = [torch.randn(case.groups, case.n, case.k, **options) for _ in range(count)]
            self.y = [torch.full((case.rows, case.n), float("nan"), **options) for _ in range(count)]
        self.out = self.w if case.gradient else self.y
        self.ends = torch.tensor(case.ends(), dtype=torch.int32, device="cuda")
        self.count = count


def loop(case: Case, o: Operands):
    bounds = [0, *case.ends()]
    spans = [(g, a, b) for g, (a, b) in enumerate(itertools.pairwise(bounds)) if b > a]

    def launch(i: int) -> None:
        for g, a, b in spans:
            if case.gradient:
                torch.mm(o.x[i][a:b].mT, o.y[i][a:b], out=o.w[i][g])
                continue
            torch.mm(o.x[i][a:b], o.w[i][g].mT, out=o.y[i][a:b])

    return launch


def measure(device: Device, case: Case, plans: int, rounds: int) -> list[dict]:
    o = Operands(device, case)
    sets = [{"x": o.x[i], "w": o.w[i], "ends": o.ends, "y": o.y[i]} for i in range(o.count)]

    def ours(index: int) -> Contender:
        number, about = device.plan(case.graph(), index)
        launch = device.launcher(number, [[s[operand["name"]] for operand in about["operands"]] for s in sets])
        return Contender("ours" if index == 0 else f"plan {index}", launch, about["plan"])

    all_ = [ours(0)]
    reference = loop(case, o)
    with torch.cuda.stream(device.stream):
        o.out[0].zero_()  # what the loop leaves out for an empty group
        reference(0)
        want = o.out[0].float()
        o.out[0].fill_(float("nan"))
        all_[0].launch(0)
        error = float((want - o.out[0].float()).norm() / want.norm())
        want = None
    device.stream.synchronize()
    if not error <= 5e-3:
        raise Failed(f"wrong: error {error:.2e} of the norm")
    all_ += [ours(i) for i in range(1, plans)]
    if hasattr(torch, "_grouped_mm"):
        operands = [(x.mT, y) if case.gradient else (x, w.mT) for x, w, y in zip(o.x, o.w, o.y, strict=True)]
        all_.append(Contender("torch._grouped_mm", lambda i: torch._grouped_mm(*operands[i], offs=o.ends)))
    all_.append(Contender("loop of torch.mm", reference))
    estimate = 3 + 1e6 * max(case.flop / (FLOP_A_CLOCK * 132 * 1.3e9), o.bytes / 4e12)
    ready = []
    for c in all_:
        try:
            with torch.cuda.stream(device.stream):
                c.launch(0)
            capture(device, c, o.count, estimate)
            ready.append(c)
        except Exception as failure:  # a rival that cannot is no rival
            if c is all_[0]:
                raise
            print(f"  {c.name}: {str(failure).splitlines()[0]}", flush=True)
    compare(device, ready, rounds)
    first, records = ready[0], []
    for c in ready:
        util = 100 * case.flop / (FLOP_A_CLOCK * device.about["sm_count"] * sorted(c.cycles)[len(c.cycles) // 2])
        times = f"{c.us:8.1f} us short {c.short_us:8.1f} util {util:5.1f} {o.bytes / c.us * 1e-6:5.2f} TB/s"
        ratios = f"ratio {c.us / first.us:.3f} short {c.short_us / first.short_us:.3f}"
        print(f"{case.name} {c.name:18} {times} {ratios} {c.note}", flush=True)
        for regime, a, b in (("steady", first.us, c.us), ("short", first.short_us, c.short_us)):
            if c is first:
                continue
            r = {"suite": f"grouped.{regime}", "case": case.name, "ours_us": a, "rival": c.name, "rival_us": b, "ratio": b / a}
            r |= {"plan": first.note, "rival_note": c.note}
            records.append({k: round(v, 4) if isinstance(v, float) else v for k, v in r.items()})
    return records


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path)
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--plans", type=int, default=1)
    parser.add_argument("--commit", default="unknown")
    options = parser.parse_args()
    start = time.monotonic()
    device = Device(options.build / "bench/libverglas_bench_gpu_contenders.so")
    result = {"benchmark": "bench/gpu/grouped"} | device.about | {"torch": torch.__version__, "commit": options.commit}
    result |= {"command": "bench/gpu/grouped.py BUILD_FOLDER FILE", "records": [], "declined": {}}
    result.pop("stream")
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    result["driver"] = subprocess.run(query, check=True, capture_output=True, text=True).stdout.split()[0]
    longest = 0.0
    for case in CASES:
        if options.only not in case.name:
            continue
        before = time.monotonic()
        if before - start + longest > options.seconds:
            print(f"{case.name}: no time left")
            continue
        try:
            result["records"] += measure(device, case, options.plans, options.rounds)
        except Failed as error:
            result["declined"][case.name] = str(error).splitlines()[0]
            print(f"{case.name}: {error}", flush=True)
        device.clear()
        torch.cuda.empty_cache()
        longest = max(longest, time.monotonic() - before)
        options.file.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"measured after {time.monotonic() - start:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
