"""Nanoseconds of one Python call on tiny extents: by dict, by sequence, plan(...), and a bound call; on a GPU operations too. The
least of many bursts.

    python_call.py [--bare NS] [--json FILE]

On the host the CPU engine runs, whose product is in the figures; NumPy's own product stands beside. Where torch sees a GPU,
torch tensors go to the engine for it, beside torch.mm(out=); --bare is what verglas_bench_gpu_host said a bare launch costs.
--json writes the figures as bench/report.py reads them.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import verglas

BURSTS, CALLS = 200, 64


def nanoseconds(call, before=lambda: None):
    least = float("inf")
    for _ in range(BURSTS):
        before()
        start = time.perf_counter_ns()
        for _ in range(CALLS):
            call()
        least = min(least, (time.perf_counter_ns() - start) / CALLS)
    return least


def plan_of(m, n, k, data_type, device):
    graph = verglas.Graph(io_data_type=data_type, device=device)
    a = graph.tensor(name="a", dim=(1, m, k), stride=(m * k, k, 1))
    b = graph.tensor(name="b", dim=(1, k, n), stride=(k * n, 1, k))
    graph.matmul(a, b).set_output(True).set_name("d")
    graph.build()
    return graph.plan


def table(figures, title, plan, a, b, d, rival, rival_name, bare=None, before=lambda: None, more=()):
    bound = plan.bind(a, b, d)
    by_name = {"a": a, "b": b, "d": d}
    print(title, plan.name)
    answer = figures[f"{title} {plan.name}"] = {}
    rows = {
        "execute(dict)": lambda: plan.execute(by_name),
        "execute(sequence)": lambda: plan.execute([a, b, d]),
        "plan(a, b, d)": lambda: plan(a, b, d),
        "bound()": bound,
        "bound.set(0, a)": lambda: bound.set(0, a),
        rival_name: rival,
        **dict(more),
    }
    for name, call in rows.items():
        ns = nanoseconds(call, before)
        answer[name] = {"ns": round(ns)} | ({"x_bare": round(ns / bare, 3)} if bare else {})
        print(f"  {name:20} {ns:9.0f} ns" + (f"  {ns / bare:6.2f} x bare" if bare else ""))


def operations(torch, a, w, d):
    """Classes and functions of operations of that size, and torch's product with an output of its own."""
    x, y, c = a.unsqueeze(-1), w.unsqueeze(-1), d.unsqueeze(-1)
    m, n = d.shape
    one, half = torch.empty(1, 1, 1, device=d.device), d.new_empty(m, n // 2, 1)
    amax, swiglu = verglas.GemmAmax(x, y, None, None, c, one), verglas.GemmSwiglu(x, y, c, half)
    amax.compile()
    swiglu.compile()
    narrow = {"c_dtype": torch.bfloat16}
    return {
        "GemmAmax.execute": lambda: amax.execute(x, y, None, None, c, one),
        "GemmSwiglu.execute": lambda: swiglu.execute(x, y, c, half),
        "gemm_amax_forward": lambda: verglas.gemm_amax_forward(x, y, **narrow),
        "gemm_swiglu_forward": lambda: verglas.gemm_swiglu_forward(x, y, ab12_dtype=torch.bfloat16, **narrow),
        "torch.mm": lambda: torch.mm(a, w.t()),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bare", type=float, help="nanoseconds of a bare launch")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    figures = measured(options.bare)
    if options.json:
        options.json.write_text(json.dumps(figures), encoding="utf-8")


def measured(bare):
    figures = {}
    a, b, d = np.ones((1, 2, 4), np.float32), np.ones((1, 3, 4), np.float32).transpose(0, 2, 1), np.empty((1, 2, 3), np.float32)
    plan = plan_of(2, 3, 4, "fp32", "cpu")
    table(figures, "NumPy, 2 x 3 x 4:", plan, a, b, d, lambda: np.matmul(a, b, out=d), "np.matmul(out=)")
    try:
        import torch
    except ImportError:
        return figures
    if not torch.cuda.is_available():
        return figures
    m, n, k = 256, 256, 128
    make = {"dtype": torch.bfloat16, "device": "cuda"}
    a, w, d = torch.zeros(m, k, **make), torch.zeros(n, k, **make), torch.zeros(m, n, **make)
    table(
        figures,
        "torch, 256 x 256 x 128:",
        plan_of(m, n, k, "bf16", "cuda"),
        a,
        w.t(),
        d,
        lambda: torch.mm(a, w.t(), out=d),
        "torch.mm(out=)",
        bare,
        torch.cuda.synchronize,
        operations(torch, a, w, d),
    )
    return figures


if __name__ == "__main__":
    main()
