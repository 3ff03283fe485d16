// How the kernels of few rows find their row block, whatever the addressing.
#pragma once

#include "../row_blocks.cuh"
#include "decode.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

/// Addressings that a kernel is compiled for, which counts where a call takes three microseconds:
/// uniform reads no metadata at all; any tells them apart at run time.
enum class Lookup { uniform, segments, any };

template <Lookup kLookup>
__device__ inline RowBlock find_decode_block(const Grouping& g, int kind, int block) {
  if constexpr (kLookup == Lookup::uniform) {
    return find_row_block<Grouping::uniform, kDecodeRows>(g, block);
  } else if constexpr (kLookup == Lookup::segments) {
    return find_row_block<Grouping::segments, kDecodeRows>(g, block);
  } else {
    switch (kind) {
      case Grouping::segments:
        return find_row_block<Grouping::segments, kDecodeRows>(g, block);
      case Grouping::few:
        return find_row_block<Grouping::few, kDecodeRows>(g, block);
      case Grouping::single:
        return find_row_block<Grouping::single, 1>(g, block);
      default:
        return find_row_block<Grouping::uniform, kDecodeRows>(g, block);
    }
  }
}

/// The row at place i of the block, for each lane its own i; lanes with i >= count get row 0 of the
/// batch or any other of it. All lanes call it.
template <Lookup kLookup>
__device__ inline int decode_row(const Grouping& g, int kind, const RowBlock& block, int i) {
  if constexpr (kLookup == Lookup::uniform) {
    return min(block.first + i, g.num_tokens - 1);
  } else if constexpr (kLookup == Lookup::segments) {
    return row_at<Grouping::segments>(g, block, min(i, block.count - 1));
  } else {
    // A predicated load rather than a branch: at a join the load would be waited for.
    int row = __shfl_sync(0xffffffffu, block.row, i);
    if (kind == Grouping::segments && i < block.count) row = g.order[block.first + i];
    if (kind == Grouping::uniform) row = block.first + i;
    return min(max(row, 0), g.num_tokens - 1);
  }
}

}  // namespace cuda
RANKFOLD_NAMESPACE_END
