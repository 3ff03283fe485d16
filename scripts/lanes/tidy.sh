#!/usr/bin/env bash
# clang-tidy 14 with the checks of .clang-tidy over the library, the tool and the pool's tests.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../common.sh"
configure asan
# What needs a CUDA toolkit is not in this build.
mapfile -t files < <(git ls-files 'core/src/*.cpp' 'reference/src/*.cpp' 'tools/*.cpp' ':!tools/bench/cuda_*')
printf '%s\0' "${files[@]}" |
  xargs -0 -n 1 -P "$(jobs)" clang-tidy-14 --quiet -p build/asan --warnings-as-errors='*' 2>&1 |
  { grep -vE '^[0-9]+ warnings? (generated|treated as errors?)\.?$' || true; }
say "${#files[@]} files are tidy"
