#!/usr/bin/env bash
# Everything that can be checked on this machine, in this order, stopping at the first red:
# hooks, build, unit and refusal tests, sanitizers, JIT, properties, GPU, Python, examples, installation.
# The last line counts what passed, failed and was skipped; above it stands each reason for a skip.
#   VERGLAS_SLOW=1         more generated cases           VERGLAS_REQUIRE=gpu,torch   a skip for want of these is a failure
#   VERGLAS_SANITIZE=0     leaves the sanitizers out
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
export PYTHONDONTWRITEBYTECODE=1 CTEST_PARALLEL_LEVEL=${CTEST_PARALLEL_LEVEL:-$(nproc)}
RESULTS=$ROOT/build/results
rm -rf "$RESULTS"
mkdir -p "$RESULTS"
checks=0

# Ends the run, whatever ended it, with the count.
finish() {
  local status=$?
  trap - EXIT
  printf '\n'
  shopt -s nullglob
  python3 scripts/count_tests.py --also-passed "$checks" --status "$status" "$RESULTS"/*.xml || status=1
  exit "$status"
}
trap finish EXIT

# stage NAME COMMAND...: the output is shown only when the command fails, and then the run ends.
stage() {
  local name=$1 start=$SECONDS
  shift
  if "$@" >"$RESULTS/$name.log" 2>&1; then
    printf '   %-18s passed in %s s\n' "$name" $((SECONDS - start))
  else
    tail -n 300 "$RESULTS/$name.log"
    printf '   %-18s failed; all of it is in %s\n' "$name" "$RESULTS/$name.log"
    exit 1
  fi
}

# check NAME COMMAND...: a stage that counts as one test. The others are counted from their JUnit files.
check() {
  stage "$@"
  checks=$((checks + 1))
}

# tests NAME PRESET LABELS: the ctest tests of these labels, in that preset's build. None of them is no failure.
tests() {
  stage "$1" ctest --test-dir "build/$2" --label-regex "^($3)\$" --no-tests=ignore --timeout 900 --output-on-failure \
    --test-output-size-passed 20000 --output-junit "$RESULTS/$1.xml"
}

# sanitized PRESET LABELS: builds the programs of these labels under a sanitizer and runs them.
sanitized() {
  local preset=$1 labels=$2 label targets=()
  for label in ${labels//|/ }; do
    compgen -G "tests/$label/*" >/dev/null && targets+=("verglas_test_$label")
  done
  check "$preset-configure" cmake --preset "$preset"
  check "$preset-build" cmake --build "build/$preset" --target "${targets[@]}"
  tests "$preset" "$preset" "$labels"
}

python_tests() {
  compgen -G "tests/python/test_*.py" >/dev/null || return 0
  "$VENV/bin/python" -m pytest tests/python --junitxml="$RESULTS/python.xml" -q -p no:cacheprovider
}

say hooks
for hook in clang-format ruff shellcheck json includes; do check "$hook" scripts/hooks.sh "$hook"; done
say build
check build build_release
say tests
tests fast release 'unit|refusal'
if [ "${VERGLAS_SANITIZE:-1}" = 1 ]; then
  sanitized asan 'unit|refusal'
  sanitized tsan 'unit'
fi
tests jit release jit
tests property release property
tests gpu release gpu
stage python python_tests
tests examples release 'examples|tool|docs'
tests install release install
check wheel scripts/test-wheel.sh
