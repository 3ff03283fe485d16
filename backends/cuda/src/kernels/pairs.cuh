// How blocks find their rows in PairLists.
#pragma once

#include "pairs.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

/// count 0: there is no such block.
struct PairBlock {
  int slot = 0;
  int expert = 0;
  int first = 0;  ///< in PairLists::rows
  int count = 0;
};

/// The row block of this index, counted over all experts. All lanes of a warp call it, after the
/// lists are made.
__device__ inline PairBlock find_pair_block(const PairLists& lists, int index) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  // By way of the first level of cache: all blocks ask for the same lines.
  const int4* const experts = reinterpret_cast<const int4*>(lists.experts);
  int before = 0;
  for (int base = 0; base < lists.num_experts; base += 128) {
    const int expert = base + 4 * lane;
    int4 low = make_int4(0, 0, 0, 0), high = low;
    if (expert < lists.num_experts) {
      low = experts[expert / 2];
      high = experts[expert / 2 + 1];
    }
    const int own = low.x + low.z + high.x + high.z;
    int sum = own;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(0xffffffffu, sum, step);
      if (lane >= step) sum += other;
    }
    int left = index - before - (sum - own);
    const unsigned who = __ballot_sync(0xffffffffu, left >= 0 && left < own);
    if (who != 0) {
      int first = low.y;
      if (left >= low.x) {
        left -= low.x;
        first = low.w;
        if (left >= low.z) {
          left -= low.z;
          first = high.y;
          if (left >= high.x) {
            left -= high.x;
            first = high.w;
          }
        }
      }
      const int place = __shfl_sync(0xffffffffu, first + left, __ffs(static_cast<int>(who)) - 1);
      const int4 found = lists.blocks[place];
      return {found.x, found.y, found.z, found.w};
    }
    before += __shfl_sync(0xffffffffu, sum, 31);
  }
  return {};
}

}  // namespace cuda
RANKFOLD_NAMESPACE_END
