"""The package as it is imported: its version and what it needs."""

import ast
import concurrent.futures
import doctest
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import verglas


def test_version_is_the_one_in_the_header():
    header = (Path(__file__).resolve().parents[2] / "include/verglas/version.hpp").read_text(encoding="utf-8")
    assert verglas.__version__ == re.search(r'VERGLAS_VERSION "(.+)"', header)[1]


def test_import_brings_in_neither_torch_nor_jax():
    code = "import sys, verglas; print(sorted({'torch', 'jax', 'ml_dtypes'} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert found.strip() == "[]"


def run_python(code: str, **environment: str) -> str:
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=variables, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


RUN_ON_CPU = """
import importlib, pkgutil, sys
import verglas
for module in pkgutil.walk_packages(verglas.__path__, "verglas."):
    if not module.name.endswith(("._jax", "._torch", ".torch")):  # these come with the framework's first array
        importlib.import_module(module.name)
import numpy as np
x = np.ones((1, 2, 2), np.float32)
g = verglas.Graph(io_data_type="fp32")
t = g.tensor_like(x)
y = g.matmul(t, t).set_output(True)
out = np.empty_like(x)
g.execute({t: x, y: out})
print(out.tolist(), sorted({"torch", "jax", "ml_dtypes", "cupy"} & set(sys.modules)))
"""


@pytest.mark.parametrize("visible", ["", "0"])
def test_cases_a_55_the_package_works_without_a_gpu(visible):
    assert run_python(RUN_ON_CPU, CUDA_VISIBLE_DEVICES=visible) == "[[[2.0, 2.0], [2.0, 2.0]]] []"


def test_cases_a_56_other_frameworks_are_loaded_by_nobody():
    code = RUN_ON_CPU.replace("import numpy as np", "import numpy as np; sys.modules['torch'] = sys.modules['jax'] = None")
    assert run_python(code).startswith("[[[2.0, 2.0], [2.0, 2.0]]]")


def test_import_alone_loads_no_numpy():
    assert run_python("import sys, verglas; print('numpy' in sys.modules)") == "False"


def test_the_example_of_the_docstring_runs():
    found = doctest.DocTestFinder().find(verglas.Graph, "Graph", module=False, globs={})
    failed = [doctest.DocTestRunner(verbose=False).run(test).failed for test in found if test.examples]
    assert failed == [0]


def test_everything_public_has_a_docstring():
    for name in verglas.__all__:
        assert name == "__version__" or inspect.getdoc(getattr(verglas, name)), name
    for cls in (verglas.Graph, verglas.Plan):
        for name, member in vars(cls).items():
            simple = name.startswith(("_", "get_")) or isinstance(member, property)
            assert simple or (inspect.getdoc(member) or "").count("\n") >= 1, f"{cls.__name__}.{name}"


@pytest.mark.parametrize("name", ["GemmAmax", "GemmSwiglu", "GemmSrelu", "GemmDsrelu", "GemmProjRopeMxfp8Bf16In"])
def test_execute_says_what_it_takes(name):
    cls = getattr(verglas, name)
    assert "Launches" in inspect.getdoc(cls.execute)
    assert inspect.getdoc(cls.execute) == inspect.getdoc(cls.__new__(cls).execute)


def test_committed_stub_is_what_the_module_says(tmp_path):
    """scripts/stub.sh writes it anew."""
    fresh = tmp_path / "fresh.pyi"
    command = [sys.executable, "-m", "nanobind.stubgen", "-q", "-m", "verglas._verglas", "-o", str(fresh)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run(command, check=True, env=environment)
    committed = Path(__file__).resolve().parents[2] / "python/verglas/_verglas.pyi"

    def shape(path):
        return ast.dump(ast.parse(path.read_text(encoding="utf-8")), indent=1).splitlines()

    assert shape(committed) == shape(fresh)


EXIT_WITH_THREADS = """
import threading, time
import numpy as np
import verglas
graph = verglas.Graph(io_data_type="fp32")
x = np.ones((1, 96, 96), np.float32)
graph.matmul(graph.tensor_like(x), graph.tensor_like(x)).set_output(True)
graph.build()
def call_for_ever():
    while True:
        graph.plan(x, x, np.empty_like(x))
for _ in range(3):
    threading.Thread(target=call_for_ever, daemon=True).start()
time.sleep(0.1)
"""


FORK_WITH_THREADS = """
import os, signal, sys
for _ in range(5):
    child = os.fork()
    if child == 0:
        signal.alarm(5)
        sys.exit()
    assert os.waitpid(child, 0)[1] == 0
"""


def test_a_child_process_waits_for_no_thread_of_its_parent():
    assert run_python(EXIT_WITH_THREADS + FORK_WITH_THREADS) == ""


def test_the_interpreter_ends_while_threads_call():
    """Several at a time: what libraries have made is destroyed at the end, slowly, and no thread may still be in it."""
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert list(pool.map(run_python, [EXIT_WITH_THREADS] * 16)) == [""] * 16
