#!/usr/bin/env bash
# What each stage of the check runs: tools/stages.sh STAGE [ARGUMENT...]. `./tools/check` decides which
# run, and when (tools/checks/stages.py). CHECK_FULL=yes asks for everything that the gate leaves out.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

# Tests start hundreds of processes: what they import is compiled once.
unset PYTHONDONTWRITEBYTECODE
full=${CHECK_FULL:-}

native_sources() { git ls-files -z --cached --others --exclude-standard 'native/*.h' 'native/*.cpp'; }

# The headers of libfabric, which the core takes where they are.
stage_headers() { debian_packages "fabric transport in builds from source" libfabric-dev=/usr/include/rdma/fabric.h; }

stage_set_up() { set_up dev; }

stage_packages() {
  debian_packages "tests of pages, old processors, shaped links, etcd, Redis, Rust" \
    chromium=chromium,chromium-browser,google-chrome qemu-user=qemu-x86_64 iproute2=tc \
    etcd-server=etcd redis-server=redis-server rustc=rustc
}

# debian_packages WHAT PACKAGE=SIGN[,SIGN...]...: installs the packages of which no sign, a program or
# the path of a file, is there; in one call, and only where we may.
debian_packages() {
  local what=$1 one sign found missing=()
  shift
  for one in "$@"; do
    found=""
    for sign in $(tr , ' ' <<<"${one#*=}"); do
      if [[ -e $sign ]] || command -v "$sign" >/dev/null; then found=yes; fi
    done
    [[ $found ]] || missing+=("${one%%=*}")
  done
  ((${#missing[@]})) || return 0
  if [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null; then
    export DEBIAN_FRONTEND=noninteractive
    apt-get install -y -q --no-install-recommends "${missing[@]}" ||
      { apt-get update -q && apt-get install -y -q --no-install-recommends "${missing[@]}"; }
  else
    echo "There will be no $what. To run them: apt-get install ${missing[*]}"
  fi
}

stage_format() {
  .venv/bin/ruff format --check --quiet . || die "run ./tools/format"
  native_sources | xargs -0r .venv/bin/clang-format --dry-run --Werror
}

stage_lint() {
  .venv/bin/ruff check --quiet .
  .venv/bin/codespell
}

stage_types() { .venv/bin/mypy; }

run_pytest() { # PYTEST_ARGUMENTS...
  if [[ $full ]]; then set -- --full --hypothesis-profile fresh "$@"; fi
  # Which test costs what stays beside the log.
  "$python" -m pytest -p tests.support.costs --costs "$logs/costs-$name.tsv" "$@"
}

# One process each; the check runs several of them at a time.
stage_architecture() { run_pytest tests/architecture; }
stage_unit() { run_pytest tests/unit; }
stage_native() { run_pytest tests/native; }
stage_integration_transfer() { run_pytest -m "not netns" tests/integration/{transfer,store}; }
stage_integration_engine() { run_pytest -m "not netns" tests/integration/{engine,tune,weights}; }
stage_integration_cluster() { run_pytest -m "not netns" tests/integration/{cluster,connect}; }
stage_e2e() { run_pytest tests/e2e; }
stage_real() { run_pytest tests/real; }
stage_netns() { run_pytest -m netns tests/integration; }

stage_paths() { run_pytest "$@"; }

cmake_configure() { # BUILD_FOLDER CMAKE_OPTIONS...
  local folder=$1 log
  shift
  log=$logs/cmake-$(basename "$folder").log
  .venv/bin/cmake -S . -B "$folder" -G Ninja -DCMAKE_MAKE_PROGRAM="$root/.venv/bin/ninja" \
    "$@" >"$log" 2>&1 || { cat "$log" && return 1; }
}

# Two at a time: other stages run beside it.
cmake_build_tests() { # BUILD_FOLDER CMAKE_OPTIONS...
  cmake_configure "$@" -DINLAY_TESTS=ON -DINLAY_TESTS_FULL="${full:-OFF}"
  .venv/bin/cmake --build "$1" --parallel 2
}

run_ctest() { # BUILD_FOLDER TESTS_AT_A_TIME
  .venv/bin/ctest --test-dir "$1" --parallel "$2" --output-on-failure --no-tests=error
}

# Where the package was built: its libraries need no second compilation.
stage_ctest() {
  local python_tag folder
  python_tag=$("$python" -c 'import sys; print("cp%d%d" % sys.version_info[:2])')
  folder=(build/"$python_tag-$python_tag"-*)
  # The next build of the package does without them. Where this runs, `folder` is known no more.
  trap ".venv/bin/cmake -DINLAY_TESTS=OFF '${folder[0]}' >/dev/null" EXIT
  cmake_build_tests "${folder[0]}"
  # Most of them wait for something most of the time; with a sanitizer they compute.
  run_ctest "${folder[0]}" 4
}

# The gate leaves out kernels for AVX-512 and AMX (those for AVX2 and emulated tiles share their code)
# and the Python extension, and builds the tests that native/tests/CMakeLists.txt names.
stage_asan() {
  local cxx=${CXX:-c++}
  cmake_build_tests build/asan -DCMAKE_BUILD_TYPE=Debug -DINLAY_SANITIZE=address,undefined \
    -DINLAY_AVX512="${full:-OFF}" -DINLAY_PYTHON="${full:-OFF}" -DPython_EXECUTABLE="$root/$python"
  run_ctest build/asan 2
  if [[ ! $full ]]; then return; fi
  # Python itself is built without them: the libraries come first, and its leaks are its own.
  ASAN_OPTIONS=detect_leaks=0 \
    LD_PRELOAD="$("$cxx" -print-file-name=libasan.so) $("$cxx" -print-file-name=libstdc++.so)" \
    "$python" -m pytest -p tests.support.native_build --native build/asan/native/_native*.so --full \
    --hypothesis-profile fresh tests/native/test_{fuzz,bad_input,pending,hand_over}.py
}

stage_tsan() {
  cmake_build_tests build/tsan -DCMAKE_BUILD_TYPE=Debug -DINLAY_SANITIZE=thread \
    -DINLAY_AVX512="${full:-OFF}" -DINLAY_PYTHON=OFF
  run_ctest build/tsan 2
}

stage_wheel() {
  local bare=build/wheel/venv packages
  rm -rf build/wheel
  # Where the package was built: nothing is compiled again.
  pip wheel --no-deps --no-build-isolation --wheel-dir build/wheel .
  ls -sh build/wheel/*.whl
  "$python" -m venv "$bare"
  if [[ $full ]]; then
    "$bare/bin/python" -m pip install --quiet --no-compile -c constraints.txt build/wheel/inlay-*.whl
  else
    # A gigabyte of packages is not unpacked again: the same files by other names.
    packages=$(cd "$bare" && echo lib/python*/site-packages)
    rm -rf "${bare:?}/$packages"
    cp -al ".venv/$packages" "$bare/$packages"
    rm -rf "$bare/$packages"/*inlay*
    "$bare/bin/python" -m pip install --quiet --no-compile --no-deps build/wheel/inlay-*.whl
  fi
  env -i HOME="$HOME" PATH="$root/$bare/bin" "$bare/bin/python" tools/try_wheel.py \
    build/wheel/inlay-*.whl
  rm -rf "$bare" # a gigabyte
}

# What a build from nothing may take, in compilations of tools/yardstick.cpp: machines and their other
# guests differ by two times.
max_build_yardsticks=60

stage_build() {
  local TIMEFORMAT='%U' build_s stick_s
  rm -rf build/cost
  cmake_configure build/cost -DCMAKE_BUILD_TYPE=Release -DPython_EXECUTABLE="$root/$python"
  build_s=$({ time .venv/bin/cmake --build build/cost >&2; } 2>&1 >/dev/null | tail -n 1)
  stick_s=$({ time "${CXX:-c++}" -std=c++20 -O2 -c tools/yardstick.cpp -o /dev/null; } 2>&1)
  rm -rf build/cost
  awk -v s="$build_s" -v stick="$stick_s" -v most="$max_build_yardsticks" 'BEGIN {
    printf "a build from nothing took %.0f processor seconds, as much as %.1f yardsticks of %.1f s\n",
      s, s / stick, stick
    exit s / stick > most
  }' || die "a build from nothing may take $max_build_yardsticks compilations of tools/yardstick.cpp"
}

# Faults at fresh moments; the seeds are printed, and `./tools/soak` runs each many times.
stage_faults() {
  local seed=$RANDOM$RANDOM
  echo "seed $seed"
  "$python" -m tests.integration.store.faults "$logs/faults-store.json" 2 "$seed"
  "$python" -m tests.integration.cluster.faults "$logs/faults-cluster.json" 2 "$seed"
  "$python" -m tests.integration.tune.faults "$logs/faults-tune.json" 2 "$seed"
}

stage_benchmarks() {
  "$python" -m benchmarks list
  "$python" -m benchmarks run selftest/copy --quick
}

mkdir -p "$logs"
name=$1
shift
"stage_${name//-/_}" "$@"
