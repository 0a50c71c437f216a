#!/usr/bin/env bash
# Instructions of one checked call, counted by callgrind, beside their budgets; exits non-zero when a case is over its budget.
#   host-budget.sh [PROGRAM]   (default build/release/bench/verglas_bench_host, built first)
set -euo pipefail
cd "$(dirname "$0")/.."
program=${1:-}
if [ -z "$program" ]; then
  [ -d build/release ] || cmake --preset release >/dev/null
  cmake --build build/release --target verglas_bench_host >/dev/null
  program=build/release/bench/verglas_bench_host
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

valgrind --tool=callgrind --collect-atstart=no --callgrind-out-file="$work/profile" "$program" --count >"$work/cases" 2>"$work/log" ||
  { cat "$work/log" "$work/cases" >&2; exit 1; }

# A profile names its case in "desc: Trigger: Client Request: case 3" and has its sum in "totals: 60000".
awk -F '\t' '
  FILENAME ~ /profile/ && /^desc: Trigger: Client Request: / { sub(/.*Request: /, ""); which = $0 }
  FILENAME ~ /profile/ && /^(totals|summary): / { split($0, part, " "); sum[which] = part[2] }
  FILENAME ~ /cases/ {
    used = sum[$1] / $2; seen++
    over = used > $3 || used < 1; bad += over
    printf "%-36s %7.0f instructions, budget %5d%s\n", $4, used, $3, over ? "  OVER" : ""
  }
  END { exit bad > 0 || seen == 0 }' "$work"/profile.* "$work/cases"
