#!/usr/bin/env bash
# Sourced by the other scripts, or run by itself: makes a Debian 12 machine ready (apt packages, .venv) and defines
#   say WORDS...              a heading on standard output
#   build_release [TARGET...] configures and builds build/release, the Python package included
# What is already there is not touched: a second run only looks.
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$ROOT"
VENV=$ROOT/.venv

APT_PACKAGES=(
  g++ cmake ninja-build ccache git ca-certificates
  libfmt-dev nlohmann-json3-dev libcli11-dev libexpected-dev libdnnl-dev
  libgtest-dev libgmock-dev libbenchmark-dev
  clang-19 clang-format-19 clang-tidy-19 libclang-rt-19-dev valgrind gcovr
  python3 python3-dev python3-venv graphviz shellcheck util-linux
)

say() { printf '\n== %s\n' "$*"; }

as_root() {
  if [ "$(id -u)" = 0 ]; then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo "$@"
  else
    printf 'these packages are missing and this user can neither install nor sudo:\n  apt-get install %s\n' "${missing[*]}" >&2
    return 1
  fi
}

install_apt_packages() {
  local package missing=()
  command -v dpkg-query >/dev/null || { echo "no dpkg here: the packages in scripts/setup.sh must be installed by hand" >&2; return 0; }
  for package in "${APT_PACKAGES[@]}"; do
    dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || missing+=("$package")
  done
  [ ${#missing[@]} = 0 ] && return 0
  say "installing ${missing[*]}"
  as_root env DEBIAN_FRONTEND=noninteractive apt-get update -qq
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

# The stamp holds a hash of what .venv was made from; a change of either remakes it.
make_venv() {
  local python=${VERGLAS_PYTHON:-/usr/bin/python3} want
  want=$({ "$python" --version; cat scripts/requirements.txt examples/requirements.txt; } | sha256sum)
  [ "$(cat "$VENV/stamp" 2>/dev/null)" = "$want" ] && return 0
  say "making .venv with $("$python" --version)"
  rm -rf "$VENV"
  "$python" -m venv "$VENV"
  "$VENV/bin/pip" install --quiet --disable-pip-version-check -r scripts/requirements.txt
  "$VENV/bin/pip" install --quiet --disable-pip-version-check --no-deps -r examples/requirements.txt
  # The package as build/release has it, so that scripts and tests see each rebuild at once.
  echo "$ROOT/build/release/python" >"$("$VENV/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/verglas-build.pth"
  echo "$want" >"$VENV/stamp"
}

# The directory of the NVRTC wheel, for the loader of a machine that has no CUDA toolkit.
add_nvrtc_to_loader_path() {
  local folder
  for folder in "$VENV"/lib/python3*/site-packages/nvidia/cu13/lib; do
    [ -d "$folder" ] && export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folder"
  done
  return 0
}

build_release() {
  local log=build/release/configure.log
  mkdir -p build/release
  if ! cmake --preset release -DVERGLAS_BUILD_PYTHON=ON -DPython_EXECUTABLE="$VENV/bin/python" -DPython_FIND_VIRTUALENV=ONLY >"$log" 2>&1; then
    cat "$log"
    return 1
  fi
  cmake --build build/release ${1:+--target "$@"}
}

install_apt_packages
make_venv
add_nvrtc_to_loader_path
