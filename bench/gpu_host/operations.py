"""Operations on a GPU beside our own plain product and beside the same steps in torch; and the host time of their calls.

    operations.py [FILE [[OPERANDS:]MxNxK...]]     with the package on PYTHONPATH; FILE takes the figures as JSON

OPERANDS is bf16 (where none is named), or mxfp8 or nvfp4: codes with a scale for each block, which cuDNN's operations ask for
in all but SwiGLU and the projection. torch has no product of these on Hopper: its steps decode both matrices to bf16, without
rounding, and `torch_ahead_ms` is their time where those of B, the weights, were decoded before. Our plain product has the same
operands as the operation.

Device time: contenders in turn and in reverse, each for 60 ms and then a window of about 30 ms between two events, the median of
five windows; the first round is thrown away. Without the warm-up whoever follows a less hungry contender has a higher clock: our
plain product behind torch's steps gained 7%. Torch's time ÷ that of our plain product is what a fusion that costs nothing behind
the product would reach. Host time: 200 calls into a queue that is not full, the median of nine.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import verglas
from operands import Operand, operand, plain, quantised

# Square; gate and up of Llamas of 8, 3 and 1 billion parameters; and less depth: a chunk of a long K, the output of a low rank.
SIZES = ["4096x4096x4096", "4096x28672x4096", "8192x16384x3072", "8192x16384x2048", "8192x8192x1024", "16384x4096x512"]
BF16 = torch.bfloat16
Calls = dict[str, Callable[[], Any]]


def matrix(rows: int, columns: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.randn(rows, columns, device="cuda", dtype=dtype).unsqueeze(-1)


def empty(rows: int, columns: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.empty(rows, columns, 1, device="cuda", dtype=dtype)


def steps_of(a: Operand, b: Operand, steps: Callable[[torch.Tensor, torch.Tensor], Any]) -> Calls:
    """torch's steps over a and bᵀ."""
    x, y = a.wide(), b.wide()
    ahead = y().t()
    if b.scales is None:
        return {"torch": lambda: steps(x(), ahead)}
    return {"torch": lambda: steps(x(), y().t()), "torch_ahead": lambda: steps(x(), ahead)}


def rope(m: int, n: int, k: int, kind: str) -> tuple[Calls, Callable[[], Any]]:
    """Heads of 192 features, the last 64 of each rotated, quantised in both directions."""
    heads = n // 192
    a, b = operand(m, k, kind), operand(192 * heads, k, kind)
    cos, sin = matrix(m, 64)[..., 0], matrix(m, 64)[..., 0]
    scales = [of.scales.view(torch.uint8) for of in (a, b) if of.scales is not None]
    outputs = list(verglas.gemm_proj_rope_mxfp8_forward(a.codes, b.codes, cos, sin, *scales).values())

    def steps(x: torch.Tensor, y: torch.Tensor) -> Any:
        z = (x @ y).view(m, heads, 192).float()
        even, odd = z[..., 128::2], z[..., 129::2]
        c, s = cos.float()[:, None], sin.float()[:, None]
        first, second = even * c[..., :32] - odd * s[..., :32], odd * c[..., 32:] + even * s[..., 32:]
        z = torch.cat([z[..., :128], first, second], -1)
        return *quantised(z, 2), *quantised(z, 0)

    if scales:
        given = [a.codes, scales[0], b.codes, scales[1], cos, sin, *outputs]
        ours = verglas.GemmProjRopeMxfp8Mxfp8In(*given)
    else:
        given = [a.codes, b.codes, cos, sin, *outputs]
        ours = verglas.GemmProjRopeMxfp8Bf16In(*given, w_out_in=True)
    calls = {"ours": prepared(ours, *given), **steps_of(a, b, steps), "plain": plain(a, b)}
    return calls, lambda: verglas.gemm_proj_rope_mxfp8_forward(a.codes, b.codes, cos, sin, *scales)


def prepared(operation: Any, *tensors: Any, **named: Any) -> Callable[[], Any]:
    operation.compile()
    return lambda: operation.execute(*tensors, **named)


def cases(m: int, n: int, k: int, kind: str) -> dict[str, Callable[[], tuple[Calls, Callable[[], Any]]]]:
    """Of each operation what makes its class, torch's steps and our plain product, and its function."""
    of_a, of_b = operand(m, k, kind), operand(n, k, kind)
    a, b, sfa, sfb = of_a.codes[..., None], of_b.codes[..., None], of_a.atoms, of_b.atoms
    dy, prob = matrix(m, n), matrix(m, 1, torch.float32)
    ab, c, half = empty(m, n), empty(m, n), empty(m, n // 2)
    one, dprob = empty(1, 1, torch.float32), empty(m, 1, torch.float32)
    g, p = dy[..., 0], prob[..., 0]
    product, block = plain(of_a, of_b), of_a.block or 16

    def swiglu(x: torch.Tensor, y: torch.Tensor) -> Any:
        up, gate = (x @ y).view(m, n // 64, 2, 32).unbind(2)
        return up * torch.nn.functional.silu(gate)

    def dsrelu(x: torch.Tensor, y: torch.Tensor) -> Any:
        r = torch.relu(x @ y)
        return 2 * r * g * p, (r * r * g).sum(1, dtype=torch.float32)

    def case(operation: type, function: Callable[[], Any], steps: Callable[..., Any], *tensors: Any, **scales: Any) -> Any:
        def make() -> tuple[Calls, Callable[[], Any]]:
            samples = {f"sample_{name}": of for name, of in scales.items()}
            given = {f"{name}_tensor": of for name, of in scales.items()}
            ours = prepared(operation(*tensors, **samples, sf_vec_size=block), *tensors, **given)
            return {"ours": ours, **steps_of(of_a, of_b, steps), "plain": product}, function

        return make

    return {
        "amax": case(
            verglas.GemmAmax,
            lambda: verglas.gemm_amax_forward(a, b, sfa, sfb, c_dtype=BF16, sf_vec_size=block),
            lambda x, y: (x @ y).abs().max(),
            *(a, b, sfa, sfb, c, one),
        ),
        "SwiGLU": case(
            verglas.GemmSwiglu,
            lambda: verglas.gemm_swiglu_forward(
                a, b, ab12_dtype=BF16, c_dtype=BF16, sfa_tensor=sfa, sfb_tensor=sfb, sf_vec_size=block
            ),
            swiglu,
            *(a, b, ab, half),
            sfa=sfa,
            sfb=sfb,
        ),
        "squared ReLU": case(
            verglas.GemmSrelu,
            lambda: verglas.gemm_srelu_forward(a, b, sfa, sfb, prob, sf_vec_size=block),
            lambda x, y: torch.relu(x @ y).square() * p,
            *(a, b, ab, c, sfa, sfb, prob),
        ),
        "its gradient": case(
            verglas.GemmDsrelu,
            lambda: verglas.gemm_srelu_backward(a, b, dy, sfa, sfb, prob, sf_vec_size=block),
            dsrelu,
            *(a, b, dy, c, dprob, sfa, sfb, prob),
        ),
        **({} if kind == "nvfp4" else {"projection + RoPE + MXFP8": lambda: rope(m, n, k, kind)}),
    }


def device_times(calls: Calls) -> dict[str, float]:
    """Milliseconds of one call."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    count = dict.fromkeys(calls, 3)
    for turn in range(6):
        for name, call in list(calls.items())[:: 1 if turn % 2 else -1]:
            for _ in range(2 * count[name] if turn > 0 else 0):
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
    result |= {
        "command": " ".join(["bench/gpu_host/operations.py FILE", *sys.argv[2:]]),
        "commit": os.environ.get("COMMIT", "unknown"),
    }
    result |= {"rows": [], "refused": {}, "host_us": {}}
    for wanted in sys.argv[2:] or SIZES:
        kind, _, size = wanted.rpartition(":")
        m, n, k = map(int, size.split("x"))
        for name, make in cases(m, n, k, kind or "bf16").items():
            try:
                calls, _ = make()
            except verglas.UnsupportedError as error:  # an engine has to learn it first
                print(name, m, n, k, str(error).splitlines()[0], flush=True)
                result["refused"][name] = str(error).splitlines()[0]
                continue
            ms = device_times(calls)
            row = {"operation": name, "operands": kind or "bf16", "m": m, "n": n, "k": k}
            row |= {f"{who}_ms": round(t, 4) for who, t in ms.items()}
            row |= {"plain_over_ours": round(ms["plain"] / ms["ours"], 3), "torch_over_ours": round(ms["torch"] / ms["ours"], 2)}
            result["rows"].append(row)
            print(row, flush=True)
            torch.cuda.empty_cache()
            if len(sys.argv) > 1:  # what there is, should the next be cut
                Path(sys.argv[1]).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    x, y = torch.randn(64, 64, device="cuda", dtype=BF16), torch.randn(64, 64, device="cuda", dtype=BF16)
    hosts = {"torch.mm": lambda: torch.mm(x, y), "plain plan": plain(Operand("bf16", x), Operand("bf16", y))}
    for name, make in cases(64, 192, 64, "bf16").items():
        if name not in result["refused"]:
            calls, function = make()
            hosts |= {f"{name}, class": calls["ours"], f"{name}, function": function}
    result["host_us"] = {name: round(host_time(call), 2) for name, call in hosts.items()}
    print(result["host_us"])
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
