#!/usr/bin/env python3
"""Grouped products on a GPU beside torch._grouped_mm (fp8: torch._scaled_grouped_mm), a Triton product of groups and a loop of
torch.mm (cuBLASLt), in one run.

    bench/gpu/grouped.py BUILD_FOLDER FILE [--only TEXT|TEXT…] [--rivals LIST] [--seconds N] [--rounds N] [--plans N] [--commit C]

Method as bench/gpu/measure.py: CUDA graphs, random normal data, operand sets rotated beyond L2, contenders in turn and in
reverse; steady state and short runs. The groups end where int32 numbers in device memory say so; only the loop knows them on the
host, and it skips the empty ones. ratio = rival's time / ours. The rival `balanced` is our own plan where all groups are alike,
of the same work; `dense` our batch of products that a gradient of such groups is; `bf16` our product in bf16; `tensors` our plan
where weights by address lie in a tensor; `read` a kernel that reads the weights and nothing else, its time scaled to all bytes
that a call moves at the least."""

from __future__ import annotations

import re
import statistics
import sys
from dataclasses import replace

import torch
import triton_grouped
import triton_read
from device import Contender, Device, Failed, capture, compare
from grouped_cases import CASES, Case, Operands
from session import Session, parser

FLOP_A_CLOCK = {"bf16": 4096, "fp8": 8192, "mxfp8": 8192}  # of an SM
CLOSE = {"bf16": 5e-3, "fp8": 5e-3, "mxfp8": 5e-3}  # norm of the error / norm
RIVALS = "torch,triton,loop,balanced,dense,bf16,tensors,read"


def loop(case: Case, o: Operands):
    spans = case.spans()

    def launch(i: int) -> None:
        for g, a, b in spans:
            if case.gradient:
                torch.mm(o.x[i][a:b].mT, o.y[i][a:b], out=o.w[i][g])
            else:
                torch.mm(o.x[i][a:b], o.w[i][g].mT, out=o.y[i][a:b])

    return launch


def of_torch(case: Case, o: Operands):
    if case.kind == "fp8":
        return lambda i: torch._scaled_grouped_mm(o.x[i], o.w[i].mT, o.sx, o.sw, offs=o.ends, out_dtype=torch.bfloat16)
    operands = [(x.mT, y) if case.gradient else (x, w.mT) for x, w, y in zip(o.x, o.w, o.y, strict=True)]
    return lambda i: torch._grouped_mm(*operands[i], offs=o.ends)


def estimate_us(case: Case, o: Operands) -> float:
    return 3 + 1e6 * max(case.flop / (FLOP_A_CLOCK[case.kind] * 132 * 1.3e9), o.bytes / 4e12)


def tile_of(note: str) -> str:
    """Of a plan, whether it is launched programmatically or not, which changes nothing here."""
    return re.sub(r"PROGRAMMATIC=\d|, predicted.*", "", note)


def triton_contender(device: Device, case: Case, o: Operands) -> Contender:
    best: Contender | None = None
    for tile, launch in triton_grouped.launches(o.x, o.w, o.y, o.ends):
        with torch.cuda.stream(device.stream):
            launch(0)
        c = Contender("triton", launch, tile)
        capture(device, c, o.count, estimate_us(case, o))
        c.steady = [min(device.replay_us(c.burst, 1, 1) for _ in range(2)) / c.calls]
        if best is None or c.us < best.us:
            best = c
    assert best is not None
    best.steady.clear()
    return best


def contenders(device: Device, case: Case, o: Operands, plans: int, rivals: list[str]) -> list[Contender]:
    """Ours first, and seen to be right."""
    sets = o.sets(case.by_address)

    def plan(name: str, graph: str, index: int = 0, with_: list[dict] = sets) -> Contender:
        number, about = device.plan(graph, index)
        launch = device.launcher(number, [[s[operand["name"]] for operand in about["operands"]] for s in with_])
        return Contender(name, launch, f"{about['plan']}, predicted {about['predicted_us']:.1f} us" if index else about["plan"])

    ours = plan("ours", case.graph())
    want = o.wanted()
    with torch.cuda.stream(device.stream):
        ours.launch(0)
    device.stream.synchronize()
    error = float((want - o.out[0].float()).norm() / want.norm())
    del want
    if not error <= CLOSE[case.kind]:
        raise Failed(f"wrong: error {error:.2e} of the norm")
    capture(device, ours, o.count, estimate_us(case, o))
    all_ = [ours]

    def add(name: str, make) -> None:
        try:
            c = make()
            if c.burst < 0:
                with torch.cuda.stream(device.stream):
                    c.launch(0)
                capture(device, c, o.count, estimate_us(case, o))
            all_.append(c)
        except Exception as failure:  # a rival that cannot is no rival
            print(f"  {name}: {str(failure).splitlines()[0] if str(failure) else failure!r}", flush=True)

    tiles = {tile_of(ours.note)}
    for i in range(1, plans):
        add(f"plan {i}", lambda i=i: plan(f"plan {i}", case.graph(), i))
        if all_[-1].name == f"plan {i}":
            if tile_of(all_[-1].note) in tiles:
                all_.pop()
            tiles.add(tile_of(all_[-1].note))
    if "torch" in rivals and case.kind != "mxfp8":
        name = "torch._scaled_grouped_mm" if case.kind == "fp8" else "torch._grouped_mm"
        add(name, lambda: Contender(name, of_torch(case, o)))
    if case.kind == "bf16" and "loop" in rivals:
        add("loop of torch.mm", lambda: Contender("loop of torch.mm", loop(case, o)))
    if case.kind == "bf16" and not case.gradient and "triton" in rivals:
        add("triton", lambda: triton_contender(device, case, o))
    if case.skew != "even" and "balanced" in rivals:
        ends = torch.tensor(replace(case, skew="even").ends(), dtype=torch.int32, device="cuda")
        add("balanced", lambda: plan("balanced", case.graph(), with_=[s | {"ends": ends} for s in sets]))
    if case.gradient and case.skew == "even" and "dense" in rivals:
        of_batch = [{"a": s["x"], "b": s["y"], "w": s["w"]} for s in sets]
        add("dense", lambda: plan("dense", case.dense_graph(), with_=of_batch))
    if not case.gradient and "read" in rivals:
        add("read", lambda: Contender("read", triton_read.launch(o.w), "of weights alone"))
    if case.kind != "bf16" and "bf16" in rivals:
        wide = replace(case, kind="bf16", by_address=False)
        own = Operands(device.about["l2_bytes"], wide)
        own_sets = [own.sets(False)[i % own.count] for i in range(o.count)]
        add("bf16", lambda: plan("bf16", wide.graph(), with_=own_sets))
    if case.by_address and "tensors" in rivals:
        add("tensors", lambda: plan("tensors", replace(case, by_address=False).graph(), with_=o.sets(False)))
    return all_


def measure(device: Device, case: Case, plans: int, rounds: int, rivals: list[str]) -> list[dict]:
    o = Operands(device.about["l2_bytes"], case)
    all_ = contenders(device, case, o, plans, rivals)
    compare(device, all_, rounds)
    first, records = all_[0], []
    for c in all_:
        util = 100 * case.flop / (FLOP_A_CLOCK[case.kind] * device.about["sm_count"] * statistics.median(c.cycles))
        times = f"{c.us:8.1f} us short {c.short_us:8.1f} util {util:5.1f} {o.bytes / c.us * 1e-6:5.2f} TB/s"
        ratios = f"ratio {c.us / first.us:.3f} short {c.short_us / first.short_us:.3f}"
        print(f"{case.name} {c.name:18} {times} {ratios} {c.note}", flush=True)
        for regime, a, b in (("steady", first.us, c.us), ("short", first.short_us, c.short_us)):
            if c is first:
                continue
            if c.name == "read":
                b *= o.bytes / o.weight_bytes
            r = {"suite": f"grouped.{regime}", "case": case.name, "ours_us": a, "rival": c.name, "rival_us": b, "ratio": b / a}
            r["tb_s"] = o.bytes / a * 1e-6
            records.append(r | {"plan": first.note, "rival_note": c.note})
    return records


def main() -> int:
    arguments = parser(__doc__ or "")
    arguments.add_argument("--only", default="", help="parts of names of cases, between bars")
    arguments.add_argument("--rivals", default=RIVALS, type=lambda s: s.split(","))
    options = arguments.parse_args()
    session = Session("grouped", options)
    cases = [case for case in CASES if any(text in case.name for text in options.only.split("|"))]
    session.compile_ahead({case.graph() for case in cases})
    for case in cases:
        todo = (session.device, case, options.plans, options.rounds, options.rivals)
        session.measure(case.name, lambda todo=todo: measure(*todo))
    print(f"measured after {session.seconds():.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
