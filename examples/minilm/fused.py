"""The six products as Verglas graphs: everything that follows a product happens in its epilogue, and each array is written once.

A graph is compiled once for its sizes and serves all layers, since weights are operands like any other. Its outputs live in
buffers of its own. Hazard: the next call of the same step overwrites what the last one returned.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

import numpy as np
import verglas

from .weights import Array, Layer, Linear

S = TypeVar("S")

FLOAT = verglas.data_type.FLOAT


def new_graph() -> verglas.Graph:
    return verglas.Graph(io_data_type=FLOAT, intermediate_data_type=FLOAT, compute_data_type=FLOAT)


def declare(graph: verglas.Graph, name: str, dim: list[int], stride: list[int] | None = None):
    """An operand; without strides it is row-major."""
    packed = [math.prod(dim[axis + 1 :]) for axis in range(len(dim))]
    return graph.tensor(name=name, dim=dim, stride=stride or packed, data_type=FLOAT)


def store(tensor):
    return tensor.set_output(True).set_data_type(FLOAT)


class FusedLinear:
    """x (R, I) · weightᵀ + bias, then GELU or a residual (R, O) on top if asked for."""

    def __init__(self, rows: int, inputs: int, outputs: int, *, gelu: bool = False, residual: bool = False):
        self.graph = graph = new_graph()
        self._x = declare(graph, "x", [rows, inputs])
        self._weight = declare(graph, "weight", [inputs, outputs], [1, inputs])  # (O, I) in memory: K-major as it is
        self._bias = declare(graph, "bias", [1, outputs])
        self._residual = declare(graph, "residual", [rows, outputs]) if residual else None
        y = graph.bias(graph.matmul(self._x, self._weight), self._bias)
        if gelu:
            y = graph.gelu(y)
        if self._residual is not None:
            y = graph.add(y, self._residual)
        self._y = store(y)
        graph.build()
        self._out = np.empty((rows, outputs), np.float32)

    def __call__(self, x: Array, part: Linear, residual: Array | None = None) -> Array:
        pack = {self._x: x, self._weight: part.weight.T, self._bias: part.bias.reshape(1, -1), self._y: self._out}
        if self._residual is not None:
            pack[self._residual] = residual
        self.graph.execute(pack)
        return self._out


class FusedHeads:
    """Query, key, value: three products that share x (1, R, W), batched over the heads H so that each head comes out packed."""

    def __init__(self, heads: int, rows: int, width: int):
        size = width // heads
        self._heads = heads
        self.graph = graph = new_graph()
        self._x = declare(graph, "x", [1, rows, width])  # one x for all heads: its batch broadcasts
        self._weights, self._biases, self._outputs = [], [], []
        for name in ("query", "key", "value"):
            weight = declare(graph, f"{name}_weight", [heads, width, size], [size * width, 1, width])
            bias = declare(graph, f"{name}_bias", [heads, 1, size])
            self._weights.append(weight)
            self._biases.append(bias)
            self._outputs.append(store(graph.bias(graph.matmul(self._x, weight), bias)))
        graph.build()
        self._out = [np.empty((heads, rows, size), np.float32) for _ in self._outputs]

    def __call__(self, x: Array, parts: tuple[Linear, Linear, Linear]) -> list[Array]:
        pack = {self._x: x.reshape(1, *x.shape)}
        for weight, bias, part in zip(self._weights, self._biases, parts, strict=True):
            pack[weight] = part.weight.reshape(self._heads, -1, x.shape[1]).transpose(0, 2, 1)
            pack[bias] = part.bias.reshape(self._heads, 1, -1)
        pack.update(zip(self._outputs, self._out, strict=True))
        self.graph.execute(pack)
        return self._out


class FusedScores:
    """query (L, T, D) · keyᵀ · scale + mask bias (L, 1, T), with L = H·B."""

    def __init__(self, count: int, length: int, size: int):
        self.graph = graph = new_graph()
        self._query = declare(graph, "query", [count, length, size])
        self._key = declare(graph, "key", [count, size, length], [length * size, 1, size])
        self._scale = declare(graph, "scale", [1, 1, 1])
        self._mask_bias = declare(graph, "mask_bias", [count, 1, length])
        scaled = graph.mul(graph.matmul(self._query, self._key), self._scale)
        self._scores = store(graph.add(scaled, self._mask_bias))
        graph.build()
        self._scale_value = np.full((1, 1, 1), 1 / math.sqrt(size), np.float32)
        self._out = np.empty((count, length, length), np.float32)

    def __call__(self, query: Array, key: Array, mask_bias: Array) -> Array:
        self.graph.execute(
            {
                self._query: query,
                self._key: key.transpose(0, 2, 1),
                self._scale: self._scale_value,
                self._mask_bias: mask_bias,
                self._scores: self._out,
            }
        )
        return self._out


class FusedContext:
    """weights (L, T, T) · value (L, T, D), with L = H·B."""

    def __init__(self, count: int, length: int, size: int):
        self.graph = graph = new_graph()
        self._weights = declare(graph, "weights", [count, length, length])
        self._value = declare(graph, "value", [count, length, size])
        self._context = store(graph.matmul(self._weights, self._value))
        graph.build()
        self._out = np.empty((count, length, size), np.float32)

    def __call__(self, weights: Array, value: Array) -> Array:
        self.graph.execute({self._weights: weights, self._value: value, self._context: self._out})
        return self._out


class Fused:
    """encoder.Products by Verglas; `steps` holds what was compiled, by the name of the product and its sizes."""

    def __init__(self, heads: int):
        self._heads = heads
        self.steps: dict[tuple, object] = {}

    def heads(self, layer: Layer, x: Array, batch: int) -> tuple[Array, Array, Array]:
        step = self._step("heads", FusedHeads, self._heads, *x.shape)
        query, key, value = step(x, (layer.query, layer.key, layer.value))
        shape = (self._heads, batch, x.shape[0] // batch, -1)
        return query.reshape(shape), key.reshape(shape), value.reshape(shape)

    def scores(self, query: Array, key: Array, mask_bias: Array) -> Array:
        heads, batch, length, size = query.shape
        step = self._step("scores", FusedScores, heads * batch, length, size)
        bias = np.broadcast_to(mask_bias, (heads, *mask_bias.shape)).reshape(heads * batch, 1, length)
        out = step(query.reshape(-1, length, size), key.reshape(-1, length, size), bias)
        return out.reshape(heads, batch, length, length)

    def context(self, weights: Array, value: Array) -> Array:
        heads, batch, length, size = value.shape
        step = self._step("context", FusedContext, heads * batch, length, size)
        return step(weights.reshape(-1, length, length), value.reshape(-1, length, size)).reshape(value.shape)

    def attention_out(self, layer: Layer, context: Array, residual: Array) -> Array:
        return self._linear("attention_out", layer.attention_out, context, residual)

    def ffn_up(self, layer: Layer, x: Array) -> Array:
        return self._linear("ffn_up", layer.ffn_up, x, gelu=True)

    def ffn_down(self, layer: Layer, wide: Array, residual: Array) -> Array:
        return self._linear("ffn_down", layer.ffn_down, wide, residual)

    def _linear(self, name: str, part: Linear, x: Array, residual: Array | None = None, *, gelu: bool = False) -> Array:
        outputs, inputs = part.weight.shape
        step = self._step(name, FusedLinear, x.shape[0], inputs, outputs, gelu=gelu, residual=residual is not None)
        return step(x, part, residual)

    def _step(self, name: str, make: Callable[..., S], *sizes: int, **options: bool) -> S:
        found = self.steps.get((name, *sizes))
        if found is None:
            found = self.steps[(name, *sizes)] = make(*sizes, **options)
        return found
