// Shrinking on matrix instructions: tiles of 16 ranks over all slices of an entry, pieces of 16
// bytes of x and A in shared memory, and h in pairs. Included by the kernels alone.
#pragma once

#include <cstdint>

#include "rows.cuh"
#include "wgmma.cuh"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

namespace {

constexpr int kStep = 64;     // elements of k in a stage: 128 bytes of a row
constexpr int kPieces = 8;    // of 16 bytes in a row of a stage
constexpr int kAlign = 1024;  // of a swizzled tile

/// Tiles of 16 ranks of all slices, one after another; slice i is in lane i of every warp.
struct SliceTiles {
  const void* a = nullptr;
  std::int64_t stride = 0;
  int rank = 0;
  int before = 0;  // tiles of the slices before
  int after = 0;   // before and its own
};
struct Tile {
  int slice = 0;
  int first = 0;  // rank
  int rank = 0;   // of the slice; 0: there is no such tile
  const void* a = nullptr;
  std::int64_t stride = 0;
};

/// entries: of the first slice.
__device__ inline SliceTiles slice_tiles(const AdapterEntry* entries, int num_slices, int max_rank,
                                         int lane) {
  SliceTiles own;
  if (lane < num_slices) {
    const AdapterEntry& entry = entries[lane];
    own.a = entry.a;
    own.stride = entry.a_row_stride;
    const int rank = bounded_rank(entry, max_rank);  // at once, not after a is there
    own.rank = own.a != nullptr ? rank : 0;
  }
  const int tiles = (own.rank + 15) / 16;
  own.after = tiles;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int other = __shfl_up_sync(0xffffffffu, own.after, step);
    if (lane >= step) own.after += other;
  }
  own.before = own.after - tiles;
  return own;
}

__device__ inline Tile find_tile(const SliceTiles& own, int index) {
  const int slice = __popc(__ballot_sync(0xffffffffu, own.after <= index));
  Tile tile;
  const int source = min(slice, 31);
  const auto a = __shfl_sync(0xffffffffu, reinterpret_cast<unsigned long long>(own.a), source);
  tile.a = reinterpret_cast<const void*>(a);
  tile.stride = __shfl_sync(0xffffffffu, static_cast<long long>(own.stride), source);
  tile.rank = __shfl_sync(0xffffffffu, own.rank, source);
  tile.first = (index - __shfl_sync(0xffffffffu, own.before, source)) * 16;
  tile.slice = slice;
  if (slice > 31) tile.rank = 0;
  return tile;
}

/// h of a row at two neighbouring columns of a tile. wide: pairs stand at multiples of 8 bytes.
__device__ inline void store_pair(float* h, int max_rank, bool wide, const Tile& tile, int column,
                                  float first, float second) {
  const int rank_column = tile.first + column;
  if (rank_column >= tile.rank) return;
  float* const to = h + static_cast<std::int64_t>(tile.slice) * max_rank + rank_column;
  if (wide) {
    // Past an odd rank stands a column of zeros, which nobody reads.
    *reinterpret_cast<float2*>(to) = make_float2(first, second);
  } else {
    to[0] = first;
    if (rank_column + 1 < tile.rank) to[1] = second;
  }
}

/// Bytes of a piece of a row that are there.
template <class T>
__device__ __forceinline__ int bytes_at(int in, int k, int piece) {
  return min(max((in - k) * 2 - piece * 16, 0), 16);
}
/// Such a piece into shared memory; what is not there is zero.
template <bool kWide, class T>
__device__ __forceinline__ void load_piece(std::uint32_t to, const T* from, int bytes) {
  if constexpr (kWide) {
    copy_16(to, from, bytes);
  } else {
    std::uint32_t v[4];
    gather_16(v, from, bytes / 2);
    store_shared_16(to, v);
  }
}
}  // namespace

}  // namespace cuda
RANKFOLD_NAMESPACE_END
