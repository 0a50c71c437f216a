#!/usr/bin/env bash
# Everything that can be checked on this machine, in this order; what is red stops only what needs it:
# hooks, build, unit and refusal tests, sanitizers, fuzzers, JIT, properties, GPU, Python, examples, installation.
# The last line counts what passed, failed and was skipped; above it stands each reason for a skip.
#   VERGLAS_SLOW=1         more generated cases           VERGLAS_REQUIRE=gpu,torch   a skip for want of these is a failure,
#                                                       as it always is for what scripts/setup.sh installs
#   VERGLAS_SANITIZE=0     leaves sanitizers and fuzzers out
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
export VERGLAS_REQUIRE=nvrtc,tool,minilm,dot,xla${VERGLAS_REQUIRE:+,$VERGLAS_REQUIRE}
export PYTHONDONTWRITEBYTECODE=1 CTEST_PARALLEL_LEVEL=${CTEST_PARALLEL_LEVEL:-$(nproc)}
RESULTS=$ROOT/build/results
rm -rf "$RESULTS"
mkdir -p "$RESULTS"
set +e # from here on a red stage is counted and is not the end
checks=0 red=()

# Ends the run, whatever ended it, with the count. A red stage is named by the tests in its JUnit file, or by itself.
finish() {
  local status=$? name failed=()
  trap - EXIT
  printf '\n'
  shopt -s nullglob
  for name in "${red[@]}"; do
    status=1
    [ -f "$RESULTS/$name.xml" ] || failed+=("--also-failed=$name")
  done
  python3 scripts/count_tests.py --also-passed "$checks" "${failed[@]}" --status "$status" "$RESULTS"/*.xml || status=1
  exit "$status"
}
trap finish EXIT

# stage NAME COMMAND...: the output is shown only when the command fails. Its status says whether the command did.
stage() {
  local name=$1 start=$SECONDS
  shift
  if "$@" >"$RESULTS/$name.log" 2>&1; then
    printf '   %-18s passed in %s s\n' "$name" $((SECONDS - start))
  else
    tail -n 300 "$RESULTS/$name.log"
    printf '   %-18s failed after %s s; all of it is in %s\n' "$name" $((SECONDS - start)) "$RESULTS/$name.log"
    red+=("$name")
    return 1
  fi
}

# check NAME COMMAND...: a stage that counts as one test. The others are counted from their JUnit files.
check() {
  stage "$@" || return 1
  checks=$((checks + 1))
}

# tests NAME PRESET CHOICE...: the ctest tests that these options choose, in that preset's build. To find none is a failure.
tests() {
  local name=$1 preset=$2
  shift 2
  stage "$name" ctest --test-dir "build/$preset" "$@" --no-tests=error --timeout 900 --output-on-failure \
    --test-output-size-passed 20000 --output-junit "$RESULTS/$name.xml"
}

# Leaks are looked for once a program, not once a test: LeakSanitizer's tracer dies now and then on a busy machine ("Tracer caught
# signal 11"), which says nothing about the program. Then, and only then, the program runs again. It reads what is noted of
# libraries' thread-local memory, and dies of a library that is closed: that is not noted (intercept_tls_get_addr).
leaks() {
  local program=$1 attempt
  for attempt in 1 2 3 4; do
    ASAN_OPTIONS=intercept_tls_get_addr=0 "$program" '--gtest_filter=-Property/*' >"$RESULTS/leaks-$attempt.log" 2>&1 && return 0
    grep -q 'LeakSanitizer has encountered a fatal error' "$RESULTS/leaks-$attempt.log" || break
  done
  tail -n 100 "$RESULTS/leaks-$attempt.log"
  return 1
}

# sanitized PRESET LABELS: builds the programs of these labels under a sanitizer and runs them: of the shards of generated cases
# the first two, since each takes ten times as long there. All of them under VERGLAS_SLOW.
sanitized() {
  local preset=$1 labels=$2 label targets=() fewer=(-E '^Property/.*/([2-9]|[1-9][0-9]+)$')
  [ -z "${VERGLAS_SLOW:-}" ] || fewer=()
  for label in ${labels//|/ }; do targets+=("verglas_test_$label"); done
  check "$preset-configure" cmake --preset "$preset" &&
    check "$preset-build" cmake --build "build/$preset" --target "${targets[@]}" -- -k 0 &&
    ASAN_OPTIONS=detect_leaks=0 tests "$preset" "$preset" -L "^($labels)\$" "${fewer[@]}"
  [ "$preset" != asan ] || for label in unit refusal; do check "leaks-$label" leaks "build/asan/tests/verglas_test_$label"; done
}

fuzz() {
  check fuzz-configure cmake --preset fuzz -DVERGLAS_FUZZ_RUNS="$([ -n "${VERGLAS_SLOW:-}" ] && echo 1000000 || echo 20000)" &&
    check fuzz-build cmake --build build/fuzz &&
    tests fuzz fuzz -L '^fuzz$'
}

python_tests() {
  "$VENV/bin/python" -m pytest tests/python --junitxml="$RESULTS/python.xml" -q -p no:cacheprovider
}

say hooks
for hook in clang-format ruff shellcheck json includes; do check "$hook" scripts/hooks.sh "$hook"; done
say build
check build build_release || exit 1
say tests
tests fast release -L '^(unit|refusal)$'
if [ "${VERGLAS_SANITIZE:-1}" = 1 ]; then
  sanitized asan 'unit|refusal|property'
  sanitized tsan 'unit|property'
  fuzz
fi
tests jit release -L '^jit$'
tests property release -L '^property$'
tests gpu release -L '^gpu$'
stage python python_tests
# Examples, the command, docs: every test that no other line here chooses, so that a new label is not forgotten.
tests examples release -LE '^(unit|refusal|jit|property|gpu|install|slow)$'
[ -z "${VERGLAS_SLOW:-}" ] || tests slow release -L '^slow$'
tests install release -L '^install$'
check wheel scripts/test-wheel.sh
