// How the memory of group_tokens() is laid out: the same on every backend.
#pragma once

#include <cstddef>
#include <cstdint>

#include "rankfold/addressing.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace detail {

/// Rows that one tile of a parallel counting sort may take; scratch holds a counter a tile and
/// slot.
inline constexpr std::int64_t kGroupingTile = 1024;

/// Byte offsets from the start of the memory, each a multiple of 16.
struct GroupingLayout {
  std::int64_t max_segments = 0;
  std::size_t token_order = 0;
  std::size_t segment_offsets = 0;
  std::size_t segment_slots = 0;
  std::size_t num_segments = 0;
  std::size_t scratch = 0;  ///< int32 [num_slots * (tiles + 1)]
  std::size_t bytes = 0;
};

GroupingLayout grouping_layout(std::int64_t num_tokens, std::int32_t num_slots) noexcept;

}  // namespace detail
RANKFOLD_NAMESPACE_END
