#!/usr/bin/env bash
# On a machine with an NVIDIA GPU, with or without a network: builds, tests where a skip is a failure, and measures.
#   gpu-host.sh [STAGE...]     build test python bench kernels sanitize; all of them, in this order, where none is named
#   gpu-host.sh probe          tiles and rasters of one kernel, below the executor: for work on the kernel
#   gpu-host.sh build pack     on a machine with Debian's packages: programs to take along, in build/gpu-pack
# What the build needs lies on the system or in .deps (scripts/gpu-deps.sh). A stage has a limit of seconds, and one that is red
# does not stop the others; the last line has all of them.
#   VERGLAS_BUILD=FOLDER     a pack, or a build folder of this machine: nothing is built, unless build is named
#   VERGLAS_OUT=FOLDER       takes everything; without it figures go to bench/results and logs to build/gpu-host
#   VERGLAS_PYTHON=PROGRAM   the Python that has torch (default python3); to build the package it needs nanobind
#   VERGLAS_REQUIRE=LIST     what the Python tests must not skip (default gpu,torch,cupy,jax,xla,tool)
#   VERGLAS_SECONDS=N        for all stages together; the last ones are cut           VERGLAS_LIMIT_TEST=N   for one stage
#   VERGLAS_PROBE_ONLY=TEXT  cases of kernels and probe whose name has this in it
# shellcheck disable=SC2317 # stages are called by name
set -euo pipefail
cd "$(dirname "$0")/.."
declare -A limit=([build]=120 [pack]=60 [test]=180 [python]=150 [bench]=75 [kernels]=200 [sanitize]=180 [probe]=150)
python=${VERGLAS_PYTHON:-python3}
build=${VERGLAS_BUILD:-build/gpu}
logs=build/gpu-host
out=${VERGLAS_OUT:-bench/results}
export VERGLAS_CACHE=$PWD/$logs/cache PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
export LD_LIBRARY_PATH=$PWD/$build/lib:$PWD/.deps/usr/lib/x86_64-linux-gnu${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}

# What keeps a stage from running, in words; nothing when nothing does.
missing() {
  case $1 in
    build) command -v cmake >/dev/null || echo "cmake is not on the PATH" ;;
    pack) [ -d "$build/tests" ] || echo "$build holds no build" ;;
    *)
      if ! command -v nvidia-smi >/dev/null; then
        echo "no GPU here: nvidia-smi is not on the PATH"
      elif ! nvidia-smi -L 2>&1 | grep -q '^GPU 0'; then
        echo "no GPU here: nvidia-smi -L says '$(nvidia-smi -L 2>&1 | head -n 1)'"
      elif [ ! -x "$build/tests/verglas_test_gpu" ]; then
        echo "$build/tests/verglas_test_gpu is not there: the build stage makes it"
      elif [ "$1" = python ] && ! compgen -G "$build/python/verglas/_verglas*.so" >/dev/null; then
        echo "$build has no Python module: $python needs nanobind when it is built"
      elif [ "$1" = kernels ] && ! "$python" -c 'import torch, triton' 2>/dev/null; then
        echo "$python has no torch with Triton"
      elif [ "$1" = sanitize ] && ! command -v compute-sanitizer >/dev/null; then
        echo "compute-sanitizer is not on the PATH"
      fi
      ;;
  esac
}

run_build() {
  local module=OFF werror=ON
  "$python" -c 'import nanobind' 2>/dev/null && module=ON
  [ ! -d .deps ] || werror=OFF # another distribution's compiler may warn of more
  cmake -G Ninja -S . -B "$build" -DCMAKE_BUILD_TYPE=Release "-DCMAKE_PREFIX_PATH=$PWD/.deps/usr" "-DVERGLAS_WERROR=$werror" \
    "-DVERGLAS_BUILD_PYTHON=$module" -DPython_EXECUTABLE="$(command -v "$python")" -DVERGLAS_BUILD_EXAMPLES=OFF
  local targets
  targets=$(cmake --build "$build" --target help | sed -n 's/^\(verglas_bench_gpu[a-z_]*\): phony$/\1/p')
  [ "$module" = OFF ] || targets+=" verglas_python"
  # shellcheck disable=SC2086 # a list
  cmake --build "$build" --target verglas_test_gpu verglas_tool $targets
  git describe --always --dirty >"$build/commit" 2>/dev/null || rm -f "$build/commit"
}

# Programs without symbols, the package as files, and the libraries that another distribution may not have. Its module is for
# every jaxlib from the one on of whose headers it was built, so these are those of pyproject.toml.
run_pack() {
  local pack=build/gpu-pack program wanted there
  wanted=$(sed -n "s/.*\"jaxlib==\([0-9.]*\); python_version < .*/\1/p" pyproject.toml)
  there=$("$python" -c 'from importlib.metadata import version; print(version("jaxlib"))' 2>/dev/null || echo none)
  if [ "$there" != "$wanted" ]; then
    echo "pack: $python has jaxlib $there, wanted $wanted: older releases would not load the module" >&2
    return 1
  fi
  rm -rf "$pack"
  mkdir -p "$pack"/{tests,bench,lib,python,src/tool}
  for program in tests/verglas_test_gpu "$build"/bench/verglas_bench_gpu_*[a-z]; do
    program=${program#"$build"/}
    [ ! -x "$build/$program" ] || strip -o "$pack/$program" "$build/$program"
  done
  strip -o "$pack/src/tool/verglas" "$build/src/tool/verglas"
  program=bench/libverglas_bench_gpu_contenders.so
  [ ! -f "$build/$program" ] || strip -o "$pack/$program" "$build/$program"
  cp -rL "$build/python/verglas" "$pack/python/"
  ldd "$pack"/tests/* "$pack"/bench/* "$pack"/python/verglas/*.so | sed -n 's/.* => \(\/.*\) (0x.*/\1/p' | sort -u |
    grep -vE '/lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s)\.so' | xargs -d '\n' cp -L -t "$pack/lib"
  [ ! -f "$build/commit" ] || cp "$build/commit" "$pack/"
  du -sh "$pack"
}

# All at one time, and red when one is: each line of standard input is NAME COMMAND, whose output goes to NAME.log.
together() {
  local name command pids=() names=() status=0 i
  while read -r name command; do
    bash -c "$command" >"$logs/$name.log" 2>&1 &
    pids+=($!) names+=("$name")
  done
  for i in "${!pids[@]}"; do
    wait "${pids[$i]}" && continue
    status=1
    echo "--- $logs/${names[$i]}.log"
    tail -n 25 "$logs/${names[$i]}.log"
  done
  return "$status"
}

# The tests in a process for every two processors: most of their time is compiling, and the cache is one.
run_test() {
  local shard status=0 shards=$(($(nproc) / 2))
  [ "$shards" -ge 4 ] || shards=4
  for ((shard = 0; shard < shards; ++shard)); do
    echo "test-$shard VERGLAS_REQUIRE=gpu GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$shard $build/tests/verglas_test_gpu" \
      "--gtest_output=xml:$logs/test-$shard.xml"
  done | together || status=1
  "$python" scripts/count_tests.py --status "$status" "$logs"/test-*.xml
}

# A process for each file, since each brings a framework of its own that may take what memory there is.
run_python() {
  local file name status=0
  export PYTHONPATH=$PWD/$build/python VERGLAS_REQUIRE=${VERGLAS_REQUIRE:-gpu,torch,cupy,jax,xla,tool} XLA_PYTHON_CLIENT_PREALLOCATE=false
  export VERGLAS_TOOL=$PWD/$build/src/tool/verglas
  for file in tests/python/test_gpu_*.py; do
    name=python-$(basename "$file" .py)
    echo "$name $python -m pytest $file -q -p no:cacheprovider --junitxml=$logs/$name.xml"
  done | together || status=1
  "$python" scripts/count_tests.py --status "$status" "$logs"/python-*.xml
}

# memcheck: every path, some plans of each, a few generated chains and groupings; not what only repeats, nor what kills processes.
# The other tools follow each access or barrier, or compile what memcheck compiles: few calls, so that they end. Calls of the driver
# that fail are the tests' own matter: some must. racecheck itself dies in a replay of a graph, with no hazard named.
run_sanitize() {
  local entry status=0 few='*Sm90Chains.Agree*/1:*Sm90Chains.Agree*/3:*IsExactForBatches*:*ALaunchThatFails*'
  local long='*Sm90Ragged*:*Sm90Grouped*:*OverSeveralWaves:*KeepsTheGap*:*ACallOfAnyPlan*:*TheSameBitsInEveryRun:*DeathTest*'
  local runs=("groups memcheck *Sm90Grouped.*/plain:*Sm90GroupedGradient.*/bf16" "initcheck initcheck $few:*RunOnTwoStreams*"
    "racecheck racecheck $few" "synccheck synccheck $few:*RunOnTwoStreams*")
  local part parts=$((($(nproc) + 3) / 4))
  for ((part = 0; part < parts; ++part)); do runs+=("memcheck-$part memcheck -$long:*FieldCases*:*CublasLt*"); done
  for entry in "${runs[@]}"; do
    local name tool filter
    read -r name tool filter <<<"$entry"
    local shard=''
    [[ $name != memcheck-* ]] || shard="GTEST_TOTAL_SHARDS=$parts GTEST_SHARD_INDEX=${name#*-}"
    [ "$tool" != memcheck ] || tool+=' --report-api-errors no'
    echo "sanitize-$name $shard VERGLAS_REQUIRE=gpu VERGLAS_PLANS=1 VERGLAS_CHAINS=${VERGLAS_CHAINS:-1} VERGLAS_CALLS=${VERGLAS_CALLS:-2}" \
      "compute-sanitizer --tool $tool --error-exitcode 9" \
      "$build/tests/verglas_test_gpu '--gtest_filter=${VERGLAS_SANITIZE_FILTER:-$filter}'"
  done | together || status=1
  grep 'ERROR SUMMARY\|RACECHECK SUMMARY' "$logs"/sanitize-*.log
  return "$status"
}

run_bench() {
  "$python" bench/gpu_host/measure.py "$build" "$out/$figures-host-$gpu.json" "$commit"
}

# Products and fused graphs beside their rivals, the important first; what there is no time for is left out, and said.
run_kernels() {
  mkdir -p "$out/gpu"
  "$python" bench/gpu/measure.py "$build" "$out/gpu/$figures-$gpu.json" --commit "$commit" --only "${VERGLAS_PROBE_ONLY:-}" \
    --seconds "${VERGLAS_LIMIT_KERNELS:-$((limit[kernels] - 5))}"
}

# The others of bench/ that are built for a GPU take a file, a commit and a part of a case's name.
run_probe() {
  local program name status=0
  for program in "$build"/bench/verglas_bench_gpu_*[a-z]; do
    name=$(basename "$program")
    name=${name#verglas_bench_gpu_}
    [ "$name" = host ] || "$program" "$out/$figures-${name//_/-}-$gpu.json" "$commit" "${VERGLAS_PROBE_ONLY:-}" || status=1
  done
  return "$status"
}

commit=$(git describe --always --dirty 2>/dev/null || cat "$build/commit" 2>/dev/null || echo unknown)
figures=$(date +%F)
gpu=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -n 1 | tr 'A-Z ' 'a-z-' || true)
gpu=${gpu#nvidia-}
if [ "${1:-}" = --inside ]; then
  "run_$2"
  exit
fi

# A copy may have lost what makes a program one.
[ -z "${VERGLAS_BUILD:-}" ] || chmod -f u+x "$build"/tests/verglas_test_gpu "$build"/bench/verglas_bench_gpu_* "$build/src/tool/verglas" || true
stages=("$@")
if [ ${#stages[@]} = 0 ] || [ "${stages[*]}" = all ]; then
  stages=(test python bench kernels sanitize)
  [ -n "${VERGLAS_BUILD:-}" ] || stages=(build "${stages[@]}")
fi
for stage in "${stages[@]}"; do
  [ -n "${limit[$stage]:-}" ] || { echo "no stage named $stage; there are: build pack test python bench kernels sanitize probe" >&2; exit 2; }
done
rm -rf "$logs"
mkdir -p "$logs" "$out"
nvidia-smi --query-gpu=name,driver_version,clocks.sm,power.limit --format=csv,noheader 2>/dev/null | tee "$logs/device.csv" || true

[[ " ${stages[*]} " != *" pack "* ]] || limit[build]=3600 # elsewhere, at leisure
status=0 summary=() before=$SECONDS
for stage in "${stages[@]}"; do
  name=VERGLAS_LIMIT_${stage^^}
  seconds=${!name:-${limit[$stage]}} start=$SECONDS
  left=$((${VERGLAS_SECONDS:-100000} - SECONDS + before))
  [ "$left" -ge "$seconds" ] || seconds=$left
  why=$(missing "$stage")
  [ "$stage" != pack ] || [ $status = 0 ] || why="the build is red"
  if [ -n "$why" ]; then
    verdict="not run ($why)"
  elif [ "$seconds" -lt 5 ]; then
    verdict="not run (no time left)"
  else
    code=0
    timeout --kill-after=5 "$seconds" bash "$0" --inside "$stage" >"$logs/$stage.log" 2>&1 || code=$?
    case $code in
      0) verdict="passed in $((SECONDS - start)) s" ;;
      124 | 137) verdict="cut after $seconds s" ;;
      *) verdict="failed after $((SECONDS - start)) s" ;;
    esac
    [ $code = 0 ] && lines=6 || lines=40
    tail -n "$lines" "$logs/$stage.log"
  fi
  [ "${verdict%% *}" = passed ] || status=1
  echo "== $stage $verdict"
  summary+=("$stage $verdict")
done
[ -z "${VERGLAS_OUT:-}" ] || tar -C "$logs" --exclude=./cache -czf "$out/logs.tar.gz" .
(IFS=';'; echo "gpu-host, commit $commit: ${summary[*]}") | sed 's/;/; /g' | tee "${VERGLAS_OUT:-$logs}/gpu-host.txt"
exit $status
