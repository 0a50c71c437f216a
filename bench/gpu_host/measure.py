"""Host time of calls on a GPU host, C++ and Python, as one file of bench/results.

    measure.py BUILD_FOLDER FILE [COMMIT]

A run is verglas_bench_gpu_host, then bench/host/python_call.py with the bare launch that it measured.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RUNS = 5
NOTE = (
    "a run is a process: least and median of 51 bursts of 64 calls from a drained queue, and the median quotient to the bare "
    "burst of the same turn; x bare of Python is the least over the bare median of the same run; `ratios`: medians over runs"
)


def device() -> dict[str, str]:
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    name, driver = subprocess.run(query, check=True, capture_output=True, text=True).stdout.splitlines()[0].split(", ")
    head = subprocess.run(["nvidia-smi"], check=True, capture_output=True, text=True).stdout
    cuda = head.split("CUDA Version:", 1)[-1].split()[0] if "CUDA Version:" in head else "unknown"
    return {"device": name, "driver": driver, "cuda": cuda}


def one_run(program: Path) -> dict:
    done = subprocess.run([program], stdout=subprocess.PIPE, text=True, check=False)
    text = done.stdout
    print(text, end="", flush=True)
    if done.returncode != 0:
        sys.exit(f"{program.name} failed with status {done.returncode}")
    run = json.loads(text.splitlines()[-1])
    bare = run["calls"]["bare cuLaunchKernelEx"]["median_ns"]
    core = ["taskset", "-c", str(max(os.sched_getaffinity(0)))] if shutil.which("taskset") else []
    with tempfile.TemporaryDirectory() as folder:
        figures = Path(folder, "python.json")
        script = ROOT / "bench/host/python_call.py"
        subprocess.run([*core, sys.executable, script, "--bare", str(bare), "--json", figures], check=True)
        run["python"] = json.loads(figures.read_text(encoding="utf-8"))
    return run


def ratios(runs: list[dict]) -> dict[str, float]:
    """Of each kind of call the median over the runs."""
    found: dict[str, list[float]] = {}
    for run in runs:
        for flavor, calls in {"plain": run["calls"], **run.get("fused", {})}.items():
            for name, figures in calls.items():
                found.setdefault(f"{flavor}: {name}", []).append(figures["ratio"])
        for title, calls in run["python"].items():
            for name, figures in calls.items():
                if "x_bare" in figures:
                    found.setdefault(f"{title.split(',')[0]}: {name}", []).append(figures["x_bare"])
    return {name: round(statistics.median(values), 3) for name, values in found.items()}


def main() -> int:
    build, file, commit = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else "unknown"
    os.environ["PYTHONPATH"] = os.pathsep.join([str((build / "python").resolve()), os.environ.get("PYTHONPATH", "")]).rstrip(":")
    result = {"benchmark": "bench/gpu_host/call, bench/host/python_call.py"} | device()
    result |= {"commit": commit, "command": "scripts/gpu-host.sh bench", "note": NOTE, "runs": []}
    for _ in range(RUNS):
        result["runs"].append(one_run((build / "bench/verglas_bench_gpu_host").resolve()))
        result["ratios"] = ratios(result["runs"])
        file.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")  # what there is, should the next be cut
    return 0


if __name__ == "__main__":
    sys.exit(main())
