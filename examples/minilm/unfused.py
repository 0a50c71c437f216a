"""The products in plain NumPy, one array operation after another: what fusing is measured against."""

from __future__ import annotations

import math

import numpy as np

from .weights import Array, Layer, Linear


class Unfused:
    def __init__(self, heads: int):
        self._heads = heads

    def heads(self, layer: Layer, x: Array, batch: int) -> tuple[Array, Array, Array]:
        shape = (batch, x.shape[0] // batch, self._heads, -1)
        query, key, value = (
            linear(x, part).reshape(shape).transpose(2, 0, 1, 3) for part in (layer.query, layer.key, layer.value)
        )
        return query, key, value

    def scores(self, query: Array, key: Array, mask_bias: Array) -> Array:
        scale = np.float32(1 / math.sqrt(query.shape[-1]))
        return query @ key.transpose(0, 1, 3, 2) * scale + mask_bias

    def context(self, weights: Array, value: Array) -> Array:
        return weights @ value

    def attention_out(self, layer: Layer, context: Array, residual: Array) -> Array:
        return linear(context, layer.attention_out) + residual

    def ffn_up(self, layer: Layer, x: Array) -> Array:
        return gelu(linear(x, layer.ffn_up))

    def ffn_down(self, layer: Layer, wide: Array, residual: Array) -> Array:
        return linear(wide, layer.ffn_down) + residual


def linear(x: Array, part: Linear) -> Array:
    return x @ part.weight.T + part.bias


def gelu(x: Array) -> Array:
    return np.float32(0.5) * x * (1 + erf(x * np.float32(math.sqrt(0.5))))


def erf(x: Array) -> Array:
    """NumPy has none. Source: Abramowitz and Stegun 7.1.26, absolute error below 1.5e-7; in place after the first two arrays."""
    size = np.abs(x)
    t = 1 / (1 + np.float32(0.3275911) * size)
    value = np.float32(1.061405429) * t
    for coefficient in (-1.453152027, 1.421413741, -0.284496736, 0.254829592):
        value += np.float32(coefficient)
        value *= t
    np.square(size, out=size)
    np.negative(size, out=size)
    np.exp(size, out=size)
    value *= size
    np.subtract(1, value, out=value)
    return np.copysign(value, x, out=value)
