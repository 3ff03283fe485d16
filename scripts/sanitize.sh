#!/usr/bin/env bash
# sanitize.sh TOOL FOLDER LOGS: the small calls that reach every kernel of the cuda backend, under a tool of
# compute-sanitizer, each tensor in an allocation of its own. The tools keep one processor busy and the GPU hardly, so
# the cases are dealt out to four processes a GPU: contexts of more take turns on it for too long. A line a process and
# a sum come out.
set -uo pipefail
tool=$1 folder=$2 logs=$3
program=$(find "$folder" -type f -name conformance_test -perm -u+x | head -n 1)
[ -n "$program" ] || { echo "sanitize: conformance_test was not built in $folder" >&2; exit 1; }
gpus=${CUDA_VISIBLE_DEVICES:-$(nvidia-smi --query-gpu=index --format=csv,noheader | paste -sd, -)}
IFS=, read -r -a gpus <<<"$gpus"
count=$((4 * ${#gpus[@]}))

rm -f "$logs/$tool"-*.log
export RANKFOLD_TEST_SEPARATE=1
one() { # one SHARD GPU
  local log=$logs/$tool-$1.log status
  CUDA_VISIBLE_DEVICES=$2 compute-sanitizer --tool "$tool" --error-exitcode 9 --print-limit 20 "$program" cuda \
    --filter '^sanitize/' --shard "$1/$count" >"$log" 2>&1
  status=$?
  [ "$status" -eq 0 ] || cat "$log"
  printf 'process %d of %d: exit %d, %s\n' "$1" "$count" "$status" "$(grep -E '^[0-9]+ passed' "$log")"
  return "$status"
}
running=()
for ((shard = 0; shard < count; ++shard)); do
  one "$shard" "${gpus[shard % ${#gpus[@]}]}" &
  running+=($!)
done
status=0
for process in "${running[@]}"; do wait "$process" || status=1; done
passed=$(cat "$logs/$tool"-*.log | sed -n 's/^\([0-9]*\) passed.*/\1/p' | awk '{ sum += $1 } END { print sum + 0 }')
echo "$passed passed in $count processes of $tool"
exit "$status"
