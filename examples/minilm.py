#!/usr/bin/env python3
"""Sentence embeddings by all-MiniLM-L6-v2, every product of the encoder one Verglas graph together with what follows it.

Prints how alike the sentences are, how far the embeddings are from a float64 forward pass, what each step of a layer became, and
the time against the same forward pass in plain NumPy. Exit code 1 when the embeddings are outside the bound of docs/minilm.md.

    pip install . && pip install --no-deps -r examples/requirements.txt
    python examples/minilm.py
"""

from __future__ import annotations

import argparse
import os
import sys

import numpy as np
from minilm import encoder, reference, timing, weights
from minilm.fused import Fused
from minilm.text import Tokenizer, Tokens
from minilm.unfused import Unfused

TOPICS = {
    "cooking": (
        "Simmer the tomatoes with garlic and basil for twenty minutes.",
        "A good pasta sauce needs time, olive oil and fresh herbs.",
        "Knead the bread dough until it is smooth and elastic.",
    ),
    "astronomy": (
        "The telescope photographed a spiral galaxy two million light years away.",
        "Astronomers found a planet that orbits a dim red star.",
        "Saturn's rings are made of ice and dust.",
    ),
    "money": (
        "The central bank raised interest rates by a quarter point.",
        "Shares fell after the company reported lower profits.",
    ),
}
# Random rounding of one fp32 sum of K = 1536 terms of unit size; docs/minilm.md says why this holds for the whole encoder.
BOUND = 1536**0.5 * 2.0**-24
STEPS = ("heads", "scores", "context", "attention_out", "ffn_up", "ffn_down")


def main() -> int:
    options = parse_arguments()
    try:
        files = weights.find_files()
    except FileNotFoundError as missing:
        print(missing, file=sys.stderr)
        return 1
    model = weights.load_model(files)
    tokenizer = Tokenizer(files)
    labels = [topic for topic, sentences in TOPICS.items() for _ in sentences]
    sentences = [sentence for group in TOPICS.values() for sentence in group]
    tokens = tokenizer(sentences)
    fused = Fused(model.heads)
    embeddings = encoder.embed(model, tokens, fused)

    print(f"all-MiniLM-L6-v2: {len(model.layers)} layers, {model.words.shape[1]} wide, {model.heads} heads")
    print_similarities(labels, sentences, embeddings)
    within = print_difference(embeddings, reference.embed(weights.load_tensors(files), tokens))
    print_graphs(fused, len(model.layers))
    if options.rounds:
        many = tokenizer((sentences * options.batch)[: options.batch])
        print_times(model, many, fused, options.rounds)
    return 0 if within else 1


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--batch", type=int, default=32, help="sentences in the batch that is timed (default 32)")
    parser.add_argument("--rounds", type=int, default=3, help="timed batches of five runs each; 0 times nothing (default 3)")
    return parser.parse_args()


def print_similarities(labels: list[str], sentences: list[str], embeddings: np.ndarray) -> None:
    similar = embeddings @ embeddings.T
    print("\nCosine similarity")
    print(" " * 14 + "".join(f"{index + 1:>6}" for index in range(len(sentences))))
    for index, (label, row) in enumerate(zip(labels, similar, strict=True)):
        print(f"{index + 1:>3} {label:<10}" + "".join(f"{value:6.2f}" for value in row) + f"   {sentences[index]}")
    nearest = np.where(np.eye(len(sentences), dtype=bool), -np.inf, similar).argmax(axis=1)
    together = sum(labels[index] == labels[other] for index, other in enumerate(nearest))
    print(f"{together} of {len(sentences)} sentences are nearest to one of their own topic")


def print_difference(embeddings: np.ndarray, exact: np.ndarray) -> bool:
    largest = np.abs(embeddings - exact).max()
    within = bool(largest <= BOUND)
    verdict = "within" if within else "OUTSIDE"
    print(f"\nLargest difference from the float64 forward pass: {largest:.2e}, {verdict} the bound {BOUND:.2e}")
    return within


def print_graphs(fused: Fused, layers: int) -> None:
    print(f"\nOne layer of {layers}: {len(fused.steps)} graphs, compiled once and used by all layers")
    for (name, *_), step in fused.steps.items():
        print(f"  {name:<14}{step.graph.describe()}")


def print_times(model: weights.Model, tokens: Tokens, fused: Fused, rounds: int) -> None:
    plain = Unfused(model.heads)
    ours, theirs = timing.interleave(lambda products: encoder.embed(model, tokens, products), (fused, plain), rounds)
    batch, length = tokens.ids.shape
    print(f"\nTime for {batch} sentences of up to {length} tokens, median of {len(ours)} runs each, in turn")
    core_type = os.environ.get("OPENBLAS_CORETYPE")
    if core_type:
        print(f"(OPENBLAS_CORETYPE={core_type} is set: NumPy's products may be slower here than they could be)")
    print(f"  {'':<14}{'Verglas':>11}{'NumPy':>11}{'NumPy / Verglas':>18}")
    for part in (*STEPS, None):
        a, b = timing.median(ours, part), timing.median(theirs, part)
        print(f"  {part or 'whole encoder':<14}{a * 1e3:8.2f} ms{b * 1e3:8.2f} ms{b / a:18.2f}")


if __name__ == "__main__":
    sys.exit(main())
