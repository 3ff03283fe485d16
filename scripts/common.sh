# shellcheck shell=bash disable=SC2034
# Shared by ./run and the lanes: packages, parallelism, output. Sourced, never run.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root" || exit 1

# One list a purpose; all names are the same in Debian 12 and Ubuntu 24.04.
packages_library="cmake ninja-build g++ libeigen3-dev libtbb-dev nlohmann-json3-dev libre2-dev"
packages_demo="$packages_library libcli11-dev"
packages_test="$packages_library doctest-dev libcli11-dev libfmt-dev"
packages_format="clang-format-14"
# ccache: several lanes compile the same sources with the same flags in folders of their own.
packages_ci="$packages_test $packages_format clang-14 clang-tidy-14 libclang-rt-14-dev llvm-14 pkg-config shellcheck ccache"

# What test and the lane consumer build: release, or ci in CI.
release_preset=${RANKFOLD_PRESET:-release}

# Where ccache is installed, CMake is told to use it.
ccache_arguments=()
if command -v ccache >/dev/null; then
  ccache_arguments=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache -DCMAKE_CUDA_COMPILER_LAUNCHER=ccache)
fi

say() { printf '%s\n' "$*"; }
fail() {
  printf 'run: %s\n' "$*" >&2
  exit 1
}

is_installed() {
  [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

# need_packages LIST: installs what is missing, and touches no network when nothing is.
need_packages() {
  # Elsewhere, or by wish, the build says itself what it misses.
  if [ "${RANKFOLD_APT:-on}" = off ] || ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    return 0
  fi
  local missing=() package
  for package in $1; do
    is_installed "$package" || missing+=("$package")
  done
  [ "${#missing[@]}" -eq 0 ] && return 0

  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null; then
      say "run: these packages are missing, and this user is not root. As root:" >&2
      say "  apt-get update && apt-get install --yes --no-install-recommends ${missing[*]}" >&2
      exit 1
    fi
    as_root=(sudo)
  fi
  say "run: installing ${missing[*]} (minutes; details in build/apt.log)"
  mkdir -p build
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive sh -c '
    apt-get -q update &&
    apt-get -q install --yes --no-install-recommends -o Dpkg::Use-Pty=0 "$@"' apt "${missing[@]}" >build/apt.log 2>&1 || {
    grep -m 5 '^[EW]:' build/apt.log >&2 || tail -n 5 build/apt.log >&2
    fail "the packages could not be installed (is there a network?); all of apt's output is in build/apt.log"
  }
}

# Compile jobs: one a core, and 1.5 GB each of what memory is left.
jobs() {
  local cores kilobytes limit
  cores=$(nproc 2>/dev/null || echo 1)
  kilobytes=$(awk '/^MemAvailable:/ { print $2 }' /proc/meminfo 2>/dev/null)
  limit=$(cat /sys/fs/cgroup/memory.max 2>/dev/null)
  case "$limit" in
    '' | *[!0-9]*) ;;
    *) if [ -n "$kilobytes" ] && [ $((limit / 1024)) -lt "$kilobytes" ]; then kilobytes=$((limit / 1024)); fi ;;
  esac
  if [ -n "$kilobytes" ] && [ $((kilobytes / 1572864)) -lt "$cores" ]; then cores=$((kilobytes / 1572864)); fi
  [ "$cores" -ge 1 ] || cores=1
  echo "$cores"
}

# configure PRESET [cmake arguments]; quiet unless it fails.
configure() {
  local preset=$1 log
  shift
  command -v cmake >/dev/null || fail "cmake is missing; the packages that a build needs are: $packages_test"
  mkdir -p build
  log="build/configure-$preset.log"
  cmake --preset "$preset" "${ccache_arguments[@]}" "$@" >"$log" 2>&1 || {
    cat "$log" >&2
    return 1
  }
  grep -E '^-- rankfold:' "$log" || true
}

build() {
  local preset=$1
  shift
  cmake --build --preset "$preset" --parallel "$(jobs)" "$@"
}

minutes() { awk -v s="$1" 'BEGIN { printf "%.1f", s / 60 }'; }
