"""Graph files of the benchmark's cases, and what eager torch makes of the same operands."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "tf32": torch.float32, "int8": torch.int8,
         "int32": torch.int32}  # fmt: skip


@dataclass
class Case:
    """A graph of matrices (l, m, k) and (l, k, n), the second stored as (n, k); l is left out where it is 1."""

    name: str
    l: int  # noqa: E741 the batch
    m: int
    n: int
    k: int
    type: str
    graph: str
    eager: Callable[..., tuple[torch.Tensor, ...]]  # of the inputs, in the order of the graph; answers the outputs likewise
    products: int = 1
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)

    @property
    def flop(self) -> float:
        return 2.0 * self.l * self.m * self.n * self.k * self.products

    @property
    def shape(self) -> str:
        return "x".join(str(e) for e in ([self.l] if self.l > 1 else []) + [self.m, self.n, self.k])


class Text:
    """Collects tensors and nodes of a graph file."""

    def __init__(self, io_type: str) -> None:
        self.tensors: list[dict] = []
        self.nodes: list[dict] = []
        self.io_type = io_type
        self.outputs: list[str] = []

    def tensor(self, name: str, dim: list[int], stride: list[int], data_type: str = "") -> str:
        self.tensors.append({"name": name, "dim": dim, "stride": stride} | ({"data_type": data_type} if data_type else {}))
        return name

    def node(self, op: str, inputs: list[str], output: str, **attributes: object) -> str:
        """`dim` and `type` belong to the output, which is stored where a type is given."""
        tensor: dict = {"name": output}
        if "dim" in attributes:
            tensor["dim"] = attributes.pop("dim")
        if "type" in attributes:
            tensor |= {"output": True, "data_type": attributes.pop("type")}
            self.outputs.append(output)
        self.tensors.append(tensor)
        self.nodes.append({"op": op, "inputs": inputs, "output": output} | attributes)
        return output

    def json(self) -> str:
        return json.dumps({"verglas_graph": 1, "io_data_type": self.io_type, "tensors": self.tensors, "nodes": self.nodes})


def matrices(text: Text, l: int, m: int, n: int, k: int, b: str = "b", a_type: str = "") -> None:  # noqa: E741
    batch, a_batch, b_batch = ([l], [m * k], [n * k]) if l > 1 else ([], [], [])
    if not any(t["name"] == "a" for t in text.tensors):
        text.tensor("a", [*batch, m, k], [*a_batch, k, 1], a_type)
    text.tensor(b, [*batch, k, n], [*b_batch, 1, k])


def product(kind: str, l: int, m: int, n: int, k: int) -> Case:  # noqa: E741
    io_type = "fp32" if kind == "tf32" else kind
    text = Text(io_type)
    matrices(text, l, m, n, k)
    compute = {"compute_data_type": "tf32"} if kind == "tf32" else {"compute_data_type": "int32"} if kind == "int8" else {}
    text.node("matmul", ["a", "b"], "d", type="int32" if kind == "int8" else io_type, **compute)

    def eager(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if kind == "int8":
            return (torch._int_mm(a, b) if l == 1 else torch.matmul(a.int(), b.int()),)
        return (torch.matmul(a, b),)

    return Case(f"{kind} {shape_text(l, m, n, k)}", l, m, n, k, kind, text.json(), eager, 1, ["a", "b"], ["d"])


def shape_text(l: int, m: int, n: int, k: int) -> str:  # noqa: E741
    return "x".join(str(e) for e in ([l] if l > 1 else []) + [m, n, k])


def flavor(name: str, m: int, n: int, k: int) -> Case:
    """bf16 throughout, reductions in fp32."""
    text = Text("bf16")
    names = ["a", "b"]
    matrices(text, 1, m, n, k, a_type="int8" if name == "int8*bf16" else "")
    products = 1
    if name == "bias+relu":
        names.append(text.tensor("bias", [1, n], [n, 1]))
        text.node("relu", [text.node("add", [text.node("matmul", ["a", "b"], "c"), "bias"], "s")], "d", type="bf16")

        def eager(a, b, bias):
            return (torch.relu(a @ b + bias),)

    elif name == "bias+gelu(tanh)":
        names.append(text.tensor("bias", [1, n], [n, 1]))
        sum_ = text.node("add", [text.node("matmul", ["a", "b"], "c"), "bias"], "s")
        text.node("gelu_approx_tanh", [sum_], "d", type="bf16")

        def eager(a, b, bias):
            return (torch.nn.functional.gelu(a @ b + bias, approximate="tanh"),)

    elif name == "residual+second output":
        names.append(text.tensor("residual", [m, n], [n, 1]))
        h = text.node("add", [text.node("matmul", ["a", "b"], "c"), "residual"], "h", type="bf16")
        text.node("relu", [h], "d", type="bf16")

        def eager(a, b, residual):
            h = a @ b + residual
            return h, torch.relu(h)

    elif name == "swiglu":
        products = 2
        matrices(text, 1, m, n, k, "up")
        names.append("up")
        gate = text.node("swish", [text.node("matmul", ["a", "b"], "g")], "s")
        text.node("mul", [gate, text.node("matmul", ["a", "up"], "u")], "d", type="bf16")

        def eager(a, b, up):
            return (torch.nn.functional.silu(a @ b) * (a @ up),)

    elif name == "int8*bf16":
        text.node("matmul", [text.node("identity", ["a"], "wide"), "b"], "d", type="bf16")
        text.tensors[-2]["data_type"] = "bf16"

        def eager(a, b):
            return (a.to(b.dtype) @ b,)

    else:
        mode, dim = {"row-amax": ("amax", [m, 1]), "column-sum": ("add", [1, n]), "norm2": ("norm2", [1, 1])}[name]
        text.node("matmul", ["a", "b"], "d", type="bf16")
        text.node("reduction", ["d"], "r", type="fp32", dim=dim, mode=mode)

        def eager(a, b):
            d = a @ b
            x = d.float()
            r = x.abs().amax(1, keepdim=True) if mode == "amax" else x.sum(0, keepdim=True) if mode == "add" else x.norm()
            return d, r.reshape(dim)

    return Case(f"{shape_text(1, m, n, k)} {name}", 1, m, n, k, "bf16", text.json(), eager, products, names, text.outputs)
