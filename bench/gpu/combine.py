#!/usr/bin/env python3
"""COMBINE on a GPU, the last product of a layer of experts: of each token the products of its rows, each times its score, added
up; beside the product of the same rows alone (ours), and what torch does for it in steps, in one run.

    bench/gpu/combine.py BUILD_FOLDER FILE [--only TEXT|TEXT…] [--seconds N] [--rounds N] [--plans N] [--commit C]

Rows are sorted by expert; each token has one row in each of `top_k` experts that are drawn. `torch, gathered` is
torch._grouped_mm, rows brought back to the order of tokens, times scores, a sum over them; `torch, added` is torch._grouped_mm,
times scores, index_add into zeros of fp32, and bf16 of that. Method as bench/gpu/grouped.py; ratio = rival's time / ours."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import graphs
import torch
from device import Contender, Device, Failed, capture, compare
from session import Session, parser


@dataclass
class Case:
    experts: int
    tokens: int
    top_k: int
    k: int
    n: int

    @property
    def rows(self) -> int:
        return self.tokens * self.top_k

    @property
    def name(self) -> str:
        return f"bf16 combine, {self.tokens} tokens, {self.top_k} of {self.experts} experts, K {self.k}, N {self.n}"

    @property
    def bytes(self) -> int:
        return 2 * (self.rows * self.k + self.experts * self.k * self.n + self.tokens * self.n)

    def graph(self, combines: bool) -> str:
        text = graphs.Text("bf16")
        rows, k, n = self.rows, self.k, self.n
        text.tensor("x", [1, rows, k], [rows * k, k, 1])
        text.tensor("w", [self.experts, k, n], [k * n, 1, k])
        text.tensor("ends", [self.experts], [1], "int32")
        inputs = ["x", "w", "ends"]
        if combines:
            inputs += [text.tensor(name, [1, rows, 1], [rows, 1, 1], "int32") for name in ("token", "slot")]
            inputs.append(text.tensor("score", [self.tokens, self.top_k], [self.top_k, 1], "fp32"))
        more = {"mode": "combine", "top_k": self.top_k} if combines else {}
        text.node("moe_grouped_matmul", inputs, "y", type="bf16", offsets="end", **more)
        return text.json()


CASES = [
    Case(64, 4096, 8, 1408, 2048),
    Case(8, 8192, 2, 14336, 4096),
    Case(128, 8192, 8, 768, 2048),
    Case(64, 64, 8, 1408, 2048),
]


class Operands:
    def __init__(self, l2_bytes: int, case: Case) -> None:
        self.count = count = max(3, min(16, 2 * l2_bytes // case.bytes + 1))
        bf16 = {"dtype": torch.bfloat16, "device": "cuda"}
        self.x = [torch.randn(case.rows, case.k, **bf16) for _ in range(count)]
        self.w = [torch.randn(case.experts, case.n, case.k, **bf16) for _ in range(count)]
        self.y = [torch.full((case.tokens, case.n), float("nan"), **bf16) for _ in range(count)]
        self.rows = [torch.empty(case.rows, case.n, **bf16) for _ in range(count)]
        self.score = torch.rand(case.tokens, case.top_k, device="cuda")
        expert = torch.rand(case.tokens, case.experts, device="cuda").argsort(1)[:, : case.top_k].reshape(-1)
        order = expert.argsort(stable=True)  # rows, as numbers of token · top_k + slot
        self.ends = torch.bincount(expert, minlength=case.experts).cumsum(0).to(torch.int32)
        self.place, self.row_of_place = order, order.argsort()
        self.token, self.slot = (order // case.top_k).to(torch.int32), (order % case.top_k).to(torch.int32)
        self.of_row = self.score.reshape(-1)[order][:, None]

    def sets(self) -> list[dict[str, torch.Tensor]]:
        alike = {"ends": self.ends, "token": self.token, "slot": self.slot, "score": self.score}
        return [alike | {"x": x, "w": w, "y": y} for x, w, y in zip(self.x, self.w, self.y, strict=True)]


def gathered(case: Case, o: Operands):
    def launch(i: int) -> None:
        y = torch._grouped_mm(o.x[i], o.w[i].mT, offs=o.ends)
        of_tokens = y[o.row_of_place].view(case.tokens, case.top_k, case.n)
        o.y[i].copy_((of_tokens * o.score[:, :, None]).sum(1))

    return launch


def added(case: Case, o: Operands):
    token = o.token.long()

    def launch(i: int) -> None:
        y = torch._grouped_mm(o.x[i], o.w[i].mT, offs=o.ends)
        zeros = torch.zeros(case.tokens, case.n, device="cuda")
        o.y[i].copy_(zeros.index_add_(0, token, y * o.of_row))

    return launch


def wanted(case: Case, o: Operands) -> torch.Tensor:
    """Of set 0, in fp32."""
    torch.backends.cuda.matmul.allow_tf32 = False
    want, begin = torch.zeros(case.tokens, case.n, device="cuda"), 0
    for e, end in enumerate(o.ends.tolist()):
        y = o.x[0][begin:end].float() @ o.w[0][e].float().mT
        want.index_add_(0, o.token[begin:end].long(), y * o.of_row[begin:end])
        begin = end
    return want


def measure(device: Device, case: Case, plans: int, rounds: int) -> list[dict]:
    o = Operands(device.about["l2_bytes"], case)
    sets = o.sets()
    estimate = 3 + 1e6 * max(2.0 * case.rows * case.k * case.n / (4096 * 132 * 1.3e9), case.bytes / 4e12)
    all_: list[Contender] = []

    def add(name: str, launch, note: str = "") -> None:
        c = Contender(name, launch, note)
        with torch.cuda.stream(device.stream):
            launch(0)
        device.stream.synchronize()
        if name != "product alone":
            error = float((want - o.y[0].float()).norm() / want.norm())
            if not error <= 5e-3:
                raise Failed(f"{name} is wrong: error {error:.2e} of the norm")
            o.y[0].fill_(float("nan"))
        capture(device, c, o.count, estimate)
        all_.append(c)

    def add_plan(name: str, graph: str, index: int, of_sets: list[dict]) -> None:
        number, about = device.plan(graph, index)
        launch = device.launcher(number, [[s[operand["name"]] for operand in about["operands"]] for s in of_sets])
        add(name, launch, about["plan"])

    want = wanted(case, o)
    for i in range(plans):
        add_plan(f"plan {i}" if i else "ours", case.graph(True), i, sets)
    add("torch, gathered", gathered(case, o))
    add("torch, added", added(case, o))
    add_plan("product alone", case.graph(False), 0, [s | {"y": y} for s, y in zip(sets, o.rows, strict=True)])
    compare(device, all_, rounds)
    first, records = all_[0], []
    for c in all_:
        print(f"{case.name} {c.name:16} {c.us:8.1f} us short {c.short_us:8.1f} ratio {c.us / first.us:.3f} {c.note}", flush=True)
        for regime, a, b in (("steady", first.us, c.us), ("short", first.short_us, c.short_us)):
            if c is not first:
                r = {"suite": f"combine.{regime}", "case": case.name, "ours_us": a, "rival": c.name, "rival_us": b}
                records.append(r | {"ratio": b / a, "plan": first.note, "rival_note": c.note})
    return records


def main() -> int:
    arguments = parser(__doc__ or "")
    arguments.add_argument("--only", default="", help="parts of names of cases, between bars")
    options = arguments.parse_args()
    session = Session("combine", options)
    cases = [case for case in CASES if any(text in case.name for text in options.only.split("|"))]
    session.compile_ahead({case.graph(combines) for case in cases for combines in (True, False)})
    for case in cases:
        session.measure(case.name, lambda case=case: measure(session.device, case, options.plans, options.rounds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
