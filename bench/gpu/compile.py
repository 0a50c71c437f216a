#!/usr/bin/env python3
"""How long a plan takes from its graph until it can run, without a cache and with one.

compile.py FILE [--rounds N] [--commit TEXT]; the package is found by PYTHONPATH, and a GPU is needed. Each round is a process of
its own with an empty cache: a small product first, which finds the libraries and makes the context, then each graph twice. The
second time its kernel comes from the cache on disk. Verglas's own plans alone: VERGLAS_CUBLASLT is off."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def built(text: str) -> tuple[float, object]:
    """Milliseconds and the graph."""
    import verglas

    start = time.perf_counter()
    graph = verglas.Graph.from_json(text, device="cuda:0")
    graph.build()
    return (time.perf_counter() - start) * 1e3, graph


def once(graphs: dict[str, str]) -> dict:
    _, first = built(graphs.pop("first"))  # kept: the context lives as long as somebody has it
    result = {}
    for name, text in graphs.items():
        cold, graph = built(text)
        plan = graph.describe().rpartition("\N{RIGHTWARDS ARROW} ")[2]
        del graph  # and its kernel
        result[name] = {"cold_ms": cold, "cached_ms": built(text)[0], "plan": plan}
    del first
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--commit", default="unknown")
    options = parser.parse_args()
    import torch
    from graphs import flavor, product

    names = json.loads((Path(__file__).parent / "cases.json").read_text(encoding="utf-8"))["flavors"]["names"]
    graphs = {"first": product("fp16", 1, 128, 128, 128).graph, "plain": product("bf16", 1, 4096, 4096, 4096).graph}
    graphs |= {name: flavor(name, 4096, 4096, 4096).graph for name in names}
    rounds = []
    for _ in range(options.rounds):
        with tempfile.TemporaryDirectory() as cache:
            environment = os.environ | {"VERGLAS_CACHE": cache, "VERGLAS_CUBLASLT": "off", "VERGLAS_TUNING": "off"}
            done = subprocess.run([sys.executable, __file__, "--once"], input=json.dumps(graphs), check=True, capture_output=True,
                                  text=True, env=environment)  # fmt: skip
            rounds.append(json.loads(done.stdout))
    records = []
    for name in graphs:
        if name == "first":
            continue
        record = {"suite": "gpu_compile", "case": f"4096 {name}", "plan": rounds[0][name]["plan"]}
        for key in ("cold_ms", "cached_ms"):
            record[key] = statistics.median(r[name][key] for r in rounds)
        records.append(record)
        print(f"{name:24} {record['cold_ms']:8.0f} {record['cached_ms']:8.2f} ms  {record['plan']}")
    result = {"benchmark": "bench/gpu/compile", "device": torch.cuda.get_device_name(0), "commit": options.commit,
              "command": "bench/gpu/compile.py FILE", "records": records}  # fmt: skip
    options.file.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:] == ["--once"]:
        print(json.dumps(once(json.load(sys.stdin))))
    else:
        main()
