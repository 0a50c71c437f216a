#!/usr/bin/env bash
# A sentence encoder, each of its linear layers a fused graph, on this machine's CPU or GPU. Arguments go to examples/minilm.py.
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
mkdir -p build/release
build_release verglas verglas_python >build/release/build.log 2>&1 || { cat build/release/build.log; exit 1; }
exec "$VENV/bin/python" examples/minilm.py "$@"
