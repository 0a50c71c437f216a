#!/usr/bin/env python3
"""Fused graphs in fp32 against the same in NumPy: one matmul, then one array operation after another.

    bench/cpu/numpy_fused.py [--rounds N] [--output FILE.json]

NumPy's erf is the vectorised formula of examples/minilm/unfused.py. Each case is checked before it is timed. The result goes to
bench/results/cpu_numpy.json, with machine, commit and command; with --output - to standard output.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import verglas

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "examples")]

from machine import commit, machine  # noqa: E402
from minilm.unfused import gelu  # noqa: E402

# M, N, K: little depth (adapters of rank 16 and 32, the scores of a head of 64), then the encoder of examples/, then depth.
SIZES = ((4096, 1024, 16), (4096, 4096, 32), (2048, 2048, 64), (240, 1536, 384), (1024, 1536, 384), (1024, 4096, 1024))
BATCH = 5
WARM_S = 0.03  # a processor that slept takes milliseconds to be back
REST_S = 0.13  # OpenBLAS's threads wait in a loop for 2^28 ticks of the clock after their last work

Pair = tuple[Callable[[], tuple], Callable[[], tuple]]  # ours and NumPy; each answers its outputs


def graph_of(m: int, n: int, k: int, weights: int = 1):
    """A graph with x (M, K) and weights (K, N) that lie as (N, K)."""
    graph = verglas.Graph(io_data_type="fp32")
    x = graph.tensor(name="x", dim=[m, k], stride=[k, 1])
    products = []
    for i in range(weights):
        products.append(graph.matmul(x, graph.tensor(name=f"w{i}", dim=[k, n], stride=[1, k])))
    return graph, products


def bias_gelu(random: np.random.Generator, m: int, n: int, k: int) -> Pair:
    x, w, bias = normal(random, m, k), normal(random, n, k) / np.float32(k**0.5), normal(random, n)
    graph, (product,) = graph_of(m, n, k)
    b = graph.tensor(name="bias", dim=[1, n], stride=[n, 1])
    graph.gelu(graph.bias(product, b)).set_name("y").set_output(True)
    graph.build()
    y = np.empty((m, n), np.float32)
    pack = {"x": x, "w0": w.T, "bias": bias, "y": y}

    def ours():
        graph.execute(pack)
        return (y,)

    return ours, lambda: (gelu(np.matmul(x, w.T) + bias),)


def swiglu(random: np.random.Generator, m: int, n: int, k: int) -> Pair:
    x = normal(random, m, k)
    gate, up = (normal(random, n, k) / np.float32(k**0.5) for _ in range(2))
    graph, (g, u) = graph_of(m, n, k, weights=2)
    graph.mul(graph.swish(g), u).set_name("y").set_output(True)
    graph.build()
    y = np.empty((m, n), np.float32)
    pack = {"x": x, "w0": gate.T, "w1": up.T, "y": y}

    def ours():
        graph.execute(pack)
        return (y,)

    def unfused():
        g, u = np.matmul(x, gate.T), np.matmul(x, up.T)
        return (g / (1 + np.exp(-g)) * u,)

    return ours, unfused


def residual_row_sum(random: np.random.Generator, m: int, n: int, k: int) -> Pair:
    x, w, residual = normal(random, m, k), normal(random, n, k) / np.float32(k**0.5), normal(random, m, n)
    graph, (product,) = graph_of(m, n, k)
    r = graph.tensor(name="residual", dim=[m, n], stride=[n, 1])
    total = graph.add(product, r).set_name("y").set_output(True)
    rows = graph.reduction(total, mode=verglas.reduction_mode.ADD).set_name("rows")
    rows.set_dim([m, 1]).set_output(True)
    graph.build()
    y, sums = np.empty((m, n), np.float32), np.empty((m, 1), np.float32)
    pack = {"x": x, "w0": w.T, "residual": residual, "y": y, "rows": sums}

    def ours():
        graph.execute(pack)
        return y, sums

    def unfused():
        z = np.matmul(x, w.T) + residual
        return z, z.sum(axis=1, keepdims=True)

    return ours, unfused


def product(random: np.random.Generator, m: int, n: int, k: int) -> Pair:
    x, w = normal(random, m, k), normal(random, n, k) / np.float32(k**0.5)
    graph, (plain,) = graph_of(m, n, k)
    plain.set_name("y").set_output(True)
    graph.build()
    y, z = np.empty((m, n), np.float32), np.empty((m, n), np.float32)
    pack = {"x": x, "w0": w.T, "y": y}

    def ours():
        graph.execute(pack)
        return (y,)

    return ours, lambda: (np.matmul(x, w.T, out=z),)


CASES = {"bias+gelu": bias_gelu, "swiglu": swiglu, "residual+row-sum": residual_row_sum}

PRODUCTS = {"bias+gelu": 1, "swiglu": 2, "residual+row-sum": 1}


def normal(random: np.random.Generator, *shape: int) -> np.ndarray:
    return random.standard_normal(shape, np.float32)


def time_ms(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return (time.perf_counter() - start) * 1e3


def side_by_side(ours: Callable, rival: Callable, rounds: int) -> dict[str, float]:
    """Batches in turn, the order swapped from one to the next; the first round is thrown away.

    Before a batch a rest, since the other side's threads that wait in a loop would take a processor; then calls that do not
    count."""
    times: tuple[list[float], list[float]] = ([], [])
    ratios = []
    for index in range(rounds + 1):
        batch: dict[int, list[float]] = {}
        for which in (0, 1) if index % 2 == 0 else (1, 0):
            time.sleep(REST_S)
            start = time.perf_counter()
            (ours, rival)[which]()
            while time.perf_counter() < start + WARM_S:
                (ours, rival)[which]()
            batch[which] = [time_ms((ours, rival)[which]) for _ in range(BATCH)]
        if index == 0:
            continue
        for which in (0, 1):
            times[which].extend(batch[which])
        ratios.append(statistics.median(batch[1]) / statistics.median(batch[0]))
    ours_ms, rival_ms = map(statistics.median, times)
    return {"ours_ms": ours_ms, "rival_ms": rival_ms, "ratio": rival_ms / ours_ms, "low": min(ratios), "high": max(ratios)}


def product_ms(size: tuple[int, int, int], rounds: int) -> float:
    """The product alone, into memory that is there, by the faster of the two."""
    alone = side_by_side(*product(np.random.default_rng(7), *size), rounds)
    return min(alone["ours_ms"], alone["rival_ms"])


def measure(case: str, size: tuple[int, int, int], rounds: int) -> dict[str, object]:
    ours, rival = CASES[case](np.random.default_rng(7), *size)
    for got, want in zip(ours(), rival(), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3)
    noise = side_by_side(ours, ours, max(1, rounds // 3))["ratio"]  # ours against ours goes first
    m, n, k = size
    row = {"case": case, "m": m, "n": n, "k": k, **side_by_side(ours, rival, rounds), "noise": noise}
    # What the ratio would be if all that follows the products cost us nothing.
    row["at_most"] = row["rival_ms"] / (PRODUCTS[case] * product_ms(size, rounds))
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12, help="batches of five for each side, after one that is thrown away")
    parser.add_argument("--output", default=str(ROOT / "bench/results/cpu_numpy.json"))
    options = parser.parse_args()
    rows = []
    for case in CASES:
        for size in SIZES:
            rows.append(measure(case, size, options.rounds))
            line = "{case} {m} {n} {k}: {ratio:.2f} ({low:.2f} … {high:.2f}, at most {at_most:.2f}, against itself {noise:.2f})"
            print(line.format(**rows[-1]), file=sys.stderr)
    result = {
        "benchmark": "bench/cpu/numpy_fused",
        "rival": f"NumPy {np.__version__}",
        "rounds": options.rounds,
        "machine": machine(),
        "commit": commit(),
        "command": shlex.join(["python", "bench/cpu/numpy_fused.py", "--rounds", str(options.rounds)]),
        "rows": rows,
    }
    text = json.dumps(result, indent=1, ensure_ascii=False) + "\n"
    if options.output == "-":
        print(text, end="")
    else:
        Path(options.output).parent.mkdir(parents=True, exist_ok=True)
        Path(options.output).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
