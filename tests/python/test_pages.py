"""Code that the pages show, run as a reader would; blocks that begin in the middle get what stands before them in words."""

import importlib.util
import json
import re
from pathlib import Path

import numpy as np
import pytest
import verglas
from support import BF16, integers, lacking

DOCS = Path(__file__).resolve().parents[2] / "docs"


def blocks(page, language="python"):
    return re.findall(rf"^```{language}\n(.*?)^```$", (DOCS / page).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_examples_of_the_frameworks_run(framework):
    (block,) = [b for b in blocks("frameworks.md") if f"import {framework}\n" in b]
    if importlib.util.find_spec(framework) is None:
        lacking({"jax": "xla"}.get(framework, framework), f"{framework} is not installed")
    if framework == "jax" and verglas._verglas.xla_targets() is None:
        lacking("xla", "the module was built without JAX' headers")
    exec(compile(block, "frameworks.md", "exec"), {})


def test_examples_of_the_python_page_run():
    linear, overrides = blocks("python.md")
    L, M, N, K, rows = 1, 16, 8, 32, 5
    names = {"verglas": verglas, "M": M, "N": N, "K": K, "L": L, "rows": rows}
    names |= {
        "activations": integers((1, M, K), dtype=BF16),
        "weight": integers((N, K), 1, BF16),
        "out": np.empty((1, M, N), BF16),
    }
    exec(compile(linear, "python.md", "exec"), names)
    want = np.maximum(names["activations"].astype(np.float32) @ names["weight"].T.astype(np.float32), 0)
    np.testing.assert_array_equal(names["out"].astype(np.float32), want)
    names["out"][:] = 77
    names["pack"] = {names["x"]: names["activations"], names["w"]: names["weight"], names["y"]: names["out"]}
    exec(compile(overrides, "python.md", "exec"), names)
    np.testing.assert_array_equal(names["out"].astype(np.float32)[:, :rows], want[:, :rows])
    assert (names["out"][:, rows:] == 77).all()


def test_example_of_grouped_products_runs():
    (block,) = blocks("moe.md")
    graph = verglas.Graph(io_data_type="fp32")
    tokens, weights = integers((1, 6, 8)), integers((2, 8, 4), 1)
    offsets = np.array([0, 4], np.int32)
    names = {"graph": graph}
    names |= {n: graph.tensor_like(x) for n, x in [("token", tokens), ("weight", weights), ("first_token_offset", offsets)]}
    exec(compile(block, "moe.md", "exec"), names)
    y = np.empty((1, 6, 4), np.float32)
    names["y"].set_output(True)
    graph.execute([tokens, weights, offsets, y])
    np.testing.assert_array_equal(y[0], np.concatenate([tokens[0, :4] @ weights[0], tokens[0, 4:] @ weights[1]]))


def test_the_graph_file_of_its_page_is_one():
    (block,) = blocks("graph-file.md", "json")
    graph = verglas.Graph.from_json(block)
    graph.build()
    assert json.loads(graph.to_json())["name"] == "bias_gelu"
    assert [o.name for o in graph.plan.operands()] == ["x", "w", "bias", "y"]


def test_every_page_with_code_is_run_by_a_test():
    pages = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md") if "```python" in page.read_text(encoding="utf-8")}
    here = {"frameworks.md", "python.md", "moe.md"}
    elsewhere = {"compat-cudnn.md"} | {page for page in pages if page.startswith("ops/")}
    assert pages == here | elsewhere
