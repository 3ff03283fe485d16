#!/usr/bin/env bash
# rankfold as others get it: installed (static and shared) and found by find_package, by pkg-config,
# and as a subdirectory; the README's first program; the examples of ./run demo and ./run train.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../common.sh"
work="$root/build/consumer"
rm -rf "$work"
mkdir -p "$work"

quiet() { "$@" >"$work/log" 2>&1 || {
  cat "$work/log" >&2
  fail "this failed: $*"
}; }

# project SOURCE NAME [cmake arguments]: configures and builds one project outside the build of rankfold.
project() {
  local source=$1 name=$2
  shift 2
  quiet cmake -S "$source" -B "$work/$name" -G Ninja "$@"
  quiet cmake --build "$work/$name" --parallel "$(jobs)"
}

# What is tested here is how things are found and linked, so programs compile without optimisation. The library is compiled
# as in build/$release_preset, so that ccache has most of its objects already.
unoptimised=(-DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS_RELEASE=-O0)
as_before=("${ccache_arguments[@]}" -DCMAKE_BUILD_TYPE=Release -DRANKFOLD_CUDA=OFF)
if [ "$release_preset" = ci ]; then as_before+=(-DCMAKE_CXX_COMPILER=g++ -DRANKFOLD_WERROR=ON); fi

# first_program NAME PREFIX: the README's first block of C++, and the output that the README promises.
first_program() {
  awk '/^```cpp$/ { on = 1; next } /^```$/ && on { exit } on' README.md >"$work/first_program.cpp"
  awk '/^```text$/ { on = 1; next } /^```$/ && on { exit } on' README.md >"$work/first_program.txt"
  if [ ! -s "$work/first_program.cpp" ] || [ ! -s "$work/first_program.txt" ]; then
    fail "README.md has no first program"
  fi
  project tests/install/first_program "$1" -DPROGRAM="$work/first_program.cpp" -DCMAKE_PREFIX_PATH="$2"
  "$work/$1/first_program" >"$work/first_program.out"
  diff "$work/first_program.txt" "$work/first_program.out" || fail "the README's first program prints something else"
}

# No name of a dependency leaves a shared library.
check_symbols() {
  local leaked
  leaked=$(nm -DC --defined-only "$@" | grep -E ' (nlohmann|Eigen|tbb|re2)::' | head -n 5 || true)
  [ -z "$leaked" ] || fail "symbols of a dependency are exported: $leaked"
}

say "static, installed from build/$release_preset"
configure "$release_preset"
build "$release_preset"
quiet cmake --install "build/$release_preset" --prefix "$work/static"
project tests/install/consumer static_consumer -DCMAKE_PREFIX_PATH="$work/static"
quiet ctest --test-dir "$work/static_consumer" --output-on-failure
"$work/static_consumer/consumer"
first_program static_first_program "$work/static"
project examples/01_string_tasks static_example "${unoptimised[@]}" -DCMAKE_PREFIX_PATH="$work/static"
project examples/02_train_adapter static_train_adapter "${unoptimised[@]}" -DCMAKE_PREFIX_PATH="$work/static"
project examples/03_swap_under_load static_swap "${unoptimised[@]}" -DCMAKE_PREFIX_PATH="$work/static"

say "pkg-config, static"
PKG_CONFIG_PATH=$(dirname "$(find "$work/static" -name rankfold.pc)")
export PKG_CONFIG_PATH
# shellcheck disable=SC2046
quiet g++ -std=c++20 tests/install/consumer/main.cpp -o "$work/pkg_config" $(pkg-config --cflags --libs rankfold)
"$work/pkg_config"

say "shared"
quiet cmake --preset demo -B "$work/shared_build" "${as_before[@]}" -DBUILD_SHARED_LIBS=ON \
  -DCMAKE_INSTALL_LIBDIR=lib -DCMAKE_INSTALL_PREFIX="$work/shared"
quiet cmake --build "$work/shared_build" --parallel "$(jobs)" --target install
check_symbols "$work"/shared/lib/*.so
# A moved tree works as well.
mv "$work/shared" "$work/moved"
project tests/install/consumer shared_consumer -DCMAKE_PREFIX_PATH="$work/moved"
quiet ctest --test-dir "$work/shared_consumer" --output-on-failure
"$work/shared_consumer/consumer"

say "subdirectory"
project tests/install/subdirectory subdirectory "${as_before[@]}" -DRANKFOLD_SOURCE_DIR="$root" -DRANKFOLD_ARCH=BASELINE
quiet ctest --test-dir "$work/subdirectory" --output-on-failure
"$work/subdirectory/consumer"
