// Which bytes of the pool's arena are free: offsets only, no memory is touched here.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "rankfold/export.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace detail {

/// Every matrix in the arena starts at a multiple of this, and takes one.
inline constexpr std::uint64_t kArenaUnit = 16;

constexpr std::uint64_t round_to_unit(std::uint64_t bytes) noexcept {
  return (bytes + kArenaUnit - 1) / kArenaUnit * kArenaUnit;
}

/// A run of bytes of the arena.
struct Extent {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

/// Where the matrices of one adapter lie.
struct Placement {
  std::vector<Extent> extents;         ///< what the adapter holds
  std::vector<std::uint64_t> offsets;  ///< of each matrix
};

/// Free extents, coalesced. A copy is cheap and serves as a trial. Not thread-safe.
class Arena {
 public:
  explicit Arena(std::uint64_t bytes = 0);

  /// Places matrices of these sizes (multiples of the unit): in the smallest free extent that takes
  /// all of them, else split between matrices over several extents, largest first. false: no room,
  /// nothing changed.
  bool place(std::span<const std::uint64_t> sizes, Placement* placement);
  /// Gives an extent back and joins it with its free neighbours.
  void release(const Extent& extent);
  void release(std::span<const Extent> extents);
  /// Takes exactly this extent, which must be free.
  void take(const Extent& extent);
  /// The free parts of an extent.
  std::vector<Extent> free_within(const Extent& extent) const;

  std::uint64_t bytes() const noexcept { return bytes_; }
  std::uint64_t free_bytes() const noexcept { return free_bytes_; }
  std::uint64_t in_use() const noexcept { return bytes_ - free_bytes_; }
  std::uint64_t largest_free() const noexcept;

 private:
  using Map = std::map<std::uint64_t, std::uint64_t>;  // offset -> bytes
  bool place_together(std::span<const std::uint64_t> sizes, std::uint64_t total,
                      Placement* placement);
  bool place_split(std::span<const std::uint64_t> sizes, Placement* placement);

  std::uint64_t bytes_ = 0;
  std::uint64_t free_bytes_ = 0;
  Map free_;
};

}  // namespace detail
RANKFOLD_NAMESPACE_END
