"""The package as it is imported: its version and what it needs."""

import re
import subprocess
import sys
from pathlib import Path

import verglas


def test_version_is_the_one_in_the_header():
    header = (Path(__file__).resolve().parents[2] / "include/verglas/version.hpp").read_text(encoding="utf-8")
    assert verglas.__version__ == re.search(r'VERGLAS_VERSION "(.+)"', header)[1]


def test_import_brings_in_neither_torch_nor_jax():
    code = "import sys, verglas; print(sorted({'torch', 'jax', 'ml_dtypes'} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert found.strip() == "[]"
