#!/usr/bin/env bash
# Everything compiles with clang 14 without a warning, and every test passes under the address and
# undefined-behaviour sanitizers.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../common.sh"
configure asan
build asan
ctest --preset asan --parallel "$(jobs)"
