#!/usr/bin/env bash
# clang-format 14, the same version everywhere: others break lines elsewhere.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../common.sh"
need_packages "$packages_format"
mapfile -d '' -t files < <(git ls-files -z '*.hpp' '*.h' '*.cpp' '*.cu' '*.cuh')
clang-format-14 --dry-run -Werror "${files[@]}"
say "${#files[@]} files are formatted"
