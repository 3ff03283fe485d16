// What decode_shrink.cu does before it waits for the kernel in front of the call: included there
// alone.
#pragma once

#include "decode_shrink_tiles.cuh"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

namespace {

// Not by way of the first level of cache, which would keep what the kernel in front still changes.
__device__ __forceinline__ std::int32_t peek(const std::int32_t* p) {
  std::int32_t v;
  asm volatile("ld.relaxed.gpu.global.s32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
__device__ __forceinline__ std::uint64_t peek(const void* p) {
  std::uint64_t v;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
}

// Asks for the block's part of A in the second level of cache, which is coherent: nothing is used
// of what is read here, and what the kernel in front still writes is seen. What it changes in the
// addressing or in an entry makes this ask for other lines, no more.
template <class TA, Lookup kLookup>
__device__ __forceinline__ void fetch_early(const DecodeShrinkParams& p) {
  const int block = static_cast<int>(blockIdx.x);
  const Grouping& grouping = p.grouping;
  int slot = -1;
  if constexpr (kLookup == Lookup::uniform) {
    slot = block == 0 ? grouping.uniform_slot : -1;
  } else {
    const bool listed = kLookup == Lookup::segments || p.kind == Grouping::segments;
    if (!listed && p.kind == Grouping::uniform) {
      slot = block == 0 ? grouping.uniform_slot : -1;
    } else if (block < (listed ? grouping.max_segments : grouping.num_tokens)) {
      slot = peek((listed ? grouping.slots : grouping.token_slots) + block);
    }
  }
  if (slot < 0 || slot >= grouping.num_slots) return;
  const int split = static_cast<int>(blockIdx.y);
  const int begin = (split * p.groups_of_split + min(split, p.longer_splits)) * kGroup;
  const int length =
      min((p.groups_of_split + (split < p.longer_splits ? 1 : 0)) * kGroup, p.in - begin);
  constexpr int kLine = 128 / static_cast<int>(sizeof(TA));
  const int lines = (length + kLine - 1) / kLine;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int sharers = max(kWarps / p.num_slices, 1);
  for (int slice = warp / sharers; slice < p.num_slices; slice += kWarps / sharers) {
    const AdapterEntry* const entry = p.entries + slot * p.slot_stride + slice;
    const auto a = reinterpret_cast<const TA*>(peek(static_cast<const void*>(&entry->a)));
    const int rank = min(peek(&entry->rank), p.max_rank);
    const auto stride =
        static_cast<std::int64_t>(peek(static_cast<const void*>(&entry->a_row_stride)));
    if (a == nullptr || rank <= 0) continue;
    for (int item = warp % sharers * 32 + lane; item < rank * lines; item += 32 * sharers) {
      const int row = item / lines, line = item % lines;
      asm volatile("prefetch.global.L2 [%0];" ::"l"(a + row * stride + begin + line * kLine)
                   : "memory");
    }
  }
}

}  // namespace

}  // namespace cuda
RANKFOLD_NAMESPACE_END
