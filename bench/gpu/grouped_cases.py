"""Cases of bench/gpu/grouped.py: their graphs, and their operands in several sets."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import graphs
import torch

E4M3 = torch.float8_e4m3fn


@dataclass
class Case:
    groups: int
    rows: int
    k: int
    n: int
    skew: str  # even, or zipf: rows of a group fall with its rank
    kind: str = "bf16"  # fp8: e4m3 with a scale for each row and for each column of a group; mxfp8: scales of blocks of 32
    gradient: bool = False  # of the weights
    by_address: bool = False  # the weights, and their scales
    what: str = ""  # are these groups, where they are not experts of that many rows each

    @property
    def name(self) -> str:
        of = "gradient of " if self.gradient else "addresses of " if self.by_address else ""
        what = f"{self.what}, " if self.what else ""
        return f"{self.kind} {what}{of}{self.groups} groups, {self.rows} rows, K {self.k}, N {self.n}, {self.skew}"

    @property
    def flop(self) -> float:
        return 2.0 * self.rows * self.k * self.n

    def ends(self) -> list[int]:
        weight = [1.0 if self.skew == "even" else 1.0 / (1 + 37 * g % self.groups) for g in range(self.groups)]
        total, ends, sum_ = sum(weight), [], 0.0
        for w in weight:
            sum_ += w
            ends.append(round(self.rows * sum_ / total))
        return ends

    def spans(self) -> list[tuple[int, int, int]]:
        bounds = [0, *self.ends()]
        return [(g, a, b) for g, (a, b) in enumerate(itertools.pairwise(bounds)) if b > a]

    def graph(self) -> str:
        text = graphs.Text("bf16")
        rows, k, n, groups = self.rows, self.k, self.n, self.groups
        narrow = "" if self.kind == "bf16" else "fp8_e4m3"
        x = text.tensor("x", [1, rows, k], [rows * k, k, 1], narrow)
        text.tensor("ends", [groups], [1], "int32")
        if self.gradient:
            text.tensor("y", [1, rows, n], [rows * n, n, 1])
            text.node("moe_grouped_matmul_bwd", ["x", "y", "ends"], "w", type="bf16", offsets="end")
            return text.json()
        w = text.tensor("w", [groups, k, n], [k * n, 1, k], narrow)
        if self.by_address:
            text.tensors[-1]["by_pointers"] = True
        if self.kind == "mxfp8":
            blocks = k // 32
            text.tensor("sx", [1, rows, blocks], [rows * blocks, blocks, 1], "fp8_e8m0")
            text.tensor("sw", [groups, blocks, n], [n * blocks, 1, blocks], "fp8_e8m0")
            if self.by_address:
                text.tensors[-1]["by_pointers"] = True
            x = text.node("block_scale_dequantize", ["x", "sx"], "wide_x", block_size=[1, 32])
            w = text.node("block_scale_dequantize", ["w", "sw"], "wide_w", block_size=[32, 1])
        if self.kind != "fp8":
            text.node("moe_grouped_matmul", [x, w, "ends"], "y", type="bf16", offsets="end")
            return text.json()
        text.tensor("sx", [1, rows, 1], [rows, 1, 1], "fp32")
        text.tensor("sw", [groups, 1, n], [n, n, 1], "fp32")
        text.node("moe_grouped_matmul", [x, w, "ends"], "sum", offsets="end")
        text.tensors[-1]["data_type"] = "fp32"
        text.node("mul", ["sum", "sx"], "scaled")
        text.tensors[-1]["data_type"] = "fp32"
        text.node("mul", ["scaled", "sw"], "y", type="bf16")
        return text.json()

    def dense_graph(self) -> str:
        """The gradient of groups that are all alike, as a batch of products."""
        text = graphs.Text("bf16")
        rows = self.rows // self.groups
        text.tensor("a", [self.groups, self.k, rows], [rows * self.k, 1, self.k])
        text.tensor("b", [self.groups, rows, self.n], [rows * self.n, self.n, 1])
        text.node("matmul", ["a", "b"], "w", type="bf16")
        return text.json()


LARGE, MIDDLE, MANY = Case(8, 8192, 4096, 4096, "even"), Case(64, 8192, 2048, 1408, "even"), Case(128, 65536, 2048, 1536, "even")
DECODE = [Case(256, 1024, 2048, 1408, "even"), Case(64, 1024, 2048, 1408, "even"), Case(64, 2048, 2048, 1408, "even")]
# Many small groups that the rate of weights from memory does not bound: adapters of low rank for the requests of a batch, down to
# the rank and up from it; experts of a few hundred features; their gradients.
DOWN, UP, FINE = "adapters down", "adapters up", "small experts"
SMALL = [
    Case(512, 8192, 4096, 16, "even", what=DOWN),
    Case(256, 8192, 4096, 64, "even", what=DOWN),
    Case(512, 8192, 16, 4096, "even", what=UP),
    Case(256, 8192, 64, 4096, "even", what=UP),
    Case(1024, 8192, 64, 4096, "zipf", what=UP),
    Case(512, 8192, 512, 512, "even", what=FINE),
    Case(512, 8192, 512, 512, "zipf", what=FINE),
    Case(512, 8192, 512, 512, "even", gradient=True, what=FINE),
    Case(512, 8192, 4096, 16, "even", gradient=True, what=DOWN),
]
CASES = [
    *SMALL,
    LARGE,
    MIDDLE,
    MANY,
    *DECODE,
    *[replace(c, skew="zipf") for c in (LARGE, MIDDLE, MANY)],
    *[replace(c, by_address=True) for c in (LARGE, MIDDLE, DECODE[0])],
    *[replace(c, kind="mxfp8", by_address=True) for c in (LARGE, MIDDLE)],
    *[replace(c, gradient=True) for c in (LARGE, MIDDLE, MANY, replace(MANY, skew="zipf"))],
    *[replace(c, kind="fp8") for c in (LARGE, MIDDLE, MANY, DECODE[0], replace(MIDDLE, skew="zipf"))],
    *[replace(c, kind="mxfp8") for c in (LARGE, MIDDLE, MANY, DECODE[0])],
]


class Operands:
    def __init__(self, l2_bytes: int, case: Case) -> None:
        self.case = case
        size = 2 if case.kind == "bf16" else 1
        self.weight_bytes = size * case.groups * case.k * case.n
        self.bytes = size * case.rows * case.k + self.weight_bytes + 2 * case.rows * case.n
        if case.gradient:
            self.bytes = 2 * (case.rows * case.k + case.groups * case.k * case.n + case.rows * case.n)
        self.count = count = max(3, min(32, 2 * l2_bytes // self.bytes + 1))
        bf16 = {"dtype": torch.bfloat16, "device": "cuda"}

        def random(*dim: int) -> torch.Tensor:
            t = torch.randn(*dim, **bf16)
            return t if case.kind == "bf16" else t.to(E4M3)

        self.x = [random(case.rows, case.k) for _ in range(count)]
        if case.gradient:
            self.w = [torch.full((case.groups, case.k, case.n), float("nan"), **bf16) for _ in range(count)]
            self.y = [torch.randn(case.rows, case.n, **bf16) for _ in range(count)]
        else:
            self.w = [random(case.groups, case.n, case.k) for _ in range(count)]
            self.y = [torch.full((case.rows, case.n), float("nan"), **bf16) for _ in range(count)]
        self.out = self.w if case.gradient else self.y
        self.table = [self._addresses(w) for w in self.w]
        self.ends = torch.tensor(case.ends(), dtype=torch.int32, device="cuda")
        if case.kind == "fp8":
            self.sx = torch.rand(case.rows, device="cuda") + 0.5
            self.sw = torch.rand(case.groups, case.n, device="cuda") + 0.5
        if case.kind == "mxfp8":
            blocks = case.k // 32
            self.sx = torch.randint(124, 131, (case.rows, blocks), dtype=torch.uint8, device="cuda")
            self.sw = torch.randint(124, 131, (case.groups, case.n, blocks), dtype=torch.uint8, device="cuda")

    @staticmethod
    def _addresses(matrices: torch.Tensor) -> torch.Tensor:
        return torch.tensor([m.data_ptr() for m in matrices], dtype=torch.int64, device="cuda")

    def sets(self, by_address: bool) -> list[dict[str, torch.Tensor]]:
        by = self.table if by_address else self.w
        all_ = [{"x": self.x[i], "w": by[i], "ends": self.ends, "y": self.y[i]} for i in range(self.count)]
        if self.case.kind != "bf16":
            sw = self._addresses(self.sw) if by_address else self.sw
            all_ = [s | {"sx": self.sx, "sw": sw} for s in all_]
        return all_

    def _wide(self, t: torch.Tensor, scales: torch.Tensor | None) -> torch.Tensor:
        if self.case.kind != "mxfp8" or scales is None:
            return t.float()
        return t.float() * torch.exp2(scales.float() - 127).repeat_interleave(32, -1)

    def wanted(self) -> torch.Tensor:
        """Of set 0, in fp32; zeros where no group is."""
        case = self.case
        torch.backends.cuda.matmul.allow_tf32 = False
        want = torch.zeros(self.out[0].shape, dtype=torch.float32, device="cuda")
        for g, a, b in case.spans():
            if case.gradient:
                want[g] = self.x[0][a:b].float().mT @ self.y[0][a:b].float()
                continue
            scaled = case.kind == "mxfp8"
            x = self._wide(self.x[0][a:b], self.sx[a:b] if scaled else None)
            want[a:b] = x @ self._wide(self.w[0][g], self.sw[g] if scaled else None).mT
            if case.kind == "fp8":
                want[a:b] *= self.sx[a:b, None] * self.sw[g]
        return want
