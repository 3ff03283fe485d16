#!/usr/bin/env bash
# The cuda backend as far as no GPU is needed: which toolkits are taken, every kernel compiled for one architecture with
# warnings as errors, tests of host code, and the package with the backend in it. Without nvcc the first part alone.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../common.sh"
work="$root/build/cuda_lane"
rm -rf "$work"
mkdir -p "$work/none"

quiet() { "$@" >"$work/log" 2>&1 || {
  cat "$work/log" >&2
  fail "this failed: $*"
}; }

# Every folder with an nvcc, so that CMake can be made blind to them.
nvcc_folders=$({ type -ap nvcc || true; echo /usr/local/cuda/bin/nvcc; } | xargs -n 1 dirname | sort -u | paste -sd ';')

# probe NAME TEXT CMAKE_ARGUMENTS...: with RANKFOLD_CUDA=AUTO the build goes on without the backend, CMake and the
# registry give the reason TEXT; with ON it is an error with the same reason.
num_probes=0
probe() {
  local name=$1 text=$2
  shift 2
  local common=(-G Ninja -DCMAKE_BUILD_TYPE=Release -DRANKFOLD_TESTS=OFF -DRANKFOLD_TOOLS=OFF "$@")
  quiet cmake -S . -B "$work/probe_$name" -DRANKFOLD_CUDA=AUTO "${common[@]}"
  grep -F -- "-- rankfold: no cuda backend: " "$work/log" | grep -qF -- "$text" ||
    fail "AUTO, $name: CMake does not say '$text', but: $(grep -F -- '-- rankfold:' "$work/log")"
  grep -F 'add_missing({"cuda"' "$work/probe_$name/generated/builtin_backends.cpp" | sed 's/\\"/"/g' | grep -qF -- "$text" ||
    fail "AUTO, $name: rankfold list would not say '$text'"
  if cmake -S . -B "$work/probe_on_$name" -DRANKFOLD_CUDA=ON "${common[@]}" >"$work/log" 2>&1; then
    fail "ON, $name: no error"
  fi
  tr -s ' \n' ' ' <"$work/log" | grep -qF -- "RANKFOLD_CUDA=ON: " || fail "ON, $name: another error: $(cat "$work/log")"
  say "AUTO skips, ON refuses: $(sed -nE 's/^-- rankfold: no cuda backend: //p' <(cmake -B "$work/probe_$name" 2>&1))"
  num_probes=$((num_probes + 1))
}

fake() { # fake NAME VERSION MESSAGE: an nvcc that tells this version, and MESSAGE when it is to compile
  cat >"$work/$1" <<SCRIPT
#!/bin/sh
if [ "\$1" = --version ]; then echo "Cuda compilation tools, release $2, V$2.1"; exit 0; fi
echo '$3' >&2
exit 1
SCRIPT
  chmod +x "$work/$1"
  printf '%s' "$work/$1"
}
old=$(fake nvcc_old 11.8 'never asked')
broken=$(fake nvcc_broken 12.9 'error: "unsupported GNU version"! gcc versions later than 4 are not supported')
probe none 'no CUDA toolkit was found' "-DCMAKE_IGNORE_PATH=$nvcc_folders"
probe old "$old is of CUDA 11.8, which is too old; 12.4 or newer is needed" "-DCMAKE_CUDA_COMPILER=$old"
probe broken 'does not compile a small program of C++20 (exit status 1: error: "unsupported GNU version"!' \
  "-DCMAKE_CUDA_COMPILER=$broken"
probe mute 'does not say its version' "-DCMAKE_CUDA_COMPILER=$work/no_such_nvcc"
if cmake -S . -B "$work/probe_bad" -G Ninja -DRANKFOLD_CUDA=maybe >"$work/log" 2>&1; then
  fail "RANKFOLD_CUDA=maybe is no error"
fi
say "$num_probes kinds of toolkits are skipped by name"

configure cuda
if reason=$(sed -nE 's/^-- rankfold: no cuda backend: //p' build/configure-cuda.log) && [ -n "$reason" ]; then
  say "skipped: the backend itself, since $reason"
  exit 0
fi
build cuda

# The other architecture of a user's build has code of its own: it is compiled as far as PTX, unoptimised.
nvcc=$(sed -n 's/^CMAKE_CUDA_COMPILER:[A-Z]*=//p' build/cuda/CMakeCache.txt)
compile_for_80() {
  "$nvcc" -std=c++20 -arch=compute_80 --ptx -Xcicc -O0 -Werror=all-warnings -Icore/include -Ibackends/cuda/include \
    -Ibackends/cuda/src -o "$work/$(basename "$1").ptx" "$1"
}
export -f compile_for_80
export nvcc work
printf '%s\0' backends/cuda/src/kernels/*.cu | xargs -0 -P "$(jobs)" -I FILE bash -c 'compile_for_80 FILE' ||
  fail "a kernel does not compile for compute capability 8.0"
say "every kernel compiles for compute capability 8.0, too"

ctest --preset cuda --parallel "$(jobs)"

# Without a driver the backend says so; with one it lists what there is.
build/cuda/bin/rankfold list
if RANKFOLD_BACKEND=cuda build/cuda/bin/rankfold list >"$work/list" 2>&1; then
  say "a GPU is here; ./run gpu tests with it"
else
  grep -F 'RANKFOLD_BACKEND' "$work/list" | grep -F cuda || fail "RANKFOLD_BACKEND=cuda: $(cat "$work/list")"
fi

# project SOURCE NAME [cmake arguments]: configures and builds one project outside the build of rankfold.
project() {
  local source=$1 name=$2
  shift 2
  quiet cmake -S "$source" -B "$work/$name" -G Ninja "$@"
  quiet cmake --build "$work/$name" --parallel "$(jobs)"
}

# consumer NAME PREFIX: a project of somebody else that finds rankfold::cuda, on a machine without a driver, too.
consumer() {
  project tests/install/consumer "$1" -DCMAKE_PREFIX_PATH="$2"
  [ -x "$work/$1/consumer_cuda" ] || fail "$1: the package has no rankfold::cuda"
  quiet ctest --test-dir "$work/$1" --output-on-failure
  "$work/$1/consumer_cuda"
}
say "static package"
quiet cmake --install build/cuda --prefix "$work/static"
consumer static_consumer "$work/static"
PKG_CONFIG_PATH=$(dirname "$(find "$work/static" -name rankfold.pc)")
export PKG_CONFIG_PATH
# shellcheck disable=SC2046
quiet g++ -std=c++20 tests/install/consumer/main.cpp -o "$work/pkg_config" $(pkg-config --cflags --libs rankfold)
"$work/pkg_config"

# The same objects as shared libraries.
say "shared package"
quiet cmake --preset cuda -B build/cuda -DBUILD_SHARED_LIBS=ON -DRANKFOLD_TESTS=OFF -DRANKFOLD_TOOLS=OFF
quiet cmake --build build/cuda --parallel "$(jobs)" --target all
quiet cmake --install build/cuda --prefix "$work/shared"
quiet cmake --preset cuda -B build/cuda -DBUILD_SHARED_LIBS=OFF -DRANKFOLD_TESTS=ON -DRANKFOLD_TOOLS=ON
leaked=$(nm -DC --defined-only "$work"/shared/lib*/librankfold_cuda.so | grep -E ' T (cuda|__cuda)' | head -n 5 || true)
[ -z "$leaked" ] || fail "the CUDA runtime's symbols are exported: $leaked"
consumer shared_consumer "$work/shared"
