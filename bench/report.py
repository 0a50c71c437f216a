#!/usr/bin/env python3
"""Puts the figures of bench/results/*.json into README.md and docs/bench.md; no number there is typed.

    bench/report.py                              rewrites the blocks between <!-- bench NAME --> and <!-- end bench -->
    bench/report.py --check                      says which blocks are not up to date; exit code 1 if one is not
    bench/report.py --record NAME -- COMMAND…    runs a program that prints JSON, adds machine, commit and command to it, writes
                                                 bench/results/NAME.json and rewrites the blocks

A result file is an object with `rival`, `machine`, `commit`, `command` and `rows`. A row has `m`, `n`, `k`, perhaps `case`, then
`ours_ms`, `rival_ms`, `ratio` (rival ÷ ours) with `low` and `high`, `noise`, the ratio of one side against itself, and perhaps
`at_most`, what the ratio could be.
A file with `records` is of bench/device/gemm_probe.cpp: the fastest flavor of the kernel for each shape.
A file with `runs` is of bench/gpu_host and bench/host/python_call.py: host time of a call beside a bare launch.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import subprocess
import sys

from machine import ROOT, commit, machine

RESULTS = ROOT / "bench/results"
PAGES = ("README.md", "docs/bench.md")
BLOCK = re.compile(r"(<!-- bench ([\w-]+) -->\n).*?(<!-- end bench -->)", re.DOTALL)


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
        for key in ("cold_compile_ms", "cached_load_ms")
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


def block_of(name: str) -> str:
    path = RESULTS / f"{name}.json"
    if not path.is_file():
        return f"*Not measured yet: there is no bench/results/{name}.json.*"
    result = json.loads(path.read_text(encoding="utf-8"))
    if "runs" in result:
        return host_of(result)
    return probe_of(result) if "records" in result else table_of(result)


def rewritten(text: str) -> str:
    return BLOCK.sub(lambda match: f"{match[1]}{block_of(match[2])}\n{match[3]}", text)


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
