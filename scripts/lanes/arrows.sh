#!/usr/bin/env bash
# The include table, and first a proof that the check sees what it is for.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

trial=$(mktemp -d)
trap 'rm -rf "$trial"' EXIT
mkdir -p "$trial"/{core/{include/rankfold,src},reference/src,backends/cuda/{src,tests},tests/{conformance,unit/core},examples/01_x}
cd "$trial"
: >core/include/rankfold/good.hpp
: >core/src/inner.hpp
: >reference/src/kernel.hpp
: >backends/cuda/tests/helper.hpp
: >backends/cuda/src/route.hpp
printf '#include "route.hpp"\n#include "rankfold/good.hpp"\n#include <cuda_runtime.h>\n' >backends/cuda/src/fine.cu
printf '#include "helper.hpp"\n#include "route.hpp"\n#include <doctest/doctest.h>\n' >backends/cuda/tests/fine.cpp
printf '#include <vector>\n#include "rankfold/good.hpp"\n' >core/include/rankfold/fine.hpp
printf '#include "inner.hpp"\n#include <nlohmann/json.hpp>\n' >core/src/fine.cpp
printf '#include "inner.hpp"\n#include "rankfold/good.hpp"\n' >tests/unit/core/fine.cpp
bash "$root/scripts/include_arrows.sh" . >fine.txt || fail "the check refuses what is allowed: $(cat fine.txt)"

num_bad=0
bad() { # bad FILE LINE: the check must name this file
  mkdir -p "$(dirname "$1")"
  printf '%s\n' "$2" >"$1"
  if bash "$root/scripts/include_arrows.sh" . >bad.txt || ! grep -qF "$1" bad.txt && ! grep -qF 'public header' bad.txt; then
    fail "the check does not see '$2' in $1"
  fi
  rm "$1"
  num_bad=$((num_bad + 1))
}
bad core/include/rankfold/bad.hpp '#include <Eigen/Core>'
bad core/include/rankfold/bad.hpp '#include <nlohmann/json.hpp>'
bad core/include/rankfold/bad.hpp '#include "inner.hpp"'
bad core/include/rankfold/bad.hpp 'void f(Eigen::MatrixXf);'
bad core/src/bad.cpp '#include <tbb/task_arena.h>'
bad core/src/bad.cpp '#include "kernel.hpp"'
bad backends/cuda/src/bad.cpp '#include "kernel.hpp"'
bad backends/cuda/src/bad.cpp '#include "../../../reference/src/kernel.hpp"'
bad backends/cuda/src/bad.cu '#include "inner.hpp"'
bad backends/cuda/src/bad.cuh '#include "helper.hpp"'
bad backends/cuda/src/bad.cpp '#include <doctest/doctest.h>'
bad backends/cuda/tests/bad.cpp '#include "inner.hpp"'
bad reference/src/bad.cpp '#include <cuda_runtime_api.h>'
bad tests/conformance/bad.cpp '#include "inner.hpp"'
bad tests/unit/core/bad.cpp '#include "kernel.hpp"'
bad examples/01_x/bad.cpp '#include "inner.hpp"'
cd "$root"
say "the check sees $num_bad kinds of trespass"

bash scripts/include_arrows.sh
