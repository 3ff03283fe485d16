// How the blocks of a grid find their rows: a row block is a few rows of one slot. The list is
// never written down: every warp finds its own block from the addressing in one round of loads and
// a scan.
#pragma once

#include <algorithm>
#include <cstdint>

#include "rankfold/adapter_table.hpp"
#include "rankfold/addressing.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

/// Where rows stand; copied into the kernel's parameters.
struct Grouping {
  enum Kind : int {
    uniform = 0,   ///< all rows are of uniform_slot, in order
    segments = 1,  ///< order, offsets, slots, num_segments
    few = 2,       ///< token_slots of at most kFewTokens rows, grouped by every warp for itself
    single = 3,    ///< token_slots; each row is a block
  };
  int num_slots = 0;
  int uniform_slot = -1;
  int num_tokens = 0;
  int max_segments = 0;
  const std::int32_t* token_slots = nullptr;
  const std::int32_t* order = nullptr;         ///< int32 [num_tokens]
  const std::int32_t* offsets = nullptr;       ///< int32 [max_segments + 1]
  const std::int32_t* slots = nullptr;         ///< int32 [max_segments]
  const std::int32_t* num_segments = nullptr;  ///< int32 [1]
};
inline constexpr int kFewTokens = 64;

/// Upper bound of the row blocks that active_rows rows in max_segments segments make; exact for
/// uniform.
constexpr std::int64_t row_block_bound(Grouping::Kind kind, std::int64_t active_rows,
                                       std::int64_t max_segments,
                                       std::int64_t rows_per_block) noexcept {
  if (kind == Grouping::uniform) return (active_rows + rows_per_block - 1) / rows_per_block;
  if (kind == Grouping::single) return active_rows;
  const std::int64_t segments = std::min(active_rows, max_segments);
  return segments + (active_rows - segments) / rows_per_block;
}

#if defined(__CUDACC__)

/// slot -1: there is no such block.
struct RowBlock {
  int slot = -1;
  int count = 0;  ///< rows, at most those of a block
  int first = 0;  ///< uniform, segments: its place in the order
  int row = 0;    ///< few, single: the row of lane i < count; other lanes: row 0 of the block
};

namespace detail {

template <int kRows>
__device__ inline RowBlock find_in_segments(const Grouping& g, int block, int lane) {
  RowBlock found;
  const int given = *g.num_segments;
  // Mostly a segment is a block; asked for with all the rest, so that what follows may begin at
  // once.
  const bool may = block < g.max_segments;
  const int likely_slot = may ? g.slots[block] : -1;
  const int likely_first = may ? g.offsets[block] : 0;
  const int likely_end = may ? g.offsets[block + 1] : 0;
  int before = 0;  // blocks of the segments so far
  // 64 segments a round: two a lane, so that their loads do not wait for one another.
  for (int base = 0; base < g.max_segments; base += 64) {
    const int i = base + 2 * lane;
    const bool has0 = i < g.max_segments, has1 = i + 1 < g.max_segments;
    int at0 = has0 ? g.offsets[i] : 0;
    int at1 = has0 ? g.offsets[i + 1] : 0;
    int at2 = has1 ? g.offsets[i + 2] : 0;
    const int slot0 = has0 ? g.slots[i] : -1;
    const int slot1 = has1 ? g.slots[i + 1] : -1;
    // What stands past num_segments is not used; what does not fit the batch or the table is no
    // row.
    at0 = min(max(at0, 0), g.num_tokens);
    at1 = min(max(at1, at0), g.num_tokens);
    at2 = min(max(at2, at1), g.num_tokens);
    const bool good0 = i < given && slot0 >= 0 && slot0 < g.num_slots;
    const bool good1 = i + 1 < given && slot1 >= 0 && slot1 < g.num_slots;
    const int blocks0 = good0 ? (at1 - at0 + kRows - 1) / kRows : 0;
    const int blocks1 = good1 ? (at2 - at1 + kRows - 1) / kRows : 0;
    if (may && base == 0 && block < 64 &&
        __all_sync(0xffffffffu, (i > block || blocks0 == 1) && (i + 1 > block || blocks1 == 1))) {
      found.slot = likely_slot;
      found.first = min(max(likely_first, 0), g.num_tokens);
      found.count = min(max(likely_end, 0), g.num_tokens) - found.first;
      return found;
    }
    int sum = blocks0 + blocks1;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(0xffffffffu, sum, step);
      if (lane >= step) sum += other;
    }
    const int own = before + sum - blocks0 - blocks1;  // index of the lane's first block
    const bool mine = block >= own && block < before + sum;
    const unsigned who = __ballot_sync(0xffffffffu, mine);
    if (who != 0) {
      const bool second = block >= own + blocks0;
      const int first =
          second ? at1 + (block - own - blocks0) * kRows : at0 + (block - own) * kRows;
      const int source = __ffs(static_cast<int>(who)) - 1;
      const int end = __shfl_sync(0xffffffffu, second ? at2 : at1, source);
      found.first = __shfl_sync(0xffffffffu, first, source);
      found.slot = __shfl_sync(0xffffffffu, second ? slot1 : slot0, source);
      found.count = min(kRows, end - found.first);
      return found;
    }
    before += __shfl_sync(0xffffffffu, sum, 31);
    if (base + 64 >= given) break;
  }
  return found;
}

/// The index of the n-th set bit, from 0 on; n is less than the number of set bits.
__device__ inline int nth_bit(unsigned bits, int n) {
  int index = 0;
#pragma unroll
  for (int width = 16; width > 0; width /= 2) {
    const int count = __popc(bits & ((1u << width) - 1));
    const bool above = n >= count;
    n -= above ? count : 0;
    index += above ? width : 0;
    bits = above ? bits >> width : bits;
  }
  return index;
}

template <int kRows>
__device__ inline RowBlock find_among_few(const Grouping& g, int block, int lane) {
  RowBlock found;
  const unsigned below = (1u << lane) - 1;
  int slot0 = lane < g.num_tokens ? g.token_slots[lane] : -1;
  int slot1 = lane + 32 < g.num_tokens ? g.token_slots[lane + 32] : -1;
  slot0 = slot0 < g.num_slots && slot0 >= 0 ? slot0 : -1;
  slot1 = slot1 < g.num_slots && slot1 >= 0 ? slot1 : -1;
  // How many rows of the same slot stand before: a multiple of kRows begins a block.
  const int index0 = __popc(__match_any_sync(0xffffffffu, slot0) & below);
  int index1 = 0;
  if (g.num_tokens > 32) {
    index1 = __popc(__match_any_sync(0xffffffffu, slot1) & below);
#pragma unroll 8
    for (int i = 0; i < 32; ++i) index1 += __shfl_sync(0xffffffffu, slot0, i) == slot1 ? 1 : 0;
  }
  const bool leads0 = slot0 >= 0 && index0 % kRows == 0;
  const bool leads1 = slot1 >= 0 && index1 % kRows == 0;
  const unsigned leaders0 = __ballot_sync(0xffffffffu, leads0);
  const unsigned leaders1 = __ballot_sync(0xffffffffu, leads1);
  const bool mine0 = leads0 && __popc(leaders0 & below) == block;
  const bool mine1 = leads1 && __popc(leaders0) + __popc(leaders1 & below) == block;
  const unsigned who = __ballot_sync(0xffffffffu, mine0 || mine1);
  if (who == 0) return found;
  const int source = __ffs(static_cast<int>(who)) - 1;
  found.slot = __shfl_sync(0xffffffffu, mine1 ? slot1 : slot0, source);
  const int begin = __shfl_sync(0xffffffffu, mine1 ? index1 : index0, source);
  const bool in0 = slot0 == found.slot && index0 >= begin && index0 < begin + kRows;
  const bool in1 = slot1 == found.slot && index1 >= begin && index1 < begin + kRows;
  const unsigned members0 = __ballot_sync(0xffffffffu, in0);
  const unsigned members1 = __ballot_sync(0xffffffffu, in1);
  found.count = __popc(members0) + __popc(members1);
  const int below32 = __popc(members0);
  const int place = lane < found.count ? lane : 0;
  found.row = place < below32 ? nth_bit(members0, place) : 32 + nth_bit(members1, place - below32);
  return found;
}

}  // namespace detail

/// The row block of this index, the same in all lanes but for `row`. All lanes of a warp call it.
/// kRows at most 32 for few.
template <int kKind, int kRows>
__device__ inline RowBlock find_row_block(const Grouping& g, int block) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if constexpr (kKind == Grouping::segments) {
    return detail::find_in_segments<kRows>(g, block, lane);
  } else if constexpr (kKind == Grouping::few) {
    return detail::find_among_few<kRows>(g, block, lane);
  } else {
    RowBlock found;
    found.first = block * kRows;
    found.row = found.first;
    if (found.first >= g.num_tokens) return found;
    const int slot = kKind == Grouping::uniform ? g.uniform_slot : g.token_slots[block];
    found.slot = slot >= 0 && slot < g.num_slots ? slot : -1;
    found.count = min(kRows, g.num_tokens - found.first);
    return found;
  }
}

/// The row that stands at place i < count of a block; for few all lanes of the warp call it, with i
/// < 32.
template <int kKind>
__device__ inline int row_at(const Grouping& g, const RowBlock& block, int i) {
  if constexpr (kKind == Grouping::segments) {
    // A host's own form may hold anything: a row past the batch would be written to.
    return min(max(g.order[block.first + i], 0), g.num_tokens - 1);
  } else if constexpr (kKind == Grouping::few) {
    return __shfl_sync(0xffffffffu, block.row, i);
  } else {
    return block.first + i;
  }
}

#endif  // __CUDACC__

}  // namespace cuda
RANKFOLD_NAMESPACE_END
