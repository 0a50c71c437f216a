"""Operations on a GPU beside our own plain product and beside the same steps in torch; and the host time of their calls.

    operations.py [FILE]        with the package on PYTHONPATH; FILE takes the figures as JSON

Device time: contenders in turn and in reverse, each for 0.1 s and then a window of about 30 ms between two events, the median of
five windows; the first round is thrown away. Without that tenth of a second whoever follows a less hungry contender has a higher
clock: our plain product behind torch's steps gained 7%. Host time: 200 calls into a queue that is not full, the median of nine.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import verglas

SIZES = [(4096, 4096, 4096), (4096, 28672, 4096)]
BF16 = torch.bfloat16
Calls = dict[str, Callable[[], Any]]


def matrix(rows: int, columns: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.randn(rows, columns, device="cuda", dtype=dtype).unsqueeze(-1)


def empty(rows: int, columns: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.empty(rows, columns, 1, device="cuda", dtype=dtype)


def plain(a: torch.Tensor, b: torch.Tensor) -> Callable[[], Any]:
    """Our product of the same size."""
    (m, k, _), n = a.shape, b.shape[0]
    graph = verglas.Graph(io_data_type="bf16", device="cuda:0")
    x = graph.tensor(name="a", dim=(1, m, k), stride=(m * k, k, 1))
    y = graph.tensor(name="b", dim=(1, k, n), stride=(k * n, 1, k))
    graph.matmul(x, y).set_output(True).set_name("d")
    graph.build()
    given = a.squeeze(-1).unsqueeze(0), b.squeeze(-1).t().unsqueeze(0), empty(m, n).squeeze(-1).unsqueeze(0)
    plan = graph.plan
    return lambda: plan(*given)


def prepared(operation: Any, *tensors: Any) -> Callable[[], Any]:
    operation.compile()
    return lambda: operation.execute(*tensors)


def cases(m: int, n: int, k: int) -> dict[str, tuple[Calls, Callable[[], Any]]]:
    """Of each operation its class and torch's steps, and its function."""
    a, b, dy, prob = matrix(m, k), matrix(n, k), matrix(m, n), matrix(m, 1, torch.float32)
    ab, c, half = empty(m, n), empty(m, n), empty(m, n // 2)
    one, dprob = empty(1, 1, torch.float32), empty(m, 1, torch.float32)
    x, y, g, p = a[..., 0], b[..., 0].t(), dy[..., 0], prob[..., 0]

    def swiglu() -> Any:
        up, gate = (x @ y).view(m, n // 64, 2, 32).unbind(2)
        return up * torch.nn.functional.silu(gate)

    def dsrelu() -> Any:
        r = torch.relu(x @ y)
        return 2 * r * g * p, (r * r * g).sum(1, dtype=torch.float32)

    amax = verglas.GemmAmax(a, b, None, None, c, one)
    fused = verglas.GemmSwiglu(a, b, ab, half)
    srelu = verglas.GemmSrelu(a, b, ab, c, None, None, prob)
    back = verglas.GemmDsrelu(a, b, dy, c, dprob, None, None, prob)
    product = plain(a, b)
    return {
        "amax": (
            {"ours": prepared(amax, a, b, None, None, c, one), "torch": lambda: (x @ y).abs().max(), "plain": product},
            lambda: verglas.gemm_amax_forward(a, b, c_dtype=BF16),
        ),
        "SwiGLU": (
            {"ours": prepared(fused, a, b, ab, half), "torch": swiglu, "plain": product},
            lambda: verglas.gemm_swiglu_forward(a, b, ab12_dtype=BF16, c_dtype=BF16),
        ),
        "squared ReLU": (
            {
                "ours": prepared(srelu, a, b, ab, c, None, None, prob),
                "torch": lambda: torch.relu(x @ y).square() * p,
                "plain": product,
            },
            lambda: verglas.gemm_srelu_forward(a, b, None, None, prob),
        ),
        "its gradient": (
            {"ours": prepared(back, a, b, dy, c, dprob, None, None, prob), "torch": dsrelu, "plain": product},
            lambda: verglas.gemm_srelu_backward(a, b, dy, None, None, prob),
        ),
    }


def device_times(calls: Calls) -> dict[str, float]:
    """Milliseconds of one call."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    count = dict.fromkeys(calls, 3)
    for turn in range(6):
        for name, call in list(calls.items())[:: 1 if turn % 2 else -1]:
            for _ in range(3 * count[name] if turn > 0 else 0):
                call()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for _ in range(count[name]):
                call()
            end.record()
            end.synchronize()
            ms = begin.elapsed_time(end) / count[name]
            count[name] = max(3, round(30 / ms))
            if turn > 0:
                found[name].append(ms)
    return {name: statistics.median(times) for name, times in found.items()}


def host_time(call: Callable[[], Any]) -> float:
    """Microseconds of one call."""
    times = []
    for _ in range(9):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(200):
            call()
        times.append((time.perf_counter() - start) / 200 * 1e6)
    return statistics.median(times)


def main() -> int:
    result: dict[str, Any] = {"benchmark": "bench/gpu_host/operations.py", "device": torch.cuda.get_device_name()}
    result["rows"], result["host_us"] = [], {}
    for m, n, k in SIZES:
        for name, (calls, _) in cases(m, n, k).items():
            ms = device_times(calls)
            row = {"operation": name, "m": m, "n": n, "k": k, **{f"{who}_ms": round(t, 4) for who, t in ms.items()}}
            row |= {"plain_over_ours": round(ms["plain"] / ms["ours"], 3), "torch_over_ours": round(ms["torch"] / ms["ours"], 2)}
            result["rows"].append(row)
            print(row, flush=True)
    small = cases(64, 64, 64)
    x, y = torch.randn(64, 64, device="cuda", dtype=BF16), torch.randn(64, 64, device="cuda", dtype=BF16)
    hosts = {"torch.mm": lambda: torch.mm(x, y), "plain plan": small["amax"][0]["plain"]}
    for name, (calls, function) in small.items():
        hosts |= {f"{name}, class": calls["ours"], f"{name}, function": function}
    result["host_us"] = {name: round(host_time(call), 2) for name, call in hosts.items()}
    print(result["host_us"])
    if len(sys.argv) > 1:
        with open(sys.argv[1], "w", encoding="utf-8") as file:
            json.dump(result, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
