#!/usr/bin/env bash
# The scripts themselves.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../common.sh"
shellcheck --external-sources run .ci/run scripts/*.sh scripts/lanes/*.sh bench/plot
say "the scripts are clean"
