#!/usr/bin/env bash
# Every test under the address and undefined-behaviour sanitizers.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../common.sh"
configure asan
build asan
ctest --preset asan --parallel "$(jobs)"
