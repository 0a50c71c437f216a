"""The command `verglas`: exit codes, messages, reports, arrays in and out, against NumPy."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from support import lacking

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(ROOT.glob("examples/0*.json"))


def find_tool():
    if named := os.environ.get("VERGLAS_TOOL"):
        return named
    built = sorted(ROOT.glob("build/*/src/tool/verglas"), key=lambda path: path.stat().st_mtime)
    return str(built[-1]) if built else None


TOOL = find_tool()
if TOOL is None:
    lacking("tool", "the command verglas is not built (VERGLAS_TOOL names it)", module=True)


def call(*arguments, code=0, **environment):
    """Runs the command and answers its standard output; of one that must not succeed, its standard error."""
    done = subprocess.run(
        [TOOL, *map(str, arguments)], capture_output=True, text=True, timeout=120, env={**os.environ, **environment}, check=False
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout if code == 0 else done.stderr


@pytest.fixture
def graph(tmp_path):
    """A graph file: one linear layer with bias and relu, B with K contiguous."""

    def write(dtype="fp32", m=5, n=7, k=6, op="relu"):
        path = tmp_path / f"{dtype}.json"
        description = {
            "verglas_graph": 1,
            "name": "layer",
            "io_data_type": dtype,
            "tensors": [
                {"name": "x", "dim": [1, m, k], "stride": [m * k, k, 1]},
                {"name": "w", "uid": 40, "dim": [1, k, n], "stride": [n * k, 1, k]},
                {"name": "bias", "dim": [1, 1, n], "stride": [n, n, 1], "data_type": "fp32"},
                {"name": "p"},
                {"name": "s"},
                {"name": "y", "output": True},
            ],
            "nodes": [
                {"op": "matmul", "inputs": ["x", 40], "output": "p"},
                {"op": "add", "inputs": ["p", "bias"], "output": "s"},
                {"op": op, "inputs": ["s"], "output": "y"},
            ],
        }
        path.write_text(json.dumps(description))
        return path

    return write


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
@pytest.mark.parametrize("values", ["integers", "normal"])
def test_examples_run_and_are_right(path, values):
    report = json.loads(call("run", path, "--random", 7, "--values", values, "--check", "--json"))
    assert report["right"] is True
    assert all(entry["wrong"] == 0 and entry["elements"] > 0 for entry in report["check"])


def test_every_plan_agrees_bit_for_bit_on_integers(tmp_path):
    path = EXAMPLES[0]
    count = len(json.loads(call("explain", path, "--json"))["plans"])
    results = []
    for plan in range(count):
        call("run", path, "--random", 1, "--plan", plan, "--output", f"c={tmp_path}/c{plan}.npy")
        results.append(np.load(f"{tmp_path}/c{plan}.npy"))
    assert count >= 1
    assert all(np.array_equal(result, results[0]) for result in results)


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_of_numpy_go_in_and_come_out(graph, tmp_path, dtype, order):
    kind = {"fp32": np.float32, "fp16": np.float16, "bf16": ml_dtypes.bfloat16}[dtype]
    random = np.random.default_rng(3)
    x = random.integers(-4, 5, (5, 6)).astype(kind)
    w = random.integers(-4, 5, (1, 6, 7)).astype(kind)
    bias = random.integers(-4, 5, (7,)).astype(np.float32)
    for name, array in {"x": x, "w": w, "bias": bias}.items():
        np.save(tmp_path / f"{name}.npy", np.asarray(array, order=order))
    inputs = [
        argument
        for name in ("x", "40", "bias")
        for argument in ("--input", f"{name}={tmp_path}/{name if name != '40' else 'w'}.npy")
    ]
    call("run", graph(dtype), *inputs, "--check", "--output", f"y={tmp_path}/y.npy")
    y = np.load(tmp_path / "y.npy").view(kind)
    want = np.maximum(x.astype(np.float32) @ w[0].astype(np.float32) + bias, 0).astype(kind)
    assert y.shape == (1, 5, 7)
    assert np.array_equal(y[0], want)


def test_random_numbers_are_those_of_the_seed(graph):
    path = graph()
    first = json.loads(call("run", path, "--random", 5, "--json"))
    assert json.loads(call("run", path, "--random", 5, "--json")) == first
    assert json.loads(call("run", path, "--random", 6, "--json"))["outputs"] != first["outputs"]


def checked(tmp_path, tensors, nodes, **options):
    """What --check says of the outputs of a graph on random integers; exit code 0: nothing is wrong."""
    path = tmp_path / "checked.json"
    path.write_text(json.dumps({"verglas_graph": 1, "io_data_type": "fp32", "tensors": tensors, "nodes": nodes}))
    report = json.loads(call("run", path, "--random", 3, "--check", "--json", **options))
    return {entry["output"]: entry for entry in report["check"]}


def test_the_check_passes_over_nodes_that_nothing_stored_depends_on(tmp_path):
    tensors = [
        {"name": "a", "dim": [4, 6], "stride": [6, 1]},
        {"name": "b", "dim": [6, 5], "stride": [5, 1]},
        {"name": "unread", "dim": [4, 5], "stride": [5, 1]},
        {"name": "c", "output": True},
        {"name": "d"},
        {"name": "e"},
    ]
    nodes = [
        {"op": "matmul", "inputs": ["a", "b"], "output": "c"},
        {"op": "add", "inputs": ["c", "unread"], "output": "d"},
        {"op": "relu", "inputs": ["unread"], "output": "e"},
    ]
    assert checked(tmp_path, tensors, nodes)["c"]["exact"] == 20


def test_the_check_knows_the_mean_of_no_rows(tmp_path):
    tensors = [
        {"name": "token", "dim": [1, 2, 3], "stride": [6, 3, 1]},
        {"name": "weight", "dim": [4, 3, 5], "stride": [15, 5, 1]},
        {"name": "offset", "dim": [4], "stride": [1], "data_type": "int32"},
        {"name": "y"},
        {"name": "mean", "dim": [4, 1, 5], "output": True},
    ]
    nodes = [
        {"op": "moe_grouped_matmul", "inputs": ["token", "weight", "offset"], "output": "y"},
        {"op": "reduction", "mode": "avg", "inputs": ["y", "offset"], "output": "mean"},
    ]
    assert checked(tmp_path, tensors, nodes)["mean"]["wrong"] == 0


@pytest.mark.parametrize("score", ["fp32", "bf16"])
def test_the_check_adds_up_the_rows_of_each_token(tmp_path, score):
    """On integers exactly; random numbers of routing are rows, tokens and slots that there are."""
    tensors = [
        {"name": "x", "dim": [1, 24, 6], "stride": [144, 6, 1]},
        {"name": "w", "dim": [3, 6, 5], "stride": [30, 5, 1]},
        {"name": "offset", "dim": [3], "stride": [1], "data_type": "int64"},
        *({"name": name, "dim": [24], "stride": [1], "data_type": "int32"} for name in ("index", "slot")),
        {"name": "score", "dim": [8, 3], "stride": [3, 1], "data_type": score},
        {"name": "y", "output": True},
    ]
    inputs = ["x", "w", "offset", "index", "slot", "score"]
    nodes = [{"op": "moe_grouped_matmul", "inputs": inputs, "output": "y", "mode": "combine", "top_k": 3}]
    report = checked(tmp_path, tensors, nodes)["y"]
    assert report["wrong"] == report["open"] == 0
    x, w = np.arange(-72, 72, dtype=np.float32).reshape(1, 24, 6) % 7, np.arange(90, dtype=np.float32).reshape(3, 6, 5) % 5
    arrays = {"x": x, "w": w, "offset": np.array([0, 9, 9]), "index": np.arange(24, dtype=np.int32) % 8}
    arrays |= {"slot": np.arange(24, dtype=np.int32) // 8}
    for name, a in arrays.items():
        np.save(tmp_path / f"{name}.npy", a)
    given = [argument for name in arrays for argument in ("--input", f"{name}={tmp_path}/{name}.npy")]
    path, out = tmp_path / "checked.json", tmp_path / "y.npy"
    call("run", path, *given, "--random", 5, "--values", "integers", "--check", "--output", f"y={out}")
    assert np.load(out).shape == (1, 8, 5) and np.load(out).any()
    (tuned,) = json.loads(call("tune", path, "--json", *QUICK, VERGLAS_CACHE=str(tmp_path)))
    assert tuned["plans"] and not any(plan.get("failure") for plan in tuned["plans"])


def test_reordered_scales_of_logical_extents_have_whole_atoms(tmp_path):
    tensors = [
        {"name": "a", "dim": [5, 64], "stride": [64, 1], "data_type": "fp8_e4m3"},
        {"name": "sa", "dim": [5, 2], "stride": [2, 1], "data_type": "fp8_e8m0", "reordering": "f8_128x4"},
        {"name": "b", "dim": [64, 7], "stride": [1, 64], "data_type": "fp8_e4m3"},
        {"name": "sb", "dim": [2, 7], "stride": [1, 2], "data_type": "fp8_e8m0", "reordering": "f8_128x4"},
        {"name": "x"},
        {"name": "w"},
        {"name": "y", "output": True},
    ]
    nodes = [
        {"op": "block_scale_dequantize", "inputs": ["a", "sa"], "output": "x", "block_size": [1, 32]},
        {"op": "block_scale_dequantize", "inputs": ["b", "sb"], "output": "w", "block_size": [32, 1]},
        {"op": "matmul", "inputs": ["x", "w"], "output": "y"},
    ]
    assert checked(tmp_path, tensors, nodes)["y"]["open"] == 35
    np.save(tmp_path / "sa.npy", np.full(512, 127, np.uint8))
    call("run", tmp_path / "checked.json", "--random", 3, "--input", f"sa={tmp_path}/sa.npy")


def test_repeat_reports_times(graph):
    report = json.loads(call("run", graph(), "--random", 1, "--repeat", 3, "--json"))
    assert report["seconds"]["runs"] == 3
    assert 0 < report["seconds"]["min"] <= report["seconds"]["median"] <= report["seconds"]["max"]


def test_missing_and_unknown_operands_are_named(graph, tmp_path):
    path = graph()
    assert "[tool.operand] input 'x': got no file, wanted --input x=FILE.npy, or --random SEED" in call("run", path, code=1)
    np.save(tmp_path / "a.npy", np.zeros((5, 6), np.float32))
    file = f"{tmp_path}/a.npy"
    assert "[tool.operand] --input z: got no operand of that name, wanted one of x, w, bias" in call(
        "run", path, "--random", 1, "--input", f"z={file}", code=1
    )
    assert "[tool.operand] --input y: " in call("run", path, "--random", 1, "--input", f"y={file}", code=1)
    assert "[tool.operand] --output x: " in call("run", path, "--random", 1, "--output", f"x={file}", code=1)
    assert "[tool.operand] --input x: got it twice" in call(
        "run", path, "--random", 1, "--input", f"x={file}", "--input", f"x={file}", code=1
    )
    call("run", "--random", 1, "--input", f"x={file}", path)


def test_names_may_have_an_equals_sign_and_ambiguous_ones_want_the_uid(tmp_path):
    def product(*names):
        tensors = [
            {"name": names[0], "uid": 1, "dim": [5, 6], "stride": [6, 1]},
            {"name": names[1], "uid": 2, "dim": [6, 4], "stride": [4, 1]},
            {"name": "y", "uid": 3},
        ]
        path = tmp_path / "named.json"
        nodes = [{"op": "matmul", "inputs": [1, 2], "output": 3}]
        path.write_text(json.dumps({"verglas_graph": 1, "io_data_type": "fp32", "tensors": tensors, "nodes": nodes}))
        return path

    np.save(tmp_path / "a=b.npy", np.zeros((5, 6), np.float32))
    file = f"{tmp_path}/a=b.npy"
    for name in ("x", "x=", "x=1", "x=1=2"):
        assert "sum 0," in call("run", product(name, "w"), "--random", 1, "--input", f"{name}={file}")
        assert "sum 0," in call("run", product(name, "w"), "--random", 1, "--input", f"1={file}")
    assert "[tool.operand] --input x: got 2 operands of that name, wanted its uid" in call(
        "run", product("x", "x"), "--random", 1, "--input", f"x={file}", code=1
    )
    assert "sum 0," in call("run", product("x", "x"), "--random", 1, "--input", f"1={file}")


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.zeros((5, 6), np.float16), "[tool.array] array 'FILE': got fp16, wanted fp32 as tensor 'x' is declared"),
        (
            np.zeros((6, 5), np.float32),
            "[tool.array] array 'FILE': got extents (6, 5), wanted (1, 5, 6) as tensor 'x' is declared",
        ),
        (np.zeros((5, 6), ">f4"), "[file.npy_type] array 'FILE': got elements '>f4'"),
        (np.zeros((5, 6), np.float64), "[file.npy_type] array 'FILE': got elements '<f8'"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(graph, tmp_path, array, words):
    file = f"{tmp_path}/x.npy"
    np.save(file, array)
    assert words.replace("FILE", file) in call("run", graph(), "--random", 1, "--input", f"x={file}", code=1)


def test_arrays_that_were_cut_short_are_refused_and_nothing_is_written(graph, tmp_path):
    file = tmp_path / "x.npy"
    np.save(file, np.zeros((5, 6), np.float32))
    file.write_bytes(file.read_bytes()[:-1])
    text = call("run", graph(), "--random", 1, "--input", f"x={file}", "--output", f"y={tmp_path}/y.npy", code=1)
    assert "[file.npy_size]" in text and "got 119 bytes of elements, wanted 120 for shape (5, 6) of fp32" in text
    assert not (tmp_path / "y.npy").exists()


def test_files_that_are_not_there_are_named(tmp_path):
    text = call("run", tmp_path / "no.json", "--random", 1, code=1)
    assert f"io_failed [file.open] file '{tmp_path}/no.json': got No such file or directory" in text
    assert "[file.open]" in call("explain", tmp_path, code=1)


def test_engines_and_plans_that_are_not_there_are_named(graph):
    assert "[tool.engine] --engine abacus: got no engine of that name, wanted one of cpu" in call(
        "run", graph(), "--random", 1, "--engine", "abacus", code=1
    )
    assert "[plan.index] plan: got index 99" in call("run", graph(), "--random", 1, "--plan", 99, code=1)
    assert json.loads(call("run", graph(), "--random", 1, "--engine", "cpu", "--json"))["engine"] == "cpu"


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["fly"],
        ["run"],
        ["run", "g.json", "--unknown"],
        ["run", "g.json", "--plan", "-1"],
        ["run", "g.json", "--plan", "0", "--engine", "cpu"],
        ["run", "g.json", "--values", "normal"],
        ["run", "g.json", "--random", "1", "--values", "zeros"],
        ["run", "g.json", "--random", "many"],
        ["run", "g.json", "--random", "-1"],
        ["run", "g.json", "--random", "9223372036854775808"],
        ["run", "g.json", "--plan", "1e1"],
        ["explain", str(EXAMPLES[0]), "--plan", "-1"],
        ["run", "g.json", "--repeat", "0"],
        ["tune", str(EXAMPLES[0]), "--seconds", "nan"],
        ["bench", str(EXAMPLES[0]), "--seconds", "nan"],
        ["bench", str(EXAMPLES[0]), "--seconds", "0.00001"],
        ["bench", str(EXAMPLES[0]), "--seconds", "1e"],
        ["run", str(EXAMPLES[0]), "--random", "1", "--device", "cuda:-1"],
        ["explain", str(EXAMPLES[0]), "--device", "tpu"],
        ["cache"],
        ["explain"],
    ],
    ids=lambda arguments: " ".join(arguments).replace(f"{ROOT}/", ""),
)
def test_wrong_usage_is_code_2(arguments):
    assert call(*arguments, code=2)


@pytest.mark.parametrize(
    "arguments,text",
    [
        (["fly"], "verglas: got 'fly', wanted one of doctor, run, explain, compile, tune, bench, cache"),
        ([], "verglas: got no command, wanted one of doctor,"),
        (["cache", "wash"], "verglas cache: got 'wash', wanted one of list, verify, clear"),
        (["tune"], "verglas tune: graph is required"),
        (["cache", "list", "all"], "verglas cache list: The following argument was not expected: all"),
    ],
)
def test_wrong_usage_names_the_command_and_what_there_is(arguments, text):
    said = call(*arguments, code=2)
    assert said.startswith(text)
    assert said.endswith(f"Run '{text.split(':')[0]} --help' for more information.\n")


def test_an_input_without_a_file_is_wrong_usage(graph):
    assert "'x' is not of the form NAME=FILE.npy" in call("run", graph(), "--random", 1, "--input", "x", code=2)


def test_help_and_version():
    assert "explain" in call("--help")
    assert "--check" in call("run", "--help")
    assert call("--version").startswith("verglas 0.")


def test_explain_says_what_a_graph_becomes(graph):
    text = call("explain", graph(op="gelu"))
    for words in (
        "matmul+bias+gelu → cpu[",
        "chain L=1 M=5 N=7 K=6",
        "store v3 → r3",
        "predicted",
        "call.overlap",
        "bytes 316 read, 140 written",
    ):
        assert words in text
    report = json.loads(call("explain", graph(op="gelu"), "--json"))
    assert report["served"] and report["chain"]["m"] == 5 and report["plans"][0]["engine"] == "cpu"
    assert report["cost"]["product_operations"] == 2 * 5 * 6 * 7
    assert report["cost"]["bytes_read"] == 4 * (5 * 6 + 6 * 7 + 7)
    assert report["cost"]["bytes_written"] == 4 * 5 * 7
    assert any("call.output_extent" in line for line in report["recipe"]["checks"])


def test_explain_of_what_no_engine_serves_says_why_and_is_code_1(tmp_path):
    path = tmp_path / "relu.json"
    path.write_text(
        '{"verglas_graph": 1, "tensors": [{"name": "x", "dim": [2], "stride": [1]}, {"name": "y", "output": true}],'
        ' "nodes": [{"op": "relu", "inputs": ["x"], "output": "y"}]}'
    )
    done = subprocess.run([TOOL, "explain", path], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "[chain.no_matmul] the graph has no matmul" in done.stdout
    assert "unsupported [plan.none]" in call("run", path, "--random", 1, code=1)


def test_a_graph_that_is_none_is_refused(tmp_path):
    path = tmp_path / "cycle.json"
    path.write_text(
        '{"verglas_graph": 1, "tensors": [{"name": "x"}, {"name": "y"}], "nodes": ['
        '{"op": "relu", "inputs": ["y"], "output": "x"}, {"op": "exp", "inputs": ["x"], "output": "y"}]}'
    )
    assert "invalid_graph [graph.cyclic]" in call("explain", path, code=1)
    path.write_text('{"verglas_graph": 1, "tensors": [], "nodes": [], "extra": 0}')
    assert "io_failed [file.unknown_key] graph file, /extra" in call("run", path, code=1)


def test_explain_draws(tmp_path):
    if shutil.which("dot") is None:
        lacking("dot", "no Graphviz")
    call("explain", EXAMPLES[4], "--svg", tmp_path / "g.svg")
    svg = (tmp_path / "g.svg").read_text()
    assert "<svg" in svg and "swish" in svg and svg.count("matmul") >= 2


def test_drawing_without_graphviz_says_how_to_get_it(tmp_path):
    text = call("explain", EXAMPLES[0], "--svg", tmp_path / "g.svg", code=1, PATH=str(tmp_path))
    assert "[tool.graphviz] --svg: got no program dot" in text and "apt install graphviz" in text
    assert call("explain", EXAMPLES[0], "--dot", "-", PATH=str(tmp_path)).startswith("digraph")


def test_doctor_reports_and_parses():
    assert "oneDNN" in call("doctor")
    report = json.loads(call("doctor", "--json", VERGLAS_NUM_THREADS="1", VERGLAS_CUDA_DRIVER="off"))
    findings = {finding["what"]: finding for finding in report["findings"]}
    assert findings["processor"]["threads"] == 1
    assert findings["environment"]["VERGLAS_NUM_THREADS"] == "1"
    assert not findings["CUDA driver"]["there"] and "VERGLAS_CUDA_DRIVER" in findings["CUDA driver"]["sentence"]
    assert not findings["GPU"]["there"]
    assert findings["environment"]["there"]


@pytest.mark.parametrize(
    ("variable", "value"),
    [("NUM_THREADS", "many"), ("NUM_THREADS", "0"), ("NUM_THREADS", "1025"), ("CACHE_LIMIT", "1.5G"), ("TUNING", "no")],
)
def test_doctor_says_which_variables_are_ignored(variable, value):
    line = next(line for line in call("doctor", **{f"VERGLAS_{variable}": value}).splitlines() if "environment" in line)
    assert not line.startswith("✓") and f"VERGLAS_{variable}={value} (ignored; it is " in line


def test_a_device_without_a_driver_is_declined_with_what_to_install():
    text = call("run", EXAMPLES[0], "--random", 1, "--device", "cuda", code=1, VERGLAS_CUDA_DRIVER="off")
    assert "unsupported [plan.none]" in text and "cpu: [engine.device]" in text
    done = subprocess.run([TOOL, "explain", EXAMPLES[0], "--device", "cuda:1"], capture_output=True, text=True, check=False)
    assert "declines" in done.stdout


def test_cache_is_listed_verified_and_cleared(tmp_path):
    folder = {"VERGLAS_CACHE": str(tmp_path / "kernels")}
    assert json.loads(call("cache", "list", "--json", **folder))["entries"] == []
    assert "0 entries" in call("cache", "verify", **folder)
    assert "0 files" in call("cache", "clear", **folder)
    assert "no folder is used" in call("cache", "list", VERGLAS_CACHE="off")


def test_extents_beyond_the_machines_memory_are_refused(tmp_path):
    path = tmp_path / "large.json"
    extent = 1 << 30
    path.write_text(
        json.dumps(
            {
                "verglas_graph": 1,
                "tensors": [
                    {"name": "a", "dim": [extent, 1 << 14], "stride": [1 << 14, 1]},
                    {"name": "b", "dim": [1 << 14, 1], "stride": [1, 1]},
                    {"name": "c", "output": True},
                ],
                "nodes": [{"op": "matmul", "inputs": ["a", "b"], "output": "c"}],
            }
        )
    )
    assert "out_of_memory [tool.memory] operand 'a': got 35184372088832 bytes" in call("run", path, "--random", 1, code=1)


@pytest.fixture
def product(tmp_path):
    """A graph file: one product, which the Hopper engine takes in bf16."""

    def write(dtype="bf16"):
        path = tmp_path / f"product-{dtype}.json"
        tensors = [
            {"name": "a", "dim": [1, 128, 64], "stride": [8192, 64, 1]},
            {"name": "b", "dim": [1, 64, 256], "stride": [16384, 1, 64]},
            {"name": "d", "output": True},
        ]
        nodes = [{"op": "matmul", "inputs": ["a", "b"], "output": "d"}]
        path.write_text(json.dumps({"verglas_graph": 1, "io_data_type": dtype, "tensors": tensors, "nodes": nodes}))
        return path

    return write


def test_compile_says_what_is_missing_or_not_taken(product, tmp_path):
    out = tmp_path / "plan.vgp"
    common = {"code": 1, "VERGLAS_NVRTC": "off", "VERGLAS_CACHE": "off"}
    assert "unsupported [nvrtc.missing]" in call("compile", product(), "-o", out, **common)
    assert "unsupported [engine.arch] compiles for sm_90a, not for sm_80" in call(
        "compile", product(), "--arch", "sm_80", "-o", out, **common
    )
    assert "unsupported [sm90.types]" in call("compile", product("fp32"), "-o", out, **common)
    assert "unsupported [plan.replay] knobs: got sm90[TILE_M=7]" in call(
        "compile", product(), "--knobs", "TILE_M=7", "-o", out, **common
    )
    assert not out.exists()


@pytest.mark.parametrize("knobs", ["TILE_M", "TILE_M=", "=1", "TILE_M=x", "TILE_M=64,TILE_M=64", "TILE_M=64,,"])
def test_compile_refuses_knobs_that_cannot_be_read(product, tmp_path, knobs):
    assert "--knobs" in call("compile", product(), "--knobs", knobs, "-o", tmp_path / "plan.vgp", code=2)


def test_compile_wants_an_output(product):
    call("compile", product(), code=2)


def test_compile_writes_a_plan(product, tmp_path):
    if "not found" in call("doctor").split("NVRTC", 1)[1].splitlines()[0]:
        lacking("nvrtc", "no NVRTC")
    out = tmp_path / "with space" / "plan.vgp"
    assert "io_failed [file.write]" in call("compile", product(), "-o", out, code=1)
    out.parent.mkdir()
    report = json.loads(call("compile", product(), "--knobs", "TILE_M=64,TILE_N=64", "-o", out, "--json"))
    assert report["arch"] == "sm_90a"
    assert report["knobs"]["TILE_N"] == 64
    assert 0 < report["kernel"]["registers"] <= 255
    assert report["kernel"]["spill_bytes"] == 0
    assert report["bytes"] == out.stat().st_size > report["kernel"]["cubin_bytes"]
    assert report["kernel"]["name"] in call("compile", product(), "--knobs", "TILE_M=64,TILE_N=64", "-o", out)


@pytest.fixture
def plan_file(product, tmp_path):
    if "not found" in call("doctor").split("NVRTC", 1)[1].splitlines()[0]:
        lacking("nvrtc", "no NVRTC")
    out = tmp_path / "product.vgp"
    call("compile", product(), "--knobs", "TILE_M=64,TILE_N=64", "-o", out)
    return out


def test_explain_of_a_plan_file_needs_no_gpu(plan_file):
    text = call("explain", plan_file, VERGLAS_CUDA_DRIVER="off")
    assert text.startswith("plan file of engine sm90 for sm_90a, NVRTC ")
    assert " registers, " in text and "matmul('a', 'b')" in text
    assert "not loaded here: unsupported [driver.missing]" in text
    report = json.loads(call("explain", plan_file, "--json", VERGLAS_CUDA_DRIVER="off"))
    assert report["file"]["arch"] == "sm_90a" and report["file"]["knobs"]["TILE_N"] == 64
    assert report["loaded"] is False and "driver.missing" in report["reason"]
    assert "--dot" in call("explain", plan_file, "--dot", "-", code=2)


def test_run_of_a_plan_file_says_what_it_needs(plan_file):
    common = {"VERGLAS_CUDA_DRIVER": "off"}
    assert "unsupported [driver.missing]" in call("run", plan_file, "--random", 1, code=1, **common)
    assert "unsupported [file.plan_arch]" in call("run", plan_file, "--random", 1, "--device", "cpu", code=1, **common)
    for option in (["--engine", "sm90"], ["--plan", 0]):
        assert "a plan file holds one plan" in call("run", plan_file, "--random", 1, *option, code=2, **common)


def test_a_damaged_plan_file_is_no_graph_file(plan_file):
    plan_file.write_bytes(plan_file.read_bytes()[:-1])
    for command in ("explain", "run"):
        assert "io_failed [file.plan_damaged]" in call(command, plan_file, code=1)


def test_a_cache_entry_is_no_plan_file(tmp_path, product):
    if "not found" in call("doctor").split("NVRTC", 1)[1].splitlines()[0]:
        lacking("nvrtc", "no NVRTC")
    call("compile", product(), "-o", tmp_path / "plan.vgp", VERGLAS_CACHE=str(tmp_path / "cache"))
    (entry,) = (tmp_path / "cache").glob("*.vgk")
    assert "io_failed [file.plan_format]" in call("explain", entry, code=1)


QUICK = ("--device", "cpu", "--seconds", "0.001")


def test_tuning_is_kept_listed_shown_and_cleared(graph, tmp_path):
    path, kept = graph(), {"VERGLAS_CACHE": str(tmp_path / "cache")}
    assert "0 entries" in call("tune", "list", **kept)
    (report,) = json.loads(call("tune", path, "--json", *QUICK, **kept))
    assert report["record"].startswith(str(tmp_path / "cache" / "tuning"))
    assert [p["seconds"] for p in report["plans"]] == sorted(p["seconds"] for p in report["plans"])
    (entry,) = json.loads(call("tune", "--json", "list", **kept))["entries"]
    assert entry["file"] == report["record"] and entry["extents"] == [1, 5, 7, 6] and entry["fault"] == ""
    explained = json.loads(call("explain", path, "--json", **kept))
    assert explained["plans"][0]["name"] == report["plans"][0]["name"]
    assert explained["plans"][0]["measured_seconds"] == report["plans"][0]["seconds"]
    assert explained["tuning"].startswith(report["record"])
    assert "tuning record " in call("explain", path, **kept)
    assert "1 entries removed" in call("tune", "clear", **kept)
    assert json.loads(call("explain", path, "--json", **kept))["tuning"] == ""


def test_tuning_of_other_shapes_declares_the_graph_anew(graph, tmp_path):
    path, kept = graph(), {"VERGLAS_CACHE": str(tmp_path / "cache")}
    reports = json.loads(call("tune", path, "--shapes", "16x24x8,32x24x8", "--json", *QUICK, **kept))
    assert [(r["l"], r["m"], r["n"], r["k"]) for r in reports] == [(1, 16, 24, 8), (1, 32, 24, 8)]
    assert "2 entries" in call("tune", "list", **kept)
    assert "not kept: VERGLAS_TUNING is" in call("tune", path, *QUICK, VERGLAS_TUNING="off")
    for wrong in ("16x24", "16x24x", "0x1x1", "axbxc", "16x24x8,"):
        assert "--shapes" in call("tune", path, "--shapes", wrong, *QUICK, code=2), wrong
    assert "graph" in call("tune", code=2)


def test_grouped_products_are_measured_on_rows_that_fit(tmp_path):
    """Random offsets are refused from the second call on, and refused calls took no time."""
    kept = {"VERGLAS_CACHE": str(tmp_path)}
    moe = ROOT / "examples/06_moe.json"
    (report,) = json.loads(call("tune", moe, "--json", *QUICK, **kept))
    assert report["plans"] and not any(plan.get("failure") for plan in report["plans"])
    table = json.loads(moe.read_text(encoding="utf-8"))
    next(t for t in table["tensors"] if t["name"] == "w")["by_pointers"] = True
    (tmp_path / "table.json").write_text(json.dumps(table), encoding="utf-8")
    for command in ("tune", "bench"):
        said = call(command, tmp_path / "table.json", "--device", "cpu", code=1, **kept)
        assert "[plan.none] weights that are passed by address cannot be measured; in one tensor they can" in said


def test_a_batch_that_no_operand_has_is_refused(graph, tmp_path):
    path, kept = graph(), {"VERGLAS_CACHE": str(tmp_path / "cache")}
    assert "no axis of L in any operand" in call("tune", path, "--shapes", "3x16x24x8", *QUICK, code=1, **kept)
    call("tune", path, "--shapes", "1x16x24x8", *QUICK, **kept)


def test_a_shape_that_one_operand_cannot_have_is_refused(tmp_path):
    path = tmp_path / "square.json"
    tensors = [{"name": "a", "dim": [1, 8, 8], "stride": [64, 8, 1]}, {"name": "d", "output": True}]
    nodes = [{"op": "matmul", "inputs": ["a", "a"], "output": "d"}]
    path.write_text(json.dumps({"verglas_graph": 1, "io_data_type": "fp32", "tensors": tensors, "nodes": nodes}))
    assert "[tool.shape]" in call("bench", path, "--shapes", "8x8x4", *QUICK, code=1)
    call("bench", path, "--shapes", "4x4x4", "--rounds", 2, *QUICK)


def test_bench_times_the_first_plan_against_itself(graph):
    (report,) = json.loads(call("bench", graph(), "--rounds", 3, "--json", *QUICK))
    first, again, *_ = report["plans"]
    assert first["plan"] == again["plan"] and again["again"] and first["ratio"] == 1
    assert 0 < first["least"] <= first["seconds"] <= first["most"]
    assert "its ratio is the noise" in call("bench", graph(), "--rounds", 2, *QUICK)
