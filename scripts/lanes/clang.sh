#!/usr/bin/env bash
# Everything compiles with clang 14 and no warnings; the device-free tests pass there as well.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../common.sh"
configure ci
build ci
ctest --preset ci --parallel "$(jobs)"
