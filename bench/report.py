#!/usr/bin/env python3
"""Puts the figures of bench/results/*.json into README.md and docs/bench.md; no number there is typed.

    bench/report.py                              rewrites the blocks between <!-- bench NAME [PART] --> and <!-- end bench -->
    bench/report.py --check                      says which blocks are not up to date; exit code 1 if one is not
    bench/report.py --record NAME -- COMMAND…    runs a program that prints JSON, adds machine, commit and command to it, writes
                                                 bench/results/NAME.json and rewrites the blocks

A result file is an object with `rival`, `machine`, `commit`, `command` and `rows`. A row has `m`, `n`, `k`, perhaps `case`, then
`ours_ms`, `rival_ms`, `ratio` (rival ÷ ours) with `low` and `high`, `noise`, the ratio of one side against itself, and perhaps
`at_most`, what the ratio could be.
A file of bench/gpu/measure.py has `records` of products and fused graphs beside their rivals; PART is products-TYPE, flavors, or
open, what is below its goal.
One of bench/device/quantise.cpp has the time of the plain product over that of each output.
Another file with `records` is of bench/device/gemm_probe.cpp: the fastest flavor of the kernel for each shape.
A file with `runs` is of bench/gpu_host and bench/host/python_call.py: host time of a call beside a bare launch.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import shlex
import subprocess
import sys

from machine import ROOT, commit, machine

RESULTS = ROOT / "bench/results"
PAGES = ("README.md", "docs/bench.md", "docs/sm90-log.md")
BLOCK = re.compile(r"(<!-- bench ([\w/-]+)(?: ([\w-]+))? -->\n).*?(<!-- end bench -->)", re.DOTALL)


TIMES = " \N{MULTIPLICATION SIGN} "


def row_of(row: dict, bounded: bool) -> str:
    extents = TIMES.join(f"{row[axis]:,}" for axis in ("m", "n", "k"))
    times = f"{row['ours_ms']:.2f} | {row['rival_ms']:.2f} | **{row['ratio']:.2f}** | {row['low']:.2f} to {row['high']:.2f}"
    bound = f"{row['at_most']:.2f} | " if bounded else ""
    return f"| {row.get('case', 'product')} | {extents} | {times} | {bound}{row['noise']:.2f} |"


def table_of(result: dict) -> str:
    """The figures with all that is needed to make them again."""
    there = result["machine"]
    axes = TIMES.join("MNK")
    bounded = all("at_most" in row for row in result["rows"])
    columns = ["", axes, "ours, ms", "rival, ms", "rival ÷ ours", "range", *(["at most"] if bounded else []), "against itself"]
    lines = [f"| {' | '.join(columns)} |".replace("|  |", "| |"), "|---|---|" + "--:|" * (len(columns) - 2)]
    lines += (row_of(row, bounded) for row in result["rows"])
    where = f"{there['processor']}, {there['processors']} processors, {there['system']}"
    return "\n".join([*lines, "", f"`{result['command']}` ({where}; rival: {result['rival']}; commit {result['commit']})"])


def probe_of(result: dict) -> str:
    """For each shape the flavor that is fastest in steady state; the rival's own records name it."""
    steady: dict[str, list[dict]] = {}
    short = {r["case"]: r for r in result["records"] if r["suite"] == "gemm_probe.short"}
    for record in result["records"]:
        shape, flavor = record["case"].split(" ", 1)
        if record["suite"] == "gemm_probe.steady" and flavor != "cublaslt":
            steady.setdefault(shape, []).append(record)
    axes = TIMES.join("MNK")
    lines = [f"| {axes} | kernel | ours, µs | cuBLASLt, µs | rival ÷ ours, steady | short run |", "|---|---|--:|--:|--:|--:|"]
    for shape, records in steady.items():
        best = max(records, key=lambda r: r["ratio"])
        after = f"{short[best['case']]['ratio']:.2f}" if best["case"] in short else ""
        times = f"{best['ours_us']:.1f} | {best['rival_us']:.1f} | **{best['ratio']:.2f}** | {after}"
        lines.append(f"| {shape.replace('x', TIMES)} | {best['case'].split(' ', 1)[1]} | {times} |")
    where = f"{result['device']}, driver {result['driver']}, NVRTC {result['nvrtc']}, cuBLASLt {result['cublaslt']}"
    return "\n".join([*lines, "", f"`{result['command']}` ({where}; commit {result['commit']})"])


def host_of(result: dict) -> str:
    """Host time of a call, each figure the median over the runs."""
    runs = result["runs"]

    def middle(values: list[float]) -> float:
        return sorted(values)[len(values) // 2]

    lines = ["| call | ns, median of bursts | ÷ bare launch |", "|---|--:|--:|"]
    for name in runs[0]["calls"]:
        calls = [run["calls"][name] for run in runs]
        lines.append(f"| {name} | {middle([c['median_ns'] for c in calls]):.0f} | {middle([c['ratio'] for c in calls]):.2f} |")
    for flavor, kinds in runs[0].get("fused", {}).items():
        for name in (kind for kind in kinds if not kind.startswith("bare")):
            calls = [run["fused"][flavor][name] for run in runs]
            figures = f"{middle([c['median_ns'] for c in calls]):.0f} | {middle([c['ratio'] for c in calls]):.2f}"
            lines.append(f"| {flavor}: {name} | {figures} |")
    for title in runs[0]["python"]:
        if not title.startswith("torch"):
            continue
        for name in runs[0]["python"][title]:
            calls = [run["python"][key][name] for run in runs for key in run["python"] if key.startswith("torch")]
            lines.append(
                f"| Python, {name} | {middle([c['ns'] for c in calls]):.0f} | {middle([c['x_bare'] for c in calls]):.2f} |"
            )
    start = ", ".join(
        f"{key[:-3].replace('_', ' ')} {middle([run['start'][key] for run in runs]):.1f} ms"
        for key in ("cold_compile_ms", "cached_load_ms", "cached_load_in_driver_ms")
        if key in runs[0]["start"]
    )
    where = f"{result['device']}, driver {result['driver']}, CUDA {result['cuda']}"
    return "\n".join(
        [
            *lines,
            "",
            f"Before the first call: {start}.",
            "",
            f"`{result['command']}` ({where}; commit {result['commit']}; {result['note']})",
        ]
    )


def operations_of(result: dict) -> str:
    """Operations beside our plain product and torch's steps. The last column is what a fusion that costs nothing would reach, or,
    of operands with scales, what torch's steps take of ours where the weights were decoded before."""
    scaled = any(row.get("operands", "bf16") != "bf16" for row in result["rows"])
    heads = ["operation", TIMES.join("MNK"), "ours, µs", "plain product ÷ ours", "torch ÷ ours"]
    heads += ["with weights decoded before"] if scaled else ["at most"]
    lines = [f"| {' | '.join(heads)} |", "|---|---|--:|--:|--:|--:|"]
    for row in result["rows"]:
        shape, kind = TIMES.join(str(row[extent]) for extent in "mnk"), f"{row['operands']}, " if scaled else ""
        torch_ms = row["torch_ms"]
        last = row.get("torch_ahead_ms", torch_ms) / row["ours_ms"] if scaled else torch_ms / row["plain_ms"]
        ratios = f"**{row['plain_over_ours']:.2f}** | **{row['torch_over_ours']:.2f}** | {last:.2f}"
        lines.append(f"| {kind}{row['operation']} | {shape} | {row['ours_ms'] * 1e3:.1f} | {ratios} |")
    refused = "".join(f" Not served: {name} ({why})." for name, why in result.get("refused", {}).items())
    host = "; ".join(f"{name} {us:.1f}" for name, us in result["host_us"].items())
    where = f"`{result['command']}` ({result['device']}; commit {result['commit']})"
    return "\n".join([*lines, "", f"Host time of a call of 64 rows, µs: {host}.{refused}", "", where])


def cases_of(result: dict, part: str) -> dict[str, dict[tuple[str, str], dict]]:
    """By case the records of a part, by regime and rival: {"4096x4096x4096": {("steady", "cublaslt"): {...}}}."""
    suite, _, kind = part.partition("-")
    cases: dict[str, dict[tuple[str, str], dict]] = {}
    for record in result["records"]:
        name, regime = record["suite"].split(".")
        if name != suite or (kind and not record["case"].startswith(f"{kind} ")):
            continue
        cases.setdefault(record["case"].removeprefix(f"{kind} "), {})[regime, record["rival"]] = record
    return cases


def sorted_cases(cases: dict) -> list[str]:
    """By the batch, then by the number of operations and the flavor's name."""

    def key(case: str) -> tuple:
        extents = [int(e) for e in case.split()[0].split("x")]
        return len(extents), extents[-3], math.prod(extents), case

    return sorted(cases, key=key)


def geomean(ratios: list[float]) -> float:
    return math.exp(sum(math.log(r) for r in ratios) / len(ratios))


def kernels_of(result: dict, part: str) -> str:
    """Ratios of a part to every rival that it was measured with; the last line has their geometric means. At most: that to
    torch.compile if all behind the product cost us nothing."""
    cases = cases_of(result, part)
    if not cases:
        return f"*Not measured yet: the run has no {part}.*"
    rivals = [
        r for r in ("cublaslt", "plain", "eager", "torch.compile", "triton") if any(("steady", r) in c for c in cases.values())
    ]
    twice = ("cublaslt", "torch.compile")  # short runs too
    columns = [(regime, rival) for rival in rivals for regime in ("steady", "short") if regime == "steady" or rival in twice]
    titles = {"cublaslt": "cuBLASLt", "plain": "our plain product", "eager": "torch eager", "triton": "Triton"}
    heads = [f"{titles.get(rival, rival)}{', short run' if regime == 'short' else ''}" for regime, rival in columns]
    bounded = {"plain", "torch.compile"} <= set(rivals)
    more = (["TB/s"] if part == "flavors" else []) + (["at most"] if bounded else [])
    lines = [f"| {' | '.join(['case', 'µs', 'util %', 'SM MHz', *heads, *more, 'itself', 'kernel'])} |"]
    lines.append("|---|" + "--:|" * (4 + len(columns) + len(more)) + "---|")
    for name in sorted_cases(cases):
        records = cases[name]
        ours = next(r for (regime, _), r in records.items() if regime == "steady")
        ratios = [f"**{records[c]['ratio']:.2f}**" if c in records else "" for c in columns]
        again = records.get(("steady", "itself"))
        shape, _, flavor = name.partition(" ")
        cells = [f"{shape.replace('x', TIMES)} {flavor}".strip(), f"{ours['ours_us']:.1f}", f"{ours['util_percent']:.0f}"]
        cells += [f"{ours['sm_mhz']:.0f}", *ratios, *([f"{ours['tb_s']:.1f}"] if part == "flavors" else [])]
        if bounded:
            both = [records[c]["rival_us"] for c in (("steady", "torch.compile"), ("steady", "plain")) if c in records]
            cells.append(f"{both[0] / both[1]:.2f}" if len(both) == 2 else "")
        cells += [f"{again['ratio']:.2f}" if again else "", tile_of(ours["plan"])]
        lines.append(f"| {' | '.join(cells)} |")
    means = [geomean([c[column]["ratio"] for c in cases.values() if column in c]) for column in columns]
    lines.append(f"| geometric mean | | | | {' | '.join(f'**{m:.2f}**' for m in means)} |{' |' * len(more)} | |")
    return "\n".join([*lines, "", where_of(result)])


def grouped_of(result: dict) -> str:
    """Grouped products beside their rivals. At most: torch's time ÷ that in which a kernel reads as many bytes as a call
    moves, where that is most of our time."""
    rivals = {"torch": "torch", "triton": "Triton", "loop of torch.mm": "loop of cuBLASLt", "balanced": "balanced"}
    rivals |= {"dense": "dense", "bf16": "our bf16", "tensors": "in a tensor"}
    rivals |= {name: name for name in ("torch, gathered", "torch, added", "product alone")}
    cases: dict[str, dict[tuple[str, str], dict]] = {}
    for r in result["records"]:
        rival = "torch" if r["rival"].startswith("torch.") else r["rival"]
        cases.setdefault(r["case"], {})[r["suite"].split(".")[1], rival] = r
    columns = [(regime, rival) for rival in rivals for regime in ("steady", "short") if regime == "steady" or rival == "torch"]
    columns = [c for c in columns if any(c in records for records in cases.values())]
    heads = [f"{rivals[rival]} ÷ ours{', short run' if regime == 'short' else ''}" for regime, rival in columns]
    lines = [f"| {' | '.join(['case', 'µs', 'TB/s', *heads, 'at most', 'kernel'])} |"]
    lines.append("|---|" + "--:|" * (3 + len(heads)) + "---|")
    for name, records in cases.items():
        ours = next(r for (regime, _), r in records.items() if regime == "steady")
        cells = [name, f"{ours['ours_us']:.0f}", f"{ours['tb_s']:.1f}" if "tb_s" in ours else ""]
        cells += [f"**{records[c]['ratio']:.2f}**" if c in records else "" for c in columns]
        read, torch = (records.get(("steady", rival)) for rival in ("read", "torch"))
        cells.append(f"{torch['rival_us'] / read['rival_us']:.2f}" if read and torch and read["ratio"] > 0.75 else "")
        lines.append(f"| {' | '.join([*cells, tile_of(ours['plan'])])} |")
    return "\n".join([*lines, "", where_of(result)])


def where_of(result: dict) -> str:
    there = f"{result['device']}, driver {result['driver']}, NVRTC {result['nvrtc']}, cuBLASLt {result['cublaslt']}"
    return f"`{result['command']}` ({there}, torch {result['torch']}; commit {result['commit']})"


def goal_of(record: dict) -> float | None:
    """What a ratio in steady state shall be at least; nothing where there is no goal."""
    suite, rival = record["suite"], record["rival"]
    if suite == "flavors.steady":
        return {"plain": 0.95, "torch.compile": 1.15}.get(rival)
    if suite != "products.steady" or rival != "cublaslt":
        return None
    extents = [int(e) for e in record["case"].split()[-1].split("x")]
    if len(extents) == 3 and extents[0] <= 128:
        return 1.30 if extents[0] <= 32 else 1.10
    return 0.97


def open_of(result: dict) -> str:
    """The records below their goals, those that lack most first, with what the profile of both sides says."""
    short = [(goal, r) for r in result["records"] if (goal := goal_of(r)) and r["ratio"] < goal]
    short.sort(key=lambda item: item[1]["ratio"] / item[0])
    heads = ["case", "rival", "ratio", "goal", "util %", "its util %", "SM MHz", "its SM MHz", "TB/s", "kernel"]
    lines = [f"| {' | '.join(heads)} |", "|---|---|" + "--:|" * 7 + "---|"]
    for goal, r in short:
        case = re.sub(r"(?<=\d)x(?=\d)", TIMES, r["case"])
        cells = [case, r["rival"], f"**{r['ratio']:.2f}**", f"{goal:.2f}", f"{r['util_percent']:.0f}"]
        cells += [f"{r['rival_util_percent']:.0f}", f"{r['sm_mhz']:.0f}", f"{r['rival_sm_mhz']:.0f}", f"{r['tb_s']:.1f}"]
        lines.append(f"| {' | '.join([*cells, tile_of(r['plan'])])} |")
    return "\n".join([*lines, "", where_of(result)])


def narrow_of(result: dict) -> str:
    """The first plan of each case beside cuBLASLt's product, in bf16 where ours has scales of blocks, and beside our own then."""
    heads = ["case", "µs", "our bf16, µs", "our bf16 ÷ ours", "cuBLASLt ÷ ours", "SM MHz", "kernel"]
    lines = [f"| {' | '.join(heads)} |", "|---|" + "--:|" * 5 + "---|"]
    first = {r["case"]: r for r in reversed(result["records"])}
    for case, r in reversed(first.items()):
        us, plain = r["ours_us"], r.get("bf16_us")
        cells = [re.sub(r"(?<=\d)x(?=\d)", TIMES, case), f"{us:.1f}"]
        cells += [f"{plain:.1f}", f"**{plain / us:.2f}**"] if plain else ["", ""]
        cells += [f"**{r['ratio']:.2f}**", f"{r['sm_mhz']:.0f}", tile_of(r["plan"])]
        lines.append(f"| {' | '.join(cells)} |")
    there = f"{result['device']}, driver {result['driver']}, cuBLASLt {result['cublaslt']}"
    return "\n".join([*lines, "", f"`{result['command']}` ({there}; commit {result['commit']})"])


def tile_of(plan: str) -> str:
    """sm90[CONSUMERS=2,PINGPONG=1,…,TILE_M=128,TILE_N=192] in a few words."""
    knobs = dict(k.split("=") for k in plan[plan.index("[") + 1 : -1].split(","))
    words = [f"{knobs.pop('TILE_M')}x{knobs.pop('TILE_N')}"]
    for knob, word in (("PINGPONG", "ping-pong"), ("EXCHANGED", "exchanged")):
        words += [word] if knobs.pop(knob, "0") == "1" else []
    knobs.pop("CONSUMERS", None)
    knobs.pop("PROGRAMMATIC", None)
    words += [f"{name.lower().replace('_', ' ')} {value}" for name, value in knobs.items() if value not in ("0", "1")]
    return ", ".join(words)


def quantised_of(result: dict) -> str:
    """The plain product's time over ours, of each output a column."""
    rows: dict[tuple[str, str], dict[str, dict]] = {}
    for record in result["records"]:
        operands, extent, output = record["case"].split(" ", 2)
        rows.setdefault((operands, extent), {})[output] = record
    outputs = list(dict.fromkeys(output for row in rows.values() for output in row))
    lines = [f"| operands, extent | plain, µs | {' | '.join(outputs)} |", f"|---|{'--:|' * (1 + len(outputs))}"]
    for (operands, extent), row in rows.items():
        cells = [f"**{row[output]['ratio']:.2f}**" if output in row else "" for output in outputs]
        plain = next(iter(row.values()))["rival_us"]
        lines.append(f"| {operands} {extent}\N{SUPERSCRIPT THREE} | {plain:.1f} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", f"`{result['command']}` ({result['device']}; commit {result['commit']})"])


def compile_of(result: dict) -> str:
    """From a graph to a plan that can run, each figure the median over the rounds."""
    lines = ["| 4096\N{SUPERSCRIPT THREE} | compiled, ms | from the cache, ms | plan |", "|---|--:|--:|---|"]
    for record in result["records"]:
        what = record["case"].removeprefix("4096 ")
        lines.append(f"| {what} | {record['cold_ms']:.0f} | {record['cached_ms']:.1f} | {tile_of(record['plan'])} |")
    return "\n".join([*lines, "", f"`{result['command']}` ({result['device']}; commit {result['commit']})"])


def block_of(name: str, part: str | None) -> str:
    path = RESULTS / f"{name}.json"
    if not path.is_file():
        return f"*Not measured yet: there is no bench/results/{name}.json.*"
    result = json.loads(path.read_text(encoding="utf-8"))
    if part:
        tables = {"open": open_of, "grouped": grouped_of, "narrow": narrow_of}
        return tables[part](result) if part in tables else kernels_of(result, part)
    if "runs" in result:
        return host_of(result)
    if "host_us" in result:
        return operations_of(result)
    if "records" in result and result["records"][0]["suite"].startswith("gpu_quantise"):
        return quantised_of(result)
    if "records" in result and result["records"][0]["suite"] == "gpu_compile":
        return compile_of(result)
    return probe_of(result) if "records" in result else table_of(result)


def rewritten(text: str) -> str:
    return BLOCK.sub(lambda match: f"{match[1]}{block_of(match[2], match[3])}\n{match[4]}", text)


def record(name: str, command: list[str]) -> None:
    result = json.loads(subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout)
    result |= {"machine": machine(), "commit": commit(), "command": shlex.join(command)}
    write(name, result)


def write(name: str, result: dict) -> None:
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--record", metavar="NAME")
    parser.add_argument("command", nargs="*")
    options = parser.parse_args()
    if options.record:
        record(options.record, options.command)
    stale = 0
    for page in PAGES:
        path = ROOT / page
        old = path.read_text(encoding="utf-8")
        new = rewritten(old)
        if old == new:
            continue
        if options.check:
            print(f"{page}: its figures are not those of bench/results; bench/report.py rewrites them")
            stale = 1
        else:
            path.write_text(new, encoding="utf-8")
            print(f"{page}: rewritten")
    return stale


if __name__ == "__main__":
    sys.exit(main())
