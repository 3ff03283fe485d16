#!/usr/bin/env bash
# shellcheck disable=SC2016
#
# docs_check.sh: links, anchors and paths in the documents lead somewhere, the README's map is the
# tree, and every block of C++ compiles against the public headers.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

num_broken=0 num_links=0 num_paths=0 num_blocks=0
broken() {
  printf '%s\n' "$*"
  num_broken=$((num_broken + 1))
}

# The anchors of a document, as web views of Markdown make them from headings.
anchors() {
  sed -nE '/^```/,/^```/d; s/^#+ +//p' "$1" | tr '[:upper:]' '[:lower:]' | sed -E 's/[^a-z0-9 _-]//g; s/ /-/g'
}

mapfile -t documents < <(git ls-files '*.md')
for document in "${documents[@]}"; do
  while IFS= read -r link; do
    num_links=$((num_links + 1))
    case "$link" in http://* | https://* | mailto:*) continue ;; esac
    path=${link%%#*} anchor=""
    case "$link" in *'#'*) anchor=${link#*#} ;; esac
    target=$document
    [ -z "$path" ] || target=$(dirname "$document")/$path
    if [ ! -e "$target" ]; then
      broken "$document: the link $link leads nowhere"
    elif [ -n "$anchor" ] && ! anchors "$target" | grep -qxF "$anchor"; then
      broken "$document: $target has no heading for #$anchor"
    fi
  done < <(sed '/^```/,/^```/d' "$document" | grep -oE '\]\([^) ]+\)' | sed -E 's/^\]\((.*)\)$/\1/' || true)

  # `folder/file` in code quotes; names in capitals and <angles> stand for something else.
  while IFS= read -r path; do
    case "$path" in *[A-Z\<\>*\{]*) continue ;; esac
    num_paths=$((num_paths + 1))
    [ -e "$path" ] || broken "$document: there is no $path"
  done < <(grep -oE '`(core|reference|backends|tests|examples|tools|bench|cmake|scripts|docs)/[^` ]*`' "$document" | tr -d '`' || true)
done

# The README's map of the folders.
mapfile -t mapped < <(sed -nE 's,^\| `([a-z.]+)/` \|.*,\1,p' README.md | sort)
mapfile -t folders < <(git ls-files | sed -nE 's,^([a-z][^/]*)/.*,\1,p' | sort -u)
[ "${mapped[*]}" = "${folders[*]}" ] || broken "README.md maps '${mapped[*]}', the tree has '${folders[*]}'"

blocks=$(mktemp -d)
trap 'rm -rf "$blocks"' EXIT
for document in "${documents[@]}"; do
  awk -v prefix="$blocks/$(printf '%s' "$document" | tr '/.' '__')" '
    /^```cpp$/ { on = 1; name = prefix "_line" NR ".cpp"; print "#include <rankfold/rankfold.hpp>\n#include <rankfold/reference.hpp>\n#include <rankfold/cuda.hpp>" >name; next }
    /^```$/ && on { on = 0; close(name); next }
    on { print >name }' "$document"
done
for block in "$blocks"/*.cpp; do
  num_blocks=$((num_blocks + 1))
  g++ -std=c++20 -fsyntax-only -Wall -Wextra -Werror -Icore/include -Ireference/include -Ibackends/cuda/include "$block" ||
    broken "$(basename "$block"): this block of C++ does not compile"
done

printf '%d links, %d paths, %d blocks of C++, %d faults\n' "$num_links" "$num_paths" "$num_blocks" "$num_broken"
[ "$num_broken" -eq 0 ]
