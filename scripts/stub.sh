#!/usr/bin/env bash
# Writes python/verglas/_verglas.pyi from the module in build/release; a test compares the two.
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
stub=python/verglas/_verglas.pyi
PYTHONPATH=build/release/python "$VENV/bin/python" -m nanobind.stubgen -q -m verglas._verglas -o "$stub"
"$VENV/bin/ruff" format --quiet --no-cache "$stub"
