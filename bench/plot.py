#!/usr/bin/env python3
"""Draws the tables of a result file of bench/gpu/measure.py: docs/img/PART.svg for each part, a point for each case and rival.

    bench/plot.py bench/results/gpu/NAME.json [PART[:FILE]]...     needs matplotlib

PARTs alone where some are named, as FILE.svg where that is.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
from machine import ROOT
from report import cases_of, geomean, sorted_cases

NAMES = {
    "cublaslt": "cuBLASLt, best of 8",
    "plain": "our plain product",
    "eager": "torch eager",
    "torch.compile": "torch.compile",
    "triton": "Triton",
}
MARKS = dict(zip(NAMES, "osDv^", strict=True))


def draw(result: dict, part: str, file: Path) -> None:
    cases = cases_of(result, part)
    names = sorted_cases(cases)
    figure, axes = plt.subplots(figsize=(8, 1.2 + 0.32 * len(names)))
    for rival, label in NAMES.items():
        points = [(cases[n]["steady", rival]["ratio"], i) for i, n in enumerate(names) if ("steady", rival) in cases[n]]
        if points:
            x, y = zip(*points, strict=True)
            axes.plot(x, y, MARKS[rival], label=f"{label}: {geomean(list(x)):.2f}", alpha=0.85)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_yticks(range(len(names)), [n.replace("x", "\N{MULTIPLICATION SIGN}", n.split()[0].count("x")) for n in names])
    axes.invert_yaxis()
    axes.set_xlabel("rival's time \N{DIVISION SIGN} ours, steady state; right of the line we are ahead")
    axes.set_title(f"{part.replace('-', ' in ')}, {result['device']}, commit {result['commit']}", fontsize=10)
    axes.grid(axis="x", alpha=0.3)
    axes.legend(fontsize=8, title="geometric mean", title_fontsize=8)
    figure.tight_layout()
    figure.savefig(file, metadata={"Date": None})
    plt.close(figure)
    print(file.relative_to(ROOT))


def main() -> int:
    plt.rcParams["svg.hashsalt"] = "verglas"  # the same figures give the same file
    plt.rcParams["svg.fonttype"] = "none"
    result = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    kinds = {record["case"].split()[0] for record in result["records"] if record["suite"].startswith("products.")}
    parts = [f"products-{kind}" for kind in sorted(kinds)]
    if any(record["suite"].startswith("flavors.") for record in result["records"]):
        parts.append("flavors")
    named = dict((*argument.split(":"), argument)[:2] for argument in sys.argv[2:])
    for part in parts:
        if not named or part in named:
            draw(result, part, ROOT / f"docs/img/{named.get(part, part)}.svg")
    return 0


if __name__ == "__main__":
    sys.exit(main())
