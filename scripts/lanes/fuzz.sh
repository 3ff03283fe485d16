#!/usr/bin/env bash
# The fuzz targets of tests/fuzz for one minute in all, each from its corpus.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../common.sh"
configure asan
build asan --target tests/fuzz/all
shopt -s nullglob
targets=(build/asan/tests/fuzz/fuzz_*)
programs=()
for target in "${targets[@]}"; do
  if [ -f "$target" ] && [ -x "$target" ]; then programs+=("$target"); fi
done
[ "${#programs[@]}" -gt 0 ] || fail "no fuzz target was built"
for program in "${programs[@]}"; do
  name=$(basename "$program")
  corpus="build/fuzz/$name"
  mkdir -p "$corpus"
  seeds=(tests/fuzz/corpus/"${name#fuzz_}")
  [ -d "${seeds[0]}" ] || seeds=()
  say "$name: $((60 / ${#programs[@]})) seconds"
  "$program" -max_total_time=$((60 / ${#programs[@]})) -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
    -artifact_prefix="build/fuzz/$name-" "$corpus" "${seeds[@]}" 2>&1 | tail -n 12
done
