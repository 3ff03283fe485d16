// The kernel of decode_shrink.cu for any rank, included there alone: tiles are listed as the
// entries say.
#pragma once

#include "decode_early.cuh"
#include "decode_shrink_tiles.cuh"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

namespace {

// The lane's rows of kTiles tiles from `first` on, of all that the slices have; past the last it
// again. Lane s has slice s; end: where its tiles end among all.
template <class TA, int kTiles>
__device__ __forceinline__ void list_tiles(const DecodeShrinkParams& p, const EntryOfA<TA>& entry,
                                           int end, int total, int first, int place,
                                           const TA* (&a)[kTiles], Columns& columns) {
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
    const int tile = min(first + i, total - 1);
    const int slice = __ffs(static_cast<int>(__ballot_sync(kAll, end > tile))) - 1;
    const int begin = slice > 0 ? __shfl_sync(kAll, end, slice > 0 ? slice - 1 : 0) : 0;
    const auto of_slice = reinterpret_cast<const TA*>(
        __shfl_sync(kAll, reinterpret_cast<unsigned long long>(entry.a), slice));
    const std::int64_t stride = __shfl_sync(kAll, static_cast<long long>(entry.stride), slice);
    const int rank = __shfl_sync(kAll, entry.rank, slice), from = (tile - begin) * kTile;
    a[i] = of_slice + min(from + g, rank - 1) * stride + 8 * t;
    columns.first[place + i] = slice * p.max_rank + from;
    columns.ranks[place + i] = first + i < total ? min(rank - from, kTile) : 0;
  }
}

// Twice kTiles tiles at a time, by the two halves of the block's warps; evenly where all fit.
template <class TX, class TA, int kTiles, int kGroups>
__device__ __forceinline__ void shrink_halves(const DecodeShrinkParams& p,
                                              const EntryOfA<TA>& entry, bool wide, int end,
                                              int total, const TX* const (&x)[2], int count,
                                              Shared& shared) {
  const bool second = threadIdx.x >= kThreads / 2;
#pragma unroll 1
  for (int first = 0; first < total; first += 2 * kTiles) {
    if (first > 0) __syncthreads();
    const int rest = min(total - first, 2 * kTiles), half = (rest + 1) / 2;
    const int from = second ? first + half : first, to = second ? first + rest : first + half;
    const TA* a[kTiles];
    list_tiles(p, entry, end, to, from, second ? kTiles : 0, a, shared.columns);
    shrink_tiles<TX, TA, kTiles, kGroups, 2, true>(p, a, wide, x, count, 0, shared);
  }
}

constexpr int kFewSlices = 3;

// The lane's rows of up to eight ranks of each slice; a slice of rank 0 has another's. False: none
// has a rank.
template <class TA>
__device__ __forceinline__ bool tiles_of_slices(const DecodeShrinkParams& p,
                                                const EntryOfA<TA> (&entry)[kFewSlices],
                                                const TA* (&a)[kFewSlices], Columns& columns) {
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
  const TA* some = nullptr;
#pragma unroll
  for (int i = 0; i < kFewSlices; ++i) some = entry[i].rank > 0 ? entry[i].a : some;
#pragma unroll
  for (int i = 0; i < kFewSlices; ++i) {
    const int rank = entry[i].rank;
    a[i] = (rank > 0 ? entry[i].a : some) + max(min(g, rank - 1), 0) * entry[i].stride + 8 * t;
    if (threadIdx.x == 0) {
      columns.first[i] = i * p.max_rank;
      columns.ranks[i] = i < p.num_slices ? rank : 0;
    }
  }
  return some != nullptr;
}

template <class TX, class TA, Lookup kLookup>
__global__ void __launch_bounds__(kThreads, 1)
    decode_shrink_any_rank(const __grid_constant__ DecodeShrinkParams p) {
  __shared__ __align__(16) Shared shared;
  if (p.fetches != 0) fetch_early<TA, kLookup>(p);
  wait_for_previous();
  release_next();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const RowBlock block =
      find_decode_block<kLookup>(p.grouping, p.kind, static_cast<int>(blockIdx.x));
  if (block.slot < 0) return;
  const AdapterEntry* const entries = p.entries + block.slot * p.slot_stride;
  EntryOfA<TA> entry{nullptr, 0, 0}, few[kFewSlices];
  const bool knows_all = p.num_slices <= kFewSlices;
  if (knows_all) {
#pragma unroll
    for (int i = 0; i < kFewSlices; ++i)
      few[i] = read_entry<TA>(entries + min(i, p.num_slices - 1), p.max_rank);
  } else if (lane < p.num_slices) {
    entry = read_entry<TA>(entries + lane, p.max_rank);
  }
  const TX* x[2];
  rows_of_x<kLookup>(p, block, x, shared.rows);
  constexpr int kGroupsOfFew = sizeof(TA) == 2 ? 4 : 2;
  if (knows_all) {
    if (max(max(few[0].rank, few[1].rank), few[2].rank) <= kTile) {
      // Nothing need be listed: as in a table of low rank a tile is a slice.
      const TA* a[kFewSlices];
      if (!tiles_of_slices(p, few, a, shared.columns)) return;
      bool wide = p.wide != 0;
#pragma unroll
      for (int i = 0; i < kFewSlices; ++i)
        wide &= few[i].rank == 0 || is_wide(few[i].a, few[i].stride);
      shrink_tiles<TX, TA, kFewSlices, kGroupsOfFew, 1, true>(p, a, wide, x, block.count, 0,
                                                              shared);
      return;
    }
#pragma unroll
    for (int i = 0; i < kFewSlices; ++i) {
      if (lane == i && i < p.num_slices) entry = few[i];
    }
  }
  int end = (entry.rank + kTile - 1) / kTile;
#pragma unroll
  for (int step = 1; step < kMaxSlices; step *= 2) {
    const int other = __shfl_up_sync(kAll, end, step);
    if (lane >= step) end += other;
  }
  const int total = __shfl_sync(kAll, end, p.num_slices - 1);
  if (total == 0) return;
  const bool wide =
      p.wide != 0 && __all_sync(kAll, entry.rank == 0 || is_wide(entry.a, entry.stride)) != 0;
  // Few tiles: all warps share K. More: half of the warps has half of them, so that what a warp
  // asks for at a time stays 128 bytes of each row.
  if (total <= 3) {
    const TA* a[3];
    list_tiles(p, entry, end, total, 0, 0, a, shared.columns);
    shrink_tiles<TX, TA, 3, kGroupsOfFew, 1, true>(p, a, wide, x, block.count, 0, shared);
    return;
  }
  constexpr int kShort = sizeof(TA) == 2 ? 1 : 2;  // of float32 half as much fits the registers
  if (total <= 8) {
    shrink_halves<TX, TA, 4, kShort == 1 ? 3 : 1>(p, entry, wide, end, total, x, block.count,
                                                  shared);
  } else if (total <= 12) {
    shrink_halves<TX, TA, 6, kShort == 1 ? 2 : 1>(p, entry, wide, end, total, x, block.count,
                                                  shared);
  } else if (total <= 16 && kShort == 1) {
    shrink_halves<TX, TA, 8, 2>(p, entry, wide, end, total, x, block.count, shared);
  } else {
    shrink_halves<TX, TA, 12 / kShort, 1>(p, entry, wide, end, total, x, block.count, shared);
  }
}

}  // namespace

}  // namespace cuda
RANKFOLD_NAMESPACE_END
