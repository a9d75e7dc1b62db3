# Set-up shared by ./tools/up and ./tools/check: an environment in .venv with Inlay installed
# editable. Sourced, not run; leaves the caller in the repository root. Steps that are done already
# are told by stamps in .venv/stamps and skipped.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
python=.venv/bin/python
logs=build/logs
beat="" build="" # process numbers of what runs in the background

die() {
  printf '\nerror: %s\n' "$*" >&2
  exit 1
}

# step LABEL LOG COMMAND...: the output goes to a log; every five seconds a line says how it goes.
step() {
  local label=$1 log=$logs/$2.log status=0
  shift 2
  mkdir -p "$logs"
  : >"$log"
  echo "$label"
  heartbeat "$log" &
  beat=$!
  "$@" >"$log" 2>&1 || status=$?
  stop_heartbeat
  if ((status)); then
    tail -n 40 "$log" >&2
    die "this failed: $label (the whole output is in $log)"
  fi
}

heartbeat() {
  local start=$SECONDS line
  # The sleep must not hold our output open when the heartbeat is ended.
  while sleep 5 >/dev/null 2>&1; do
    line=$(grep -av '^ *WARNING' "$1" | tail -n 1 | LC_ALL=C tr -cd ' -~' | cut -c1-100) || true
    printf '  %3d s  %s\n' $((SECONDS - start)) "$line"
  done
}

stop_heartbeat() {
  if [[ $beat ]]; then
    kill "$beat" 2>/dev/null || true
    wait "$beat" 2>/dev/null || true
    beat=""
  fi
}
end_background() {
  stop_heartbeat
  if [[ $build ]]; then kill -- "-$build" 2>/dev/null || true; fi
}
trap end_background EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

find_python() {
  local name
  for name in ${PYTHON:+"$PYTHON"} python3 python3.11 python3.12 python3.13; do
    if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      base_python=$name
      "$name" -c 'import ensurepip, venv' 2>/dev/null ||
        die "$name lacks the venv module. Debian, Ubuntu: apt-get install python3-venv"
      return
    fi
  done
  die "Python 3.11 or newer is needed (or name one: PYTHON=/path/to/python3.12).
Debian 12, Ubuntu 24.04: apt-get install python3 python3-venv python3-dev
Fedora: dnf install python3 python3-devel"
}

need_compiler() {
  local name include
  for name in ${CXX:+"$CXX"} c++ g++ clang++; do
    if printf '#include <span>\nint main() { std::span<int> s; return s.empty() ? 0 : 1; }\n' |
      "$name" -std=c++20 -x c++ -o /dev/null - 2>/dev/null; then
      export CXX=$name
      include=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
      [[ -e $include/Python.h ]] || die "the headers of $("$python" -V) are missing.
Debian, Ubuntu: apt-get install python3-dev      Fedora: dnf install python3-devel"
      return
    fi
  done
  die "a C++20 compiler is needed (g++ 11, clang 14 or newer).
Debian, Ubuntu: apt-get install g++      Fedora: dnf install gcc-c++"
}

pip() { "$python" -m pip --disable-pip-version-check --no-input "$@"; }

# What a stamp holds: a hash of all that the step depends on.
dependencies_state() {
  { pwd && "$python" -V && cat pyproject.toml constraints.txt; } | sha256sum
}
core_state() {
  { pwd && "$python" -V && cat pyproject.toml src/inlay/__init__.py; } | cat - <(
    find CMakeLists.txt native cmake -type f -not -path '*/tests/*' -print0 2>/dev/null |
      LC_ALL=C sort -z | xargs -0 sha256sum
  ) | sha256sum
}
fresh() { [[ -e .venv/stamps/$1 && $(<".venv/stamps/$1") == "$2" ]]; }
stamp() { mkdir -p .venv/stamps && echo "$2" >".venv/stamps/$1"; }

# set_up run|dev: `run` is what serving needs, `dev` adds tests and lint.
set_up() {
  local kind=$1 groups=() dependencies core
  [[ $kind == dev ]] && groups=(--group test --group lint --group bench)
  # An interrupted start may leave half a .venv; venv mends it in place.
  if ! "$python" -m pip --version >/dev/null 2>&1; then
    find_python
    step "Making an environment in .venv" venv "$base_python" -m venv .venv
  fi

  dependencies=$(dependencies_state) core=$(core_state)
  if fresh "$kind" "$dependencies" && fresh core "$core"; then return; fi
  need_compiler
  if fresh "$kind" "$dependencies"; then
    step "Building Inlay's C++ core" build build_core
  else
    step "Installing build tools (1/2)" tools install_build_tools
    step "Installing dependencies and building Inlay's C++ core (2/2)" install \
      install_and_build "${groups[@]}"
    stamp "$kind" "$dependencies"
    [[ $kind == dev ]] && stamp run "$dependencies"
  fi
  stamp core "$core"
}

install_build_tools() {
  pip install "$(grep '^pip==' constraints.txt)" && # dependency groups need a recent pip
    pip install -c constraints.txt --group build
}

# The core compiles while the rest is downloaded and unpacked: it needs the build tools alone.
install_and_build() { # DEPENDENCY_GROUPS...
  local status=0
  set -m # in a process group of its own, which Ctrl-C ends by the trap above
  build_core >"$logs/build.log" 2>&1 &
  build=$!
  set +m
  install_dependencies "$@" || return 1
  tail --pid="$build" -n 1 -f "$logs/build.log" # what is seen of the build from here on
  wait "$build" || status=$?
  build=""
  if ((status)); then tail -n 40 "$logs/build.log"; fi
  return $status
}

# Without compiling: pip would compile all of it, most of which nobody imports.
install_dependencies() { # DEPENDENCY_GROUPS...
  local names
  names=$("$python" -c 'import tomllib
with open("pyproject.toml", "rb") as project:
    print("\n".join(tomllib.load(project)["project"]["dependencies"]))') &&
    pip install --no-compile -c constraints.txt -r <(echo "$names") "$@" &&
    "$python" -c 'import torch' # compiles what its import needs before several processes do
}

build_core() { pip install --verbose --no-deps --no-build-isolation -e .; }
