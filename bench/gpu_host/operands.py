"""Operands of products on a GPU, bf16 or codes with a scale for each block of K: as operations take them, and as torch does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import verglas
from verglas import scale_layout

BF16 = torch.bfloat16
FP4 = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
# Types of elements and of scales, and how many share one.
KINDS = {"bf16": ("bf16", None, 0), "mxfp8": ("fp8_e4m3", "fp8_e8m0", 32), "nvfp4": ("fp4_e2m1", "fp8_e4m3", 16)}


@dataclass
class Operand:
    """Rows of K elements, random normal numbers rounded to a kind."""

    kind: str
    codes: torch.Tensor  # (rows, K), of fp4 (rows, K / 2) bytes
    scales: torch.Tensor | None = None  # (rows, K / block)
    pairs: torch.Tensor | None = None  # of fp4 the two numbers of each byte

    @property
    def block(self) -> int:
        return KINDS[self.kind][2]

    @property
    def blob(self) -> torch.Tensor | None:
        """Scales in atoms of 128 rows by 4 blocks, as graphs take them."""
        if self.scales is None:
            return None
        return scale_layout.interleave(self.scales.view(torch.uint8)).view(self.scales.dtype)

    @property
    def atoms(self) -> torch.Tensor | None:
        """The same as operations take them, (32, 4, R', 4, K', 1)."""
        blob = self.blob
        if blob is None:
            return None
        rows, columns = blob.shape[0] // 128, blob.shape[1] // 4
        return blob.view(1, rows, columns, 32, 4, 4).permute(3, 4, 1, 5, 2, 0)

    def wide(self) -> Any:
        """What gives the matrix in bf16 by torch's steps: a cast, or a table of bytes, and the scale. No step rounds."""
        if self.scales is None:
            return lambda: self.codes
        factors = self.scales.to(BF16)[..., None]

        def decode() -> torch.Tensor:
            pairs = self.pairs
            values = self.codes.to(BF16) if pairs is None else torch.nn.functional.embedding(self.codes.int(), pairs)
            return values.view(len(self.codes), -1, self.block).mul_(factors).flatten(1)

        return decode


def quantised(z: torch.Tensor, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """e4m3 and bytes of e8m0 of blocks of 32 along a dimension, in torch's steps."""
    blocks = z.unflatten(dim, (-1, 32))
    byte = (blocks.abs().amax(dim + 1, keepdim=True) / 448).log2().ceil().clamp(-127, 127)
    return (blocks / byte.exp2()).flatten(dim, dim + 1).to(torch.float8_e4m3fn), (byte + 127).squeeze(dim + 1).to(torch.uint8)


def operand(rows: int, k: int, kind: str) -> Operand:
    """Each block's largest magnitude becomes the largest one of its type."""
    z = torch.randn(rows, k, device="cuda", dtype=BF16)
    if kind == "bf16":
        return Operand(kind, z)
    if kind == "mxfp8":
        codes, scales = quantised(z.float(), 1)
        return Operand(kind, codes, scales.view(torch.float8_e8m0fnu))
    blocks = z.float().unflatten(1, (-1, KINDS[kind][2]))
    scales = (blocks.abs().amax(2) / 6).to(torch.float8_e4m3fn)
    levels = torch.tensor(FP4, device="cuda")
    reduced = (blocks / scales.float()[..., None]).flatten(1)
    nibbles = torch.bucketize(reduced.abs(), (levels[1:] + levels[:-1]) / 2).to(torch.uint8) + 8 * (reduced < 0).to(torch.uint8)
    numbers = torch.cat([levels, -levels]).to(BF16)
    byte = torch.arange(256, device="cuda")
    pairs = torch.stack([numbers[byte % 16], numbers[byte // 16]], 1)
    return Operand(kind, nibbles[:, ::2] + 16 * nibbles[:, 1::2], scales, pairs)


def plain(x: Operand, y: Operand) -> Any:
    """A call of our product x · yᵀ of such operands, stored in bf16."""
    graph, codes, blobs = verglas.Graph(io_data_type="bf16", device="cuda:0"), [], []

    def declared(of: Operand, name: str, is_a: bool) -> Any:
        turn = (lambda pair: pair) if is_a else (lambda pair: pair[::-1])
        rows, k = len(of.codes), of.codes.shape[1] * (1 if of.pairs is None else 2)
        data, scale, block = KINDS[of.kind]
        tensor = graph.tensor(name=name, dim=turn((rows, k)), stride=turn((k, 1)), data_type=data)
        codes.append(of.codes if is_a else of.codes.t())
        blob = of.blob
        if blob is None:
            return tensor
        scales = graph.tensor(name=f"s{name}", dim=turn(blob.shape), stride=turn((blob.shape[1], 1)), data_type=scale)
        scales.set_reordering_type(verglas.tensor_reordering.F8_128x4)
        blobs.append(blob if is_a else blob.t())
        return graph.block_scale_dequantize(tensor, scales, block_size=turn((1, block)))

    product = graph.matmul(declared(x, "a", True), declared(y, "b", False))
    product.set_output(True).set_data_type("bf16").set_name("d")
    graph.build()
    out = torch.empty(len(x.codes), len(y.codes), device="cuda", dtype=BF16)
    given, plan = [*codes, *blobs, out], graph.plan
    return lambda: plan(*given)
