"""Sentences to token ids: the model's own WordPiece tokenizer, padded to the longest sentence of the batch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Tokens:
    ids: NDArray[np.int64]  # (batch, tokens), padded with the id of [PAD]
    mask: NDArray[np.bool_]  # (batch, tokens), false where padded


class Tokenizer:
    def __init__(self, files: Path):
        from tokenizers import Tokenizer as WordPiece

        limit = json.loads((files / "sentence_bert_config.json").read_text(encoding="utf-8"))["max_seq_length"]
        self._word_piece = WordPiece.from_file(str(files / "tokenizer.json"))
        # tokenizer.json asks for 128 tokens, always: other lengths give the same embeddings, since padding is masked.
        self._word_piece.enable_truncation(max_length=limit)
        self._word_piece.enable_padding()

    def __call__(self, sentences: Sequence[str]) -> Tokens:
        encoded = self._word_piece.encode_batch(list(sentences))
        return Tokens(
            ids=np.array([one.ids for one in encoded], dtype=np.int64),
            mask=np.array([one.attention_mask for one in encoded], dtype=np.bool_),
        )
