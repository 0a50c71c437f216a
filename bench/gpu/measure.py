#!/usr/bin/env python3
"""Kernels on a GPU beside their rivals, in one run: products of bench/gpu/cases.json against cuBLASLt's best of eight heuristics,
torch, a Triton product and torch.compile (max-autotune), fused graphs against our own plain product and torch.

    bench/gpu/measure.py BUILD_FOLDER FILE [--only LIST] [--rivals LIST] [--seconds N] [--compile-seconds N]
        [--rounds N] [--plans N] [--commit C]

Method: every contender is captured into CUDA graphs, so that no host time counts. Random normal data, operand sets rotated beyond
L2, all contenders of a case in turn, then in reverse order. Steady state: 0.1 s of the contender itself, 0.37 s where power is
the limit, then three windows of 25 ms, each between two readings of every SM's clock; there a second of the first contender goes
before all, since a device that has rested is cooler. Short run: four calls, or 0.1 ms of shorter
ones, after a rest of 20 ms, L2 full of something else. Medians of all. With the first case of a part goes a second instance of
ours, as the rival `itself`: its ratio is the noise. ratio = rival's time / ours. The file is written after every case; what it
holds already, of the same commit, is not measured again."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

import graphs
import inductor
import torch
from device import Contender, Device, Failed, capture, compare
from session import Session, parser

HERE = Path(__file__).resolve().parent
FLOP_A_CLOCK = {"bf16": 4096, "fp16": 4096, "tf32": 2048, "int8": 8192}  # of an SM
CLOSE = {"bf16": 1e-2, "fp16": 2e-3, "tf32": 2e-3, "int8": 0.0}  # norm of the error / norm


def cases(only: str) -> Iterator[tuple[str, graphs.Case]]:
    listed = json.loads((HERE / "cases.json").read_text(encoding="utf-8"))

    def wanted(name: str) -> bool:
        return any(part in name for part in only.split(","))

    for kind, shapes in listed["products"].items():
        for extents in shapes:
            case = graphs.product(kind, *extents)
            if wanted(f"products {case.name}"):
                yield "products", case
    for extents in listed["flavors"]["shapes"]:
        for name in listed["flavors"]["names"]:
            case = graphs.flavor(name, *extents)
            if wanted(f"flavors {case.name}"):
                yield "flavors", case


def in_order(all_: list[tuple[str, graphs.Case]], rivals: list[str]) -> Iterator[tuple[str, graphs.Case, list[str]]]:
    """What matters most first."""
    of = {"products": ("itself", "cublaslt", "eager", "triton"), "flavors": ("itself", "plain", "eager", "torch.compile")}
    parts = [[i for i in all_ if i[0] == "products" and i[1].type == "bf16"], [i for i in all_ if i[0] == "flavors"]]
    parts.append([i for i in all_ if i not in parts[0] and i not in parts[1]])
    for part in parts:
        for i, (suite, case) in enumerate(part):
            of_part = [r for r in rivals if r != "itself" or i == 0]
            # The other types beside cuBLASLt alone: the time is for the rest.
            yield suite, case, [r for r in of_part if r in of[suite] and (case.type == "bf16" or r in ("itself", "cublaslt"))]


class Operands:
    """Tensors of a plan's operands in several sets, inputs random, outputs poisoned."""

    def __init__(self, device: Device, about: dict) -> None:
        self.about = about
        bytes_of_set = sum(self.extent(o) * graphs.TYPES[o["type"]].itemsize for o in about["operands"])
        count = max(3, min(64, 2 * device.about["l2_bytes"] // bytes_of_set + 1))
        self.sets = [{o["name"]: self.tensor(o) for o in about["operands"]} for _ in range(count)]

    @staticmethod
    def extent(o: dict) -> int:
        return 1 + sum((d - 1) * s for d, s in zip(o["dim"], o["stride"], strict=True))

    @staticmethod
    def tensor(o: dict) -> torch.Tensor:
        dtype = graphs.TYPES[o["type"]]
        t = torch.empty_strided(o["dim"], o["stride"], dtype=dtype, device="cuda")
        if o["output"]:
            return t.fill_(float("nan")) if dtype.is_floating_point else t.fill_(-1)
        return t.normal_() if dtype.is_floating_point else t.random_(-127, 128)

    def of(self, names: list[str]) -> list[list[torch.Tensor]]:
        return [[s[name] for name in names] for s in self.sets]

    @property
    def bytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in self.sets[0].values())


def error_of(case: graphs.Case, operands: Operands) -> float:
    """The largest norm of an output's error ÷ norm of the output, on set 0."""
    wide = torch.float64 if case.type == "int8" else torch.float32
    torch.backends.cuda.matmul.allow_tf32 = False
    first = operands.sets[0]
    inputs = [first[name].to(wide) for name in case.inputs]
    wanted = (inputs[0] @ inputs[1],) if case.type == "int8" else case.eager(*inputs)
    worst = 0.0
    for name, want in zip(case.outputs, wanted, strict=True):
        error = (first[name].to(wide) - want).norm() / want.norm()
        worst = max(worst, float("inf") if torch.isnan(error) else float(error))
    return worst


def triton_contender(device: Device, case: graphs.Case, operands: Operands) -> Contender:
    import triton_product

    sets = [[a, b.mT, d] for a, b, d in operands.of(["a", "b", "d"])]
    best: Contender | None = None
    for tile, launch in triton_product.launches(sets, case.l, case.m, case.n, case.k):
        with torch.cuda.stream(device.stream):
            launch(0)
        c = Contender("triton", launch, tile)
        capture(device, c, len(sets), estimate_us(case, operands))
        c.steady = [min(device.replay_us(c.burst, 1, 1) for _ in range(2)) / c.calls]
        if best is None or c.us < best.us:
            best = c
    if best is None:
        raise Failed("no tile of the Triton product fits")
    best.steady.clear()
    return best


def estimate_us(case: graphs.Case, operands: Operands) -> float:
    return 2 + 1e6 * max(case.flop / (FLOP_A_CLOCK[case.type] * 132 * 1.3e9), operands.bytes / 4e12)


def contenders_of(
    device: Device, suite: str, case: graphs.Case, operands: Operands, ours: int, plans: int, rivals
) -> list[Contender]:
    sets = operands.of([o["name"] for o in operands.about["operands"]])
    all_ = [Contender("ours", device.launcher(ours, sets), operands.about["plan"])]
    all_[0].launch(0)
    device.stream.synchronize()
    error = error_of(case, operands)
    if not error <= CLOSE[case.type]:
        raise Failed(f"wrong: error {error:.2e} of the norm")
    torch.backends.cuda.matmul.allow_tf32 = case.type == "tf32"  # for the rivals

    def add(name: str, make) -> None:
        try:
            c = make()
            if c.burst < 0:
                with torch.cuda.stream(device.stream):
                    c.launch(0)
                capture(device, c, len(sets), estimate_us(case, operands))
            all_.append(c)
        except Exception as error:  # a rival that cannot is no rival
            print(f"  {name}: {str(error).splitlines()[0] if str(error) else error!r}", flush=True)

    capture(device, all_[0], len(sets), estimate_us(case, operands))
    if "itself" in rivals:
        add("itself", lambda: Contender("itself", device.launcher(ours, sets)))
    for index in range(1, plans):

        def further(index: int = index) -> Contender:
            number, about = device.plan(case.graph, index)
            note = f"{about['plan']}, predicted {about['predicted_us']:.1f} us"
            return Contender(f"plan {index}", device.launcher(number, sets), note)

        add(f"plan {index}", further)
    inputs = operands.of(case.inputs)
    if suite == "products":
        if "cublaslt" in rivals:
            add("cublaslt", lambda: cublaslt_contender(device, case, operands))
        if "eager" in rivals:
            if case.type == "int8":
                add("eager", lambda: Contender("eager", lambda i: case.eager(*inputs[i])))
            else:
                outputs = operands.of(["d"])
                add("eager", lambda: Contender("eager", lambda i: torch.matmul(*inputs[i], out=outputs[i][0])))
        if "triton" in rivals:
            add("triton", lambda: triton_contender(device, case, operands))
    else:
        plain = graphs.product("bf16", 1, case.m, case.n * case.products, case.k)

        def plain_contender() -> Contender:
            number, about = device.plan(plain.graph)
            own = Operands(device, about)
            return Contender("plain", device.launcher(number, own.of([o["name"] for o in about["operands"]])), about["plan"])

        if "plain" in rivals:
            add("plain", plain_contender)
        if "eager" in rivals:
            add("eager", lambda: Contender("eager", lambda i: case.eager(*inputs[i])))
    if "torch.compile" in rivals:

        def compiled_contender() -> Contender:
            with torch.cuda.stream(device.stream):
                call = inductor.compiled(case, inputs)
            device.stream.synchronize()
            return Contender("torch.compile", call)

        add("torch.compile", compiled_contender)
    return all_


def cublaslt_contender(device: Device, case: graphs.Case, operands: Operands) -> Contender:
    """Of the first eight heuristics the fastest, by two rounds of about 20 ms each."""
    number = device.product(case.type, case.l, case.m, case.n, case.k)
    launch = device.launcher(number, operands.of(["a", "b", "d"]))
    tried = []
    for algorithm in range(device.algorithms(number)):
        device.choose(number, algorithm)
        c = Contender("cublaslt", launch, f"heuristic {algorithm}")
        try:
            launch(0)
            capture(device, c, len(operands.sets), estimate_us(case, operands))
            tried.append(c)
        except Failed as error:
            print(f"  cublaslt heuristic {algorithm}: {error}")
    for _ in range(2):
        for c in tried:
            one = device.replay_us(c.burst, 0, 1)
            count = max(1, round(1e4 / one))
            c.steady.append(device.replay_us(c.burst, count, count) / count / c.calls)
    best = min(tried, key=lambda c: min(c.steady))
    best.steady.clear()
    return best


def records_of(suite: str, case: graphs.Case, all_: list[Contender], operands: Operands, about: dict) -> list[dict]:
    def util(c: Contender) -> float:
        return 100 * case.flop / (FLOP_A_CLOCK[case.type] * about["sm_count"] * statistics.median(c.cycles))

    ours, records = all_[0], []
    for c in all_[1:]:
        for regime, a, b in (("steady", ours.us, c.us), ("short", ours.short_us, c.short_us)):
            r = {"suite": f"{suite}.{regime}", "case": case.name, "ours_us": a, "rival": c.name, "rival_us": b, "ratio": b / a}
            r |= {"plan": ours.note, "predicted_us": operands.about["predicted_us"], "rival_note": c.note}
            if regime == "steady":
                r |= {"util_percent": util(ours), "sm_mhz": statistics.median(ours.mhz), "rival_util_percent": util(c)}
                r |= {"rival_sm_mhz": statistics.median(c.mhz), "spread": ours.spread(), "rival_spread": c.spread()}
                r |= {"tb_s": operands.bytes / ours.us * 1e-6}
            records.append(r)
    for c in all_:
        ratios = "" if c is ours else f" ratio {c.us / ours.us:.3f} short {c.short_us / ours.short_us:.3f}"
        times = f"{c.us:8.1f} us short {c.short_us:8.1f} util {util(c):5.1f} {statistics.median(c.mhz):5.0f} MHz"
        print(f"{suite} {case.name} {c.name:14} {times}{ratios} {c.note}", flush=True)
    return records


def main() -> int:
    arguments = parser(__doc__ or "")
    arguments.add_argument("--only", default="", help="cases with one of these in `products TYPE MxNxK` or `flavors MxNxK NAME`")
    arguments.add_argument("--rivals", default="itself,cublaslt,plain,eager,triton,torch.compile", type=lambda s: s.split(","))
    help_ = "for torch.compile to get ready, at most; 0: each in its turn"
    arguments.add_argument("--compile-seconds", type=float, default=1e9, help=help_)
    options = arguments.parse_args()
    session = Session("measure", options)
    device, done = session.device, session.done()
    todo = [
        (suite, case, rivals)
        for suite, case, rivals in in_order(list(cases(options.only)), options.rivals)
        if any((suite, case.name, r) not in done for r in rivals)
    ]
    session.compile_ahead({case.graph for _, case, _ in todo})
    wanted = [case for _, case, rivals in todo if "torch.compile" in rivals]
    if wanted and options.compile_seconds > 0:
        ready = inductor.ahead(wanted, min(options.compile_seconds, options.seconds / 2))
        todo = [(s, c, [r for r in rivals if r != "torch.compile" or c.name in ready]) for s, c, rivals in todo]
        print(f"torch.compile had {len(ready)} of {len(wanted)} ready after {session.seconds():.1f} s", flush=True)

    def measured(suite: str, case: graphs.Case, rivals: list[str]) -> list[dict]:
        ours, about = device.plan(case.graph)
        operands = Operands(device, about)
        all_ = contenders_of(device, suite, case, operands, ours, options.plans, rivals)
        compare(device, all_, options.rounds)
        return records_of(suite, case, all_, operands, device.about)

    for suite, case, rivals in todo:
        session.measure(f"{suite} {case.name}", lambda todo=(suite, case, rivals): measured(*todo))
    print(f"measured after {session.seconds():.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
