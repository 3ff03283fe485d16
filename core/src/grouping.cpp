#include "grouping.hpp"

#include <algorithm>
#include <limits>

RANKFOLD_NAMESPACE_BEGIN
namespace detail {

GroupingLayout grouping_layout(std::int64_t num_tokens, std::int32_t num_slots) noexcept {
  GroupingLayout layout;
  if (num_tokens <= 0 || num_slots < 0) return layout;
  if (num_tokens > std::numeric_limits<std::int32_t>::max()) {
    // Row numbers are int32: group_tokens() refuses this, and no memory is enough for it.
    layout.bytes = std::numeric_limits<std::size_t>::max();
    return layout;
  }
  layout.max_segments = std::min<std::int64_t>(num_tokens, num_slots);
  std::size_t at = 0;
  const auto take = [&at](std::int64_t num_int32) {
    const std::size_t offset = at;
    at += (static_cast<std::size_t>(num_int32) * 4 + 15) / 16 * 16;
    return offset;
  };
  const std::int64_t tiles = (num_tokens + kGroupingTile - 1) / kGroupingTile;
  layout.token_order = take(num_tokens);
  layout.segment_offsets = take(layout.max_segments + 1);
  layout.segment_slots = take(layout.max_segments);
  layout.num_segments = take(1);
  layout.scratch = take(num_slots * (tiles + 1));
  layout.bytes = at;
  return layout;
}

}  // namespace detail

std::size_t grouping_bytes(std::int64_t num_tokens, std::int32_t num_slots) noexcept {
  return detail::grouping_layout(num_tokens, num_slots).bytes;
}

RANKFOLD_NAMESPACE_END
