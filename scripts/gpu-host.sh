#!/usr/bin/env bash
# On a machine with an NVIDIA GPU: builds, runs the GPU tests where a skip is a failure, then the benchmarks.
# Fetches nothing: g++, cmake and ninja have to be there, and the libraries of scripts/gpu-deps.sh, on the system or in .deps.
#   gpu-host.sh [BUILD_FOLDER]   (default build/gpu)      OUT   where logs and results go (default BUILD_FOLDER/results)
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build/gpu}
out=${OUT:-$build/results}
mkdir -p "$out"
nvidia-smi --query-gpu=name,driver_version,clocks.sm,power.limit --format=csv | tee "$out/device.csv"

cmake -G Ninja -S . -B "$build" -DCMAKE_BUILD_TYPE=Release -DCMAKE_PREFIX_PATH="$PWD/.deps/usr" >"$out/configure.log"
cmake --build "$build" >"$out/build.log" || { tail -n 50 "$out/build.log"; exit 1; }

status=0
VERGLAS_REQUIRE=gpu ctest --test-dir "$build" --label-regex '^gpu$' --no-tests=error --output-on-failure --timeout 300 \
  --output-junit "$PWD/$out/gpu.xml" >"$out/gpu.log" 2>&1 || status=$?
tail -n 40 "$out/gpu.log"
python3 scripts/count_tests.py "$out/gpu.xml" || status=1

# Each benchmark program of bench/ that is built for the GPU is named verglas_bench_gpu*.
for bench in "$build"/bench/verglas_bench_gpu*; do
  [ -x "$bench" ] || continue
  name=$(basename "$bench")
  "$bench" 2>&1 | tee "$out/$name.txt" || status=1
done
exit "$status"
