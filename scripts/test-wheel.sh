#!/usr/bin/env bash
# `pip install .` into a fresh environment of a Python (default: Debian's), then the package and the command as installed.
#   test-wheel.sh [PYTHON...]
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export CXX=${CXX:-c++} # Python would name the same compiler otherwise than CMake does, and ccache then compiles all anew
[ $# -gt 0 ] || set -- "${VERGLAS_PYTHON:-/usr/bin/python3}"

for python in "$@"; do
  cd "$root"
  env=$work/$(basename "$python")
  "$python" -m venv "$env"
  "$env/bin/pip" install --quiet --disable-pip-version-check "$root"
  cd "$work" # away from the source tree, so that only the installed package can be found
  "$env/bin/python" - "$env" <<'PY'
import importlib.metadata
import sys

import verglas

assert verglas.__file__.startswith(sys.argv[1]), verglas.__file__
assert verglas.__version__ == importlib.metadata.version("verglas")
wanted = [r.split(";")[0].strip() for r in importlib.metadata.requires("verglas") if "extra ==" not in r]
assert [w.split(">")[0] for w in wanted] == ["numpy"], wanted
assert verglas._verglas.xla_targets() is not None, "built without XLA's headers"
print(f"verglas {verglas.__version__} on Python {sys.version.split()[0]}")
PY
  if [ -f "$root/src/tool/CMakeLists.txt" ]; then "$env/bin/verglas" doctor; fi
done
