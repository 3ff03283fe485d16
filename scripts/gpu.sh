#!/usr/bin/env bash
# gpu.sh [STEP...]: the cuda backend on this machine's GPU: conformance, its own tests, compute-sanitizer, bench. Each step
# has a time limit and a log in build/gpu; a table comes last. RANKFOLD_GPU_BUILD names a build folder to use as it is.
set -uo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

all_steps="conformance drawn configurations graph streams overlap never coverage pool second-gpu bench off-grid tune demo swap memcheck racecheck initcheck synccheck train"
logs="$root/build/gpu"
mkdir -p "$logs"
for step in "$@"; do
  case " $all_steps " in *" $step "*) ;; *) fail "gpu has no step $step (there are: $all_steps)" ;; esac
done
# shellcheck disable=SC2086
[ $# -gt 0 ] || set -- $all_steps

command -v nvidia-smi >/dev/null || fail "nvidia-smi is missing, so there is no NVIDIA driver; without one there is ./run lane cuda"
nvidia-smi --query-gpu=index,name,driver_version --format=csv,noheader || fail "no GPU answers"

folder=${RANKFOLD_GPU_BUILD:-}
if [ -z "$folder" ]; then
  # Kernels for this machine's GPU; Hopper's own instructions are in 90a alone.
  version=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1 | tr -d '. ')
  [ "$version" != 90 ] || version=90a
  need_packages "$packages_test"
  configure cuda -DRANKFOLD_CUDA=ON "-DRANKFOLD_CUDA_ARCHITECTURES=${version:-90a}-real" || exit 1
  build cuda --target rankfold_tool conformance_test backends/cuda/tests/all string_tasks swap_under_load train_adapter || exit 1
  folder=build/cuda
fi
folder=$(cd "$folder" && pwd) || fail "RANKFOLD_GPU_BUILD names no folder: $folder"
export RANKFOLD_REQUIRE_BACKEND=cuda

find_program() { # find_program NAME: anywhere in the build
  find "$folder" -type f -name "$1" -perm -u+x | head -n 1
}

table="" num_failed=0 num_skipped=0

is_wanted() { case " $steps " in *" $1 "*) ;; *) return 1 ;; esac; }

# timed_step NAME SECONDS COMMAND...: one line of the table.
timed_step() {
  local name=$1 limit=$2 started status result
  shift 2
  say "== $name (at most $limit s; build/gpu/$name.log)"
  started=$(date +%s)
  timeout --kill-after=10 "$limit" "$@" >"$logs/$name.log" 2>&1
  status=$?
  result=passed
  if [ "$status" -ne 0 ]; then
    result=FAILED num_failed=$((num_failed + 1))
    tail -n 20 "$logs/$name.log"
  fi
  [ "$status" -ne 124 ] || result="TOO LONG"
  # The last line that counts something.
  local fact
  fact=$(grep -E 'passed|right|test cases:|within|published|entries of' "$logs/$name.log" | tail -n 1 | sed 's/^=* *//' | cut -c 1-90)
  table+=$(printf '  %-14s %-8s %5s s  %s' "$name" "$result" "$(($(date +%s) - started))" "$fact")$'\n'
}

skip_step() { # skip_step NAME WHY
  table+=$(printf '  %-14s %-8s %5s    %s' "$1" skipped - "$2")$'\n'
  num_skipped=$((num_skipped + 1))
}

# run_step NAME SECONDS PROGRAM ARGUMENTS...: PROGRAM is a name in the build.
run_step() {
  local name=$1 limit=$2 program=$3 path
  shift 3
  is_wanted "$name" || return 0
  path=$(find_program "$program")
  if [ -n "$path" ]; then
    timed_step "$name" "$limit" "$path" "$@"
  else
    table+=$(printf '  %-14s %-8s %5s    %s' "$name" FAILED - "$program was not built in $folder")$'\n'
    num_failed=$((num_failed + 1))
  fi
}

# sanitize_step TOOL SECONDS
sanitize_step() {
  is_wanted "$1" || return 0
  if command -v compute-sanitizer >/dev/null; then
    timed_step "$1" "$2" scripts/sanitize.sh "$1" "$folder" "$logs"
  else
    skip_step "$1" "there is no compute-sanitizer in the PATH"
  fi
}

steps=$*
run_step conformance 300 conformance_test cuda
run_step drawn 300 conformance_test cuda --drawn 500
for name in configurations graph streams overlap never coverage pool; do
  run_step "$name" 300 "cuda_${name}_test"
done
# Another device than the first, where there is one.
if is_wanted second-gpu; then
  if [ "$(nvidia-smi --list-gpus | wc -l)" -gt 1 ]; then
    run_step second-gpu 300 conformance_test cuda:1 --filter '^sanitize/'
  else
    skip_step second-gpu "there is one GPU"
  fi
fi
run_step bench 600 rankfold bench --backend cuda --workloads bench/workloads.json --peers bench/peers-h200.json --checks --json "$logs/bench.json"
run_step off-grid 300 rankfold bench --backend cuda --off-grid --json "$logs/off-grid.json"
run_step tune 120 rankfold tune --backend cuda --shapes bench/workloads.json --filter decode/l8-qkv -o "$logs/tuning"
data=examples/01_string_tasks/data
run_step demo 120 string_tasks --backend cuda --data "$data"
run_step swap 60 swap_under_load --backend cuda --seconds 5
for name in memcheck racecheck initcheck synccheck; do
  sanitize_step "$name" 600
done
run_step train 300 train_adapter --backend cuda --data "$data" --out "$logs/adapter"

printf '\ngpu\n%s\n' "$table"
say "$num_failed steps failed, $num_skipped skipped; logs in build/gpu"
[ "$num_failed" -eq 0 ]
