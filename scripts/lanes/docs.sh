#!/usr/bin/env bash
# The documents: links, paths, the map, and every block of C++.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../common.sh"
bash scripts/docs_check.sh
