#!/usr/bin/env bash
# include_arrows.sh [DIRECTORY]: which folder may include what. One line for each include that breaks
# the table; exit 1 if there is one. The table is the one of HACKING.md.
set -euo pipefail
cd "${1:-$(dirname "${BASH_SOURCE[0]}")/..}"

# Our own headers are found below these folders, and external ones match this expression.
rule_of() {
  local file=$1 part
  case "$file" in
    core/include/*) roots="core/include" external='^$' ;;
    core/src/*) roots="core/include core/src" external='^(nlohmann|re2)/' ;;
    reference/*) roots="core/include reference/include reference/src" external='^((Eigen|tbb|oneapi)/|immintrin\.h$)' ;;
    backends/cuda/tests/*) roots="core/include backends/cuda/include backends/cuda/src backends/cuda/tests tests tests/support tests/conformance" external='^(doctest/|cuda)' ;;
    backends/cuda/*) roots="core/include backends/cuda/include backends/cuda/src" external='^(cuda|cub/|cooperative_groups|mma\.h|nv)' ;;
    backends/kokkos/*) roots="core/include backends/kokkos backends/kokkos/include" external='^Kokkos_' ;;
    tests/unit/reference/*) roots="core/include reference/include core/src reference/src tests tests/support tests/conformance" external='^(doctest|tbb|oneapi)/' ;;
    tests/unit/bench/*) roots="core/include tools tests tests/support" external='^(doctest|nlohmann|fmt)/' ;;
    tests/unit/*) roots="core/include reference/include core/src tests tests/support tests/conformance" external='^((doctest|nlohmann)/|immintrin\.h$)' ;;
    tests/golden/*) roots="core/include reference/include tests tests/support examples/01_string_tasks" external='^(doctest|nlohmann)/' ;;
    tests/train_adapter/*) roots="core/include tests tests/support examples/01_string_tasks examples/02_train_adapter" external='^doctest/' ;;
    tests/conformance/thread_counts_test.cpp) roots="core/include reference/include tests tests/support tests/conformance" external='^(doctest|tbb|oneapi)/' ;;
    tests/conformance/name_filter.cpp) roots="core/include tests/conformance" external='^re2/' ;;
    tests/install/*) roots="core/include reference/include backends/cuda/include" external='^$' ;;
    tests/*) roots="core/include reference/include tests tests/support tests/conformance" external='^(doctest|nlohmann|fmt|sanitizer)/' ;;
    tools/bench/host_matrix_rate.cpp) roots="core/include tools" external='^Eigen/' ;;
    tools/bench/cuda_*) roots="core/include tools" external='^(fmt/|cuda|cublas_v2\.h)' ;;
    tools/*) roots="core/include reference/include tools tests tests/support tests/conformance" external='^(CLI|nlohmann|fmt)/' ;;
    bench/*) roots="core/include reference/include bench tests tests/support tests/conformance" external='^(Eigen|benchmark|CLI|nlohmann|fmt)/' ;;
    examples/02_train_adapter/*) roots="core/include examples/02_train_adapter examples/01_string_tasks" external='^(Eigen|CLI)/' ;;
    examples/*)
      part=${file#examples/}
      roots="core/include reference/include examples/${part%%/*}" external='^(Eigen|nlohmann|CLI|fmt)/'
      ;;
    *) return 1 ;;
  esac
}

standard='^[a-z_0-9]+$'
posix='^((sys/[a-z]+|unistd|fcntl|dlfcn|pthread|sched|malloc|stdlib|stddef|stdint)\.h|cxxabi\.h)$'

num_files=0 num_includes=0 num_broken=0
broken() {
  printf '%s\n' "$*"
  num_broken=$((num_broken + 1))
}

check_include() {
  local file=$1 line=$2 style=$3 header=$4 root
  num_includes=$((num_includes + 1))
  case "$header" in *../*)
    header=$(realpath -m --relative-to=. "$(dirname "$file")/$header")
    for root in $roots; do
      case "$header" in "$root"/*) [ -f "$header" ] && return ;; esac
    done
    broken "$file:$line: $header is not below one of: $roots"
    return
    ;;
  esac
  if [ "$style" = '<' ]; then
    [[ $header =~ $standard ]] && return
    if [[ $header =~ $posix ]]; then
      case "$file" in core/include/* | examples/*) broken "$file:$line: $header is not portable" ;; esac
      return
    fi
  elif [ -f "$(dirname "$file")/$header" ]; then
    return
  fi
  for root in $roots; do
    [ -f "$root/$header" ] && return
  done
  [[ $header =~ $external ]] && return
  broken "$file:$line: $header is not allowed here (own headers: $roots; others: $external)"
}

while IFS= read -r file; do
  rule_of "$file" || {
    broken "$file: no rule for this folder"
    continue
  }
  num_files=$((num_files + 1))
  while IFS=: read -r line style header; do
    [ -n "$line" ] && check_include "$file" "$line" "$style" "$header"
  done < <(sed -nE '/^[[:space:]]*#[[:space:]]*include/ { =; s/^[^<"]*([<"])([^>"]*)[>"].*/\1:\2/p }' "$file" | paste -d: - -)
done < <(find core reference backends tests tools bench examples -path '*/data' -prune -o \
  \( -name '*.hpp' -o -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \) -print 2>/dev/null | sort)

# Nor may the public headers name such a type without an include.
while IFS= read -r hit; do
  broken "$hit: a type of a dependency in a public header"
done < <(find core/include -name '*.hpp' -exec sed -E 's,//.*,,' {} + |
  grep -nE '\b(Eigen|tbb|oneapi|nlohmann|re2|Kokkos)::|\bcuda[A-Z][A-Za-z]*_t\b|\b__half\b' || true)

printf '%d files, %d includes, %d against the table\n' "$num_files" "$num_includes" "$num_broken"
[ "$num_broken" -eq 0 ]
