#!/usr/bin/env bash
# Core and pool under the thread sanitizer, with the fake backend: the distribution's oneTBB is not
# instrumented, so the reference backend would report what is none. The two tests of the registry that use it
# are left out for that.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../common.sh"
configure tsan
build tsan
ctest --preset tsan --parallel "$(jobs)"
