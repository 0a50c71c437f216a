"""One run of a benchmark: its file, its clock, and its cases one after the other."""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from device import Device, Failed


def parser(doc: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path)
    parser.add_argument("file", type=Path)
    parser.add_argument("--seconds", type=float, default=float(os.environ.get("VERGLAS_SECONDS", "1e9")))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--plans", type=int, default=1, help="how many of our plans, best first, are measured")
    parser.add_argument("--commit", default="unknown")
    return parser


class Session:
    """What the file holds already, of the same commit, stays."""

    def __init__(self, name: str, options: argparse.Namespace) -> None:
        self.start = time.monotonic()
        self.options = options
        self.device = Device(options.build / "bench/libverglas_bench_gpu_contenders.so")
        self.result: dict = {"benchmark": f"bench/gpu/{name}"} | self.device.about
        self.result |= {"torch": torch.__version__, "commit": options.commit}
        self.result |= {"command": f"bench/gpu/{name}.py BUILD_FOLDER FILE", "records": [], "declined": {}}
        self.result.pop("stream")
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        self.result["driver"] = subprocess.run(query, check=True, capture_output=True, text=True).stdout.split()[0]
        if options.file.is_file() and (old := json.loads(options.file.read_text(encoding="utf-8")))["commit"] == options.commit:
            self.result |= {"records": old["records"], "declined": old["declined"]}
        self.longest = 0.0

    def done(self) -> set[tuple[str, str, str]]:
        """Part, case and rival of what is measured."""
        return {(r["suite"].split(".")[0], r["case"], r["rival"]) for r in self.result["records"]}

    def seconds(self) -> float:
        return time.monotonic() - self.start

    def compile_ahead(self, graphs: Iterable[str]) -> None:
        """Into the cache, all at once."""

        def ahead(graph: str) -> None:
            for index in range(self.options.plans):
                try:
                    self.device.plan(graph, index)
                except Failed:
                    return

        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(ahead, graphs))
        self.device.clear()
        print(f"compiled after {self.seconds():.1f} s", flush=True)

    def heat(self) -> None:
        """A device just given work has a lower clock for some seconds: the first contender was 5% slower than itself."""
        a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
        until = time.monotonic() + 3
        while time.monotonic() < until:
            for _ in range(20):
                torch.matmul(a, a)
            torch.cuda.synchronize()

    def measure(self, name: str, records_of: Callable[[], list[dict]]) -> None:
        """Records of a case, in place of older ones, if one like the longest so far fits into the time."""
        before = time.monotonic()
        if self.seconds() + self.longest > self.options.seconds:
            print(f"{name}: no time left")
            return
        if self.longest == 0.0:
            self.heat()
        try:
            fresh = records_of()
            new = {(r["suite"], r["case"], r["rival"]) for r in fresh}
            old = [r for r in self.result["records"] if (r["suite"], r["case"], r["rival"]) not in new]
            self.result["records"] = old + [{k: round(v, 4) if isinstance(v, float) else v for k, v in r.items()} for r in fresh]
        except Failed as error:
            self.result["declined"][name] = str(error).splitlines()[0]
            print(f"{name}: {error}", flush=True)
        self.device.clear()
        torch.cuda.empty_cache()
        self.longest = max(self.longest, time.monotonic() - before)
        self.options.file.write_text(json.dumps(self.result, indent=1) + "\n", encoding="utf-8")
