#!/usr/bin/env bash
# Collects what gpu-host.sh needs to build on a machine without Debian's packages and without a network: headers, libraries and
# CMake packages of {fmt}, nlohmann/json, tl/expected, CLI11, GoogleTest and Google Benchmark, as they lie here under /usr.
#   gpu-deps.sh [FOLDER]   (default .deps, which git ignores); take the folder along and gpu-host.sh finds it
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:-.deps}
rm -rf "$folder"
mkdir -p "$folder"
dpkg -L libfmt-dev libfmt9 nlohmann-json3-dev libexpected-dev libcli11-dev libgtest-dev libgmock-dev libbenchmark-dev libbenchmark1debian |
  grep -vE '^/usr/(share/(doc|lintian|pkgconfig)|src)/|/pkgconfig/' | while IFS= read -r path; do
  [ -d "$path" ] || printf '%s\0' "${path#/}"
done | tar -C / --null --files-from=- -cf - | tar -C "$folder" -xf -
du -sh "$folder"
