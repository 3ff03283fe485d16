#!/usr/bin/env bash
# sanitize.sh TOOL FOLDER LOGS: the small calls that reach every kernel of the cuda backend, under a tool of
# compute-sanitizer, each tensor in an allocation of its own. The tools keep one processor busy and the GPU hardly, so
# each operation has a process, four at once: contexts of more take turns on the GPU for too long. A line an operation
# and a sum come out.
set -uo pipefail
tool=$1 folder=$2 logs=$3
test_program=$(find "$folder" -type f -name conformance_test -perm -u+x | head -n 1)
rankfold=$(find "$folder" -type f -name rankfold -perm -u+x | head -n 1)
for program in "$test_program" "$rankfold"; do
  [ -n "$program" ] || { echo "sanitize: conformance_test and rankfold were not both built in $folder" >&2; exit 1; }
done
operations=$("$rankfold" check --list | sed -n 's|^sanitize/\([a-z_]*\)/.*|\1|p' | sort -u)
[ -n "$operations" ] || { echo "sanitize: there is no case of that label" >&2; exit 1; }

rm -f "$logs/$tool"-*.log
export RANKFOLD_TEST_SEPARATE=1
# shellcheck disable=SC2317  # xargs calls it
one() {
  local tool=$1 program=$2 log=$3/$1-$4.log status
  compute-sanitizer --tool "$tool" --error-exitcode 9 --print-limit 20 "$program" cuda --filter "^sanitize/$4/" >"$log" 2>&1
  status=$?
  [ "$status" -eq 0 ] || cat "$log"
  printf '%s: exit %d, %s\n' "$4" "$status" "$(grep -E '^[0-9]+ passed' "$log")"
  return "$status"
}
export -f one
# shellcheck disable=SC2016
printf '%s\n' "$operations" | xargs -P 4 -I OP bash -c 'one "$@"' bash "$tool" "$test_program" "$logs" OP
status=$?
passed=$(cat "$logs/$tool"-*.log | sed -n 's/^\([0-9]*\) passed.*/\1/p' | awk '{ sum += $1 } END { print sum + 0 }')
echo "$passed passed in $(printf '%s\n' "$operations" | wc -l) processes of $tool"
exit "$status"
