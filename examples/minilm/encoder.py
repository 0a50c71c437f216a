"""The forward pass in fp32 around six products; who computes the products is the caller's choice.

Symbols: B sentences, T tokens, H heads, D head size; rows R = B·T, width W = H·D. Heads come first in (H, B, T, D), so that one
batched product makes them and (H·B, T, D) is the same memory.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from .text import Tokens
from .weights import Array, Layer, Model, Norm

MASKED = np.float32(-1e9)  # Added to a score: exp() of what is left is 0 in fp32.


class Products(Protocol):
    """The six products of a layer, each with what follows it."""

    def heads(self, layer: Layer, x: Array, batch: int) -> tuple[Array, Array, Array]:
        """Query, key, value of x (R, W), biased, each (H, B, T, D)."""

    def scores(self, query: Array, key: Array, mask_bias: Array) -> Array:
        """query · keyᵀ / √D + mask_bias (B, 1, T), as (H, B, T, T)."""

    def context(self, weights: Array, value: Array) -> Array:
        """weights · value, (H, B, T, D)."""

    def attention_out(self, layer: Layer, context: Array, residual: Array) -> Array:
        """context (R, W) · weightᵀ + bias + residual (R, W)."""

    def ffn_up(self, layer: Layer, x: Array) -> Array:
        """gelu(x (R, W) · weightᵀ + bias), (R, 4W)."""

    def ffn_down(self, layer: Layer, wide: Array, residual: Array) -> Array:
        """wide (R, 4W) · weightᵀ + bias + residual (R, W)."""


def embed(model: Model, tokens: Tokens, products: Products) -> Array:
    """Sentence embeddings (B, W): mean over the tokens that are not padding, each of Euclidean length 1."""
    batch, length = tokens.ids.shape
    mask_bias = np.where(tokens.mask, np.float32(0), MASKED)[:, None, :]  # (B, 1, T)
    x = model.words[tokens.ids] + model.positions[:length] + model.kinds[0]
    x = layer_norm(x.reshape(batch * length, -1), model.norm, model.epsilon)
    for layer in model.layers:
        query, key, value = products.heads(layer, x, batch)
        context = products.context(softmax(products.scores(query, key, mask_bias)), value)
        rows = context.transpose(1, 2, 0, 3).reshape(x.shape)  # (H, B, T, D) to (R, W): copies
        x = layer_norm(products.attention_out(layer, rows, x), layer.attention_norm, model.epsilon)
        x = layer_norm(products.ffn_down(layer, products.ffn_up(layer, x), x), layer.ffn_norm, model.epsilon)
    kept = tokens.mask[:, :, None].astype(np.float32)
    mean = (x.reshape(batch, length, -1) * kept).sum(axis=1) / kept.sum(axis=1)
    return mean / np.linalg.norm(mean, axis=1, keepdims=True)


def layer_norm(x: Array, norm: Norm, epsilon: float) -> Array:
    centred = x - x.mean(axis=1, keepdims=True)
    variance = np.square(centred).mean(axis=1, keepdims=True)
    return centred / np.sqrt(variance + np.float32(epsilon)) * norm.scale + norm.shift


def softmax(scores: Array) -> Array:
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return weights
