#!/usr/bin/env bash
# The checks of .pre-commit-config.yaml, over the whole tree or over the files named: hooks.sh CHECK [FILE...]
#   clang-format   C++ and kernels            ruff   Python, lint and format      shellcheck   scripts
#   includes       directions of dependency   json   presets and examples parse   fix          formats all that can be formatted
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=$PWD/.venv/bin:$PATH
check=${1:?which check}
shift

# The files named, or all that git knows or would add, that match the patterns.
files() {
  if [ ${#named[@]} -gt 0 ]; then
    printf '%s\0' "${named[@]}"
  else
    git ls-files -z --cached --others --exclude-standard -- "$@" | while IFS= read -r -d '' file; do
      [ -f "$file" ] && printf '%s\0' "$file"
    done
  fi
}
named=("$@")
cpp=('*.cpp' '*.hpp' '*.cuh' '*.h')
scripts=('*.sh' '.ci/run')

case $check in
  clang-format) files "${cpp[@]}" | xargs -0r clang-format-19 --dry-run --Werror --ferror-limit=1 ||
    { echo 'scripts/hooks.sh fix formats them'; exit 1; } ;;
  ruff)
    files '*.py' '*.pyi' | xargs -0r ruff check --quiet --no-cache
    files '*.py' '*.pyi' | xargs -0r ruff format --quiet --no-cache --check --diff
    ;;
  shellcheck) files "${scripts[@]}" | xargs -0r shellcheck --shell=bash --external-sources ;;
  includes) python3 tests/check_includes.py ;;
  json) files '*.json' | xargs -0r -n1 python3 -c 'import json, sys; json.load(open(sys.argv[1], encoding="utf-8"))' ;;
  fix)
    files "${cpp[@]}" | xargs -0r clang-format-19 -i
    files '*.py' '*.pyi' | xargs -0r ruff check --quiet --no-cache --fix-only
    files '*.py' '*.pyi' | xargs -0r ruff format --quiet --no-cache
    ;;
  *) echo "no check named $check" >&2; exit 2 ;;
esac
