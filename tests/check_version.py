#!/usr/bin/env python3
"""The version stands once, in include/verglas/version.hpp. Here: all that read it read the same.

usage: check_version.py CMAKE_PROJECT_VERSION
"""

import re
import sys
import tomllib
from pathlib import Path


def main(cmake_version):
    root = Path(__file__).resolve().parent.parent
    header = (root / "include/verglas/version.hpp").read_text(encoding="utf-8")
    reader = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["scikit-build"]["metadata"]["version"]
    parts = [
        re.search(rf"^#define VERGLAS_VERSION_{part} (\d+)$", header, re.MULTILINE)[1] for part in ("MAJOR", "MINOR", "PATCH")
    ]
    versions = {
        "the macros VERGLAS_VERSION_MAJOR, _MINOR, _PATCH": ".".join(parts),
        "the macro VERGLAS_VERSION": re.search(r'^#define VERGLAS_VERSION "(.+)"$', header, re.MULTILINE)[1],
        "CMake's project version": cmake_version,
        "pyproject.toml's reader": re.search(reader["regex"], (root / reader["input"]).read_text(encoding="utf-8"), re.MULTILINE)[
            "value"
        ],
    }
    for name, version in versions.items():
        print(f"{version:10} {name}")
    return 0 if len(set(versions.values())) == 1 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
