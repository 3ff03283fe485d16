#!/usr/bin/env bash
# clang-tidy 14 with the checks of .clang-tidy over the library and the tool. Most of a file's time goes into the headers
# that it includes, so files of one folder are joined to one text, and each group is checked as one file. A group with a
# finding, or whose files do not go together, is checked file by file, and that counts.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../common.sh"
configure asan
work="$root/build/tidy"
rm -rf "$work"
mkdir -p "$work"
# What needs a CUDA toolkit is not in this build.
mapfile -t files < <(git ls-files 'core/src/*.cpp' 'reference/src/*.cpp' 'tools/*.cpp' ':!tools/bench/cuda_*')

# What a file defines at the beginning of a line: two files that define the same do not go together.
names_of() {
  sed -nE '/^(namespace|using|RANKFOLD|#|\/)/d; s/^[A-Za-z][^(={;]*[ *&]([A-Za-z_]+) *(\(|=|\{|\[|;).*/\1/p' "$1" | sort -u
}

# Groups of at most eight files: each file goes into the first group of its folder that has room and none of its names.
declare -A taken
groups=() group_folders=() group_sizes=()
for file in "${files[@]}"; do
  folder=$(dirname "$file")
  mapfile -t names < <(names_of "$file")
  for ((g = 0; g < ${#groups[@]}; ++g)); do
    if [ "${group_folders[$g]}" != "$folder" ] || [ "${group_sizes[$g]}" -eq 8 ]; then continue; fi
    fits=1
    for name in "${names[@]}"; do [ -z "${taken[$g.$name]:-}" ] || fits=0; done
    [ "$fits" -eq 0 ] || break
  done
  if [ "$g" -eq "${#groups[@]}" ]; then groups+=("") group_folders+=("$folder") group_sizes+=(0); fi
  groups[g]+="$file "
  group_sizes[g]=$((group_sizes[g] + 1))
  for name in "${names[@]}"; do taken[$g.$name]=1; done
done

# A compilation database of the groups: the command of a group's first file, with the joined text in its place.
commands=""
for g in "${!groups[@]}"; do
  text="$work/group_$g.cpp"
  first=${groups[$g]%% *}
  for file in ${groups[$g]}; do cat "$file"; done >"$text"
  command=$(awk -v file="\"file\": \"$root/$first\"" '
    /"command":/ { command = $0 } index($0, file) { print command; exit }' build/asan/compile_commands.json |
    sed -E 's/^ *"command": "(.*)",?$/\1/')
  [ -n "$command" ] || fail "$first is not in build/asan/compile_commands.json"
  command=${command/"-c $root/$first"/"-I$root/$(dirname "$first") -c $text"}
  commands+=${commands:+,}$(printf '\n{"directory": "%s", "file": "%s", "command": "%s"}' "$root/build/asan" "$text" "$command")
done
printf '[%s\n]\n' "$commands" >"$work/compile_commands.json"

tidy_group() { # tidy_group NUMBER FILES: silent where all is well
  local group=$1 file failed=0
  shift
  if clang-tidy-14 --quiet "--config-file=$root/.clang-tidy" -p "$work" --warnings-as-errors='*' "$work/group_$group.cpp" >"$work/group_$group.log" 2>&1; then
    return 0
  fi
  grep -m 1 -E 'error:' "$work/group_$group.log" || true
  printf 'group %s: its %d files are checked apart\n' "$group" $#
  for file in "$@"; do
    clang-tidy-14 --quiet -p build/asan --warnings-as-errors='*' "$file" || failed=1
  done
  return "$failed"
}
export -f tidy_group
export work root
# The largest groups first, so that no core waits at the end.
for g in "${!groups[@]}"; do
  printf '%d %s %s\n' "$(wc -c <"$work/group_$g.cpp")" "$g" "${groups[$g]}"
done | sort -rn | cut -d ' ' -f 2- >"$work/list"
# shellcheck disable=SC2016
xargs -d '\n' -n 1 -P "$(jobs)" bash -c 'read -ra words <<<"$0" && tidy_group "${words[@]}"' <"$work/list" 2>&1 |
  { grep -vE '^[0-9]+ warnings? (generated|treated as errors?)\.?$' || true; }
say "${#files[@]} files are tidy, in ${#groups[@]} groups"
