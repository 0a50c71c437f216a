"""A plan compiled ahead of time, loaded and run on a real GPU: from a path, from bytes, and by the command."""

import importlib
import json
import os
import subprocess
from pathlib import Path

import pytest
import verglas
from support import lacking

required = os.environ.get("VERGLAS_REQUIRE", "").split(",")
torch = importlib.import_module("torch") if "torch" in required else pytest.importorskip("torch")
if not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9:
    lacking("gpu", "torch sees no device of compute capability 9.0", module=True)

ROOT = Path(__file__).parents[2]
M, N, K = 130, 264, 72
TOOL = os.environ.get("VERGLAS_TOOL") or next(map(str, ROOT.glob("build/*/src/tool/verglas")), None)
if TOOL is None:
    lacking("tool", "the command verglas is not built (VERGLAS_TOOL names it)", module=True)


def tool(*arguments):
    done = subprocess.run([TOOL, *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plan")
    graph = verglas.Graph(io_data_type="bf16")
    a = graph.tensor(name="a", dim=(1, M, K), stride=(M * K, K, 1))
    b = graph.tensor(name="b", dim=(1, K, N), stride=(K * N, 1, K))
    graph.matmul(a, b).set_output(True).set_name("d")
    (folder / "graph.json").write_text(graph.to_json())
    tool("compile", folder / "graph.json", "-o", folder / "plan.vgp")
    return folder / "plan.vgp"


@pytest.mark.parametrize("from_bytes", [False, True])
def test_a_loaded_plan_runs(path, from_bytes):
    plan = verglas.load_plan(path.read_bytes() if from_bytes else path, device="cuda:0")
    assert plan.engine == "sm90"
    for m in (M, 33):
        a = torch.randint(-3, 4, (1, m, K), device="cuda").to(torch.bfloat16)
        b = torch.randint(-3, 4, (1, N, K), device="cuda").to(torch.bfloat16).transpose(1, 2)
        d = torch.full((1, m, N), float("nan"), dtype=torch.bfloat16, device="cuda")
        plan.execute({"a": a, "b": b, "d": d})
        assert torch.equal(d, (a.double() @ b.double()).to(torch.bfloat16))


def test_the_command_runs_and_explains_it(path):
    report = json.loads(tool("run", path, "--random", 3, "--check", "--json"))
    assert report["right"] and report["engine"] == "sm90"
    report = json.loads(tool("explain", path, "--json"))
    assert report["loaded"] and report["plan"]["checks"]
    assert "checks of a call" in tool("explain", path)
