"""Operands of products on a GPU, bf16 or codes with a scale for each block of K: as operations take them, and as torch does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import verglas
from verglas import scale_layout

BF16 = torch.bfloat16
FP4 = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
KINDS = {"bf16": 0, "mxfp8": 32, "nvfp4": 16}  # and elements that share a scale
TYPES = {0: ("bf16", None), 32: ("fp8_e4m3", "fp8_e8m0"), 16: ("fp4_e2m1", "fp8_e4m3")}  # of elements and of scales


@dataclass
class Operand:
    """Rows of K elements, random normal numbers rounded to a kind."""

    codes: torch.Tensor  # (rows, K), of fp4 (rows, K / 2) bytes
    scales: torch.Tensor | None  # (rows, K / block)
    block: int
    pairs: torch.Tensor | None = None  # of fp4 the two numbers of each byte

    @property
    def atoms(self) -> torch.Tensor | None:
        """Scales as operations take them, (32, 4, R', 4, K', 1)."""
        if self.scales is None:
            return None
        blob = scale_layout.interleave(self.scales.view(torch.uint8)).view(self.scales.dtype)
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


def operand(rows: int, k: int, kind: str) -> Operand:
    """Each block's largest magnitude becomes the largest one of its type."""
    z, block = torch.randn(rows, k, device="cuda", dtype=BF16), KINDS[kind]
    if kind == "bf16":
        return Operand(z, None, 0)
    blocks = z.float().unflatten(1, (-1, block))
    largest = blocks.abs().amax(2)
    if kind == "mxfp8":
        byte = (largest / 448).log2().ceil().clamp(-127, 127)
        codes = (blocks / byte.exp2()[..., None]).flatten(1).to(torch.float8_e4m3fn)
        return Operand(codes, (byte + 127).to(torch.uint8).view(torch.float8_e8m0fnu), block)
    scales = (largest / 6).to(torch.float8_e4m3fn)
    levels = torch.tensor(FP4, device="cuda")
    reduced = (blocks / scales.float()[..., None]).flatten(1)
    nibbles = torch.bucketize(reduced.abs(), (levels[1:] + levels[:-1]) / 2).to(torch.uint8) + 8 * (reduced < 0).to(torch.uint8)
    numbers = torch.cat([levels, -levels]).to(BF16)
    byte = torch.arange(256, device="cuda")
    pairs = torch.stack([numbers[byte % 16], numbers[byte // 16]], 1)
    return Operand(nibbles[:, ::2] + 16 * nibbles[:, 1::2], scales, block, pairs)


def plain(x: Operand, y: Operand) -> Any:
    """A call of our product x · yᵀ of such operands, stored in bf16."""
    graph, codes, blobs = verglas.Graph(io_data_type="bf16", device="cuda:0"), [], []

    def declared(of: Operand, name: str, is_a: bool) -> Any:
        turn = (lambda pair: pair) if is_a else (lambda pair: pair[::-1])
        rows, k = len(of.codes), of.codes.shape[1] * (1 if of.pairs is None else 2)
        data, scale = TYPES[of.block]
        tensor = graph.tensor(name=name, dim=turn((rows, k)), stride=turn((k, 1)), data_type=data)
        codes.append(of.codes if is_a else of.codes.t())
        if of.scales is None:
            return tensor
        blob = scale_layout.interleave(of.scales.view(torch.uint8)).view(of.scales.dtype)
        order = verglas.tensor_reordering.F8_128x4
        scales = graph.tensor(name=f"s{name}", dim=turn(blob.shape), stride=turn((blob.shape[1], 1)), data_type=scale)
        scales.set_reordering_type(order)
        blobs.append(blob if is_a else blob.t())
        return graph.block_scale_dequantize(tensor, scales, block_size=turn((1, of.block)))

    product = graph.matmul(declared(x, "a", True), declared(y, "b", False))
    product.set_output(True).set_data_type("bf16").set_name("d")
    graph.build()
    out = torch.empty(len(x.codes), len(y.codes), device="cuda", dtype=BF16)
    given, plan = [*codes, *blobs, out], graph.plan
    return lambda: plan(*given)
