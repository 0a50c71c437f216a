"""The encoder in float64, sentence by sentence, straight from the weight file.

Shares nothing with encoder.py: own names, own loop over heads, no padding and so no mask.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from .text import Tokens

Array = NDArray[np.float64]

HEADS = 12
EPSILON = 1e-12

_erf = np.vectorize(math.erf, otypes=[np.float64])


def embed(tensors: Mapping[str, NDArray], tokens: Tokens) -> Array:
    """Normalised sentence embeddings (batch, hidden); tensors as `weights.load_tensors` gives them."""
    wide = {name: tensor.astype(np.float64) for name, tensor in tensors.items() if tensor.dtype == np.float32}
    return np.stack([_embed_one(wide, ids[kept]) for ids, kept in zip(tokens.ids, tokens.mask, strict=True)])


def _embed_one(w: Mapping[str, Array], ids: NDArray[np.int64]) -> Array:
    x = w["embeddings.word_embeddings.weight"][ids]
    x = x + w["embeddings.position_embeddings.weight"][: len(ids)] + w["embeddings.token_type_embeddings.weight"][0]
    x = _layer_norm(w, "embeddings", x)
    layer = 0
    while f"encoder.layer.{layer}.output.dense.weight" in w:
        name = f"encoder.layer.{layer}"
        attended = _dense(w, f"{name}.attention.output.dense", _attention(w, f"{name}.attention.self", x))
        x = _layer_norm(w, f"{name}.attention.output", x + attended)
        wide = _dense(w, f"{name}.intermediate.dense", x)
        wide = 0.5 * wide * (1.0 + _erf(wide / math.sqrt(2.0)))
        x = _layer_norm(w, f"{name}.output", x + _dense(w, f"{name}.output.dense", wide))
        layer += 1
    mean = x.mean(axis=0)
    return mean / np.sqrt(np.sum(mean * mean))


def _attention(w: Mapping[str, Array], name: str, x: Array) -> Array:
    query, key, value = (_dense(w, f"{name}.{part}", x) for part in ("query", "key", "value"))
    size = x.shape[1] // HEADS
    contexts = []
    for head in range(HEADS):
        columns = slice(head * size, (head + 1) * size)
        scores = query[:, columns] @ key[:, columns].T / math.sqrt(size)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        contexts.append(weights / weights.sum(axis=1, keepdims=True) @ value[:, columns])
    return np.concatenate(contexts, axis=1)


def _dense(w: Mapping[str, Array], name: str, x: Array) -> Array:
    return np.einsum("mk,nk->mn", x, w[f"{name}.weight"], optimize=True) + w[f"{name}.bias"]


def _layer_norm(w: Mapping[str, Array], name: str, x: Array) -> Array:
    centred = x - x.mean(axis=1, keepdims=True)
    spread = np.sqrt((centred**2).mean(axis=1, keepdims=True) + EPSILON)
    return centred / spread * w[f"{name}.LayerNorm.weight"] + w[f"{name}.LayerNorm.bias"]
