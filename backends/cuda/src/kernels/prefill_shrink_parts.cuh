// What the kernels of prefill_shrink.cu share: what they are given, how stages of x and A stand in
// shared memory, and the way of their sums into h.
#pragma once

#include <algorithm>
#include <cstdint>

#include "prefill.hpp"
#include "rank_tiles.cuh"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

struct ShrinkParams {
  const void* x;
  std::int64_t x_stride;
  const AdapterEntry* entries;
  std::int64_t slot_stride;
  Grouping rows;
  int kind;
  PartialHidden h;
  int in;
  int num_slices;
  int max_rank;
  int splits;
  int chunks;       // of 64 elements of K, in every split
  int chunks_over;  // one more in the first splits
  int cluster;
  int wide_x;  // rows of x begin at multiples of 16 bytes
  int wide_h;  // pairs of h at multiples of 8
};

// Of a block that shares tiles of 16 ranks with others, and how many it multiplies at a time.
inline constexpr int kSharedRows = 64;
inline constexpr int kSharedTiles = 4;

/// The shrink where rows of x are no multiples of 16 bytes, or K no multiple of eight: 64 rows a
/// block, and of each part of K `parts` blocks with every parts-th four tiles of ranks. x and A of
/// 16 bits.
Status shrink_odd(const ShrinkParams& params, DType x_dtype, std::int64_t row_blocks, int parts,
                  cudaStream_t stream);

namespace {

constexpr int kThreads = 256;            // two warpgroups
constexpr unsigned kRowBlocksY = 32768;  // of the grid's y; more go into its z

/// How stages stand in shared memory. 64 rows: each warpgroup has every second stage of K in a ring
/// of its own; 128 rows: one ring, and each warpgroup has 64 of the rows. With few tiles x has its
/// place whatever the tiles, so that it can be under way before they are known.
template <class W, int kRows, int kMost>
struct Stages {
  static constexpr int kParts = sizeof(W) == 4 ? 2 : 1;
  static constexpr int kRings = kRows == 64 ? 2 : 1;
  static constexpr int kLoaders = kThreads / kRings;
  static constexpr int kRowStep = kLoaders / kPieces;
  static constexpr int kXPieces = kRows / kRowStep;
  static constexpr int kXBytes = kRows * kTileRowBytes;
  static constexpr int kFixed = kParts == 2  ? 0
                                : kMost == 4 ? 5
                                : kMost == 8 ? 4
                                             : 0;  // stages of a ring; 0: as many as fit
  static constexpr int kBytes =
      kFixed != 0 ? kRings * kFixed * (kXBytes + kMost * 16 * kTileRowBytes) : 200 * 1024;
};

__device__ inline int batch_row(const ShrinkParams& p, const RowBlock& block, int i) {
  const int at = min(i, block.count - 1);  // past the count the last row again
  return p.kind == Grouping::uniform ? row_at<Grouping::uniform>(p.rows, block, at)
                                     : row_at<Grouping::segments>(p.rows, block, at);
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
__device__ inline void cluster_barrier() {
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}
__device__ inline int cluster_rank() {
  int rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ inline float2 load_of_cluster(std::uint32_t address, int rank) {
  std::uint32_t remote;
  float2 v;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
  asm volatile("ld.shared::cluster.v2.f32 {%0,%1}, [%2];"
               : "=f"(v.x), "=f"(v.y)
               : "r"(remote)
               : "memory");
  return v;
}
#endif

/// The sums of a block's tiles first_tile.. into h: over both warpgroups where each has a ring,
/// over the cluster.
template <int kRows, int kRings, int kTiles>
__device__ __forceinline__ void store_sums(const ShrinkParams& p, const RowBlock& block,
                                           const SliceTiles& own, std::uint32_t shared,
                                           int first_tile, int count, int split,
                                           float (&sums)[kTiles * 8]) {
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int group = thread / 128;  // warpgroup
  const int ring = kRings == 2 ? group : 0;

  // A thread's sums stand at [index][thread of the rows]: free of bank conflicts.
  constexpr int kOwners = kRows * 2;
  const int owner = thread % kOwners;
  const auto sum_at = [&](int index) {
    return shared + static_cast<std::uint32_t>((index * kOwners + owner) * 4);
  };
  if constexpr (kRings == 2) {
    if (group == 1) {
#pragma unroll
      for (int i = 0; i < kTiles * 8; ++i) {
        asm volatile("st.shared.f32 [%0], %1;" ::"r"(sum_at(i)), "f"(sums[i]) : "memory");
      }
    }
    __syncthreads();
    if (group == 0) {
#pragma unroll
      for (int i = 0; i < kTiles * 8; ++i) {
        float other;
        asm volatile("ld.shared.f32 %0, [%1];" : "=f"(other) : "r"(sum_at(i)) : "memory");
        sums[i] += other;
      }
    }
  }

  // Pair i of a thread: tile i / 4, columns (i / 2 % 2) * 8 + 2t and the next, row + (i % 2) * 8.
  const int row = owner / 32 * 16 + lane / 4;
  const int column = lane % 4 * 2;
  const bool has0 = row < block.count, has1 = row + 8 < block.count;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  if (p.cluster > 1) {
    const auto pair_at = [&](int pair) {
      return shared + static_cast<std::uint32_t>((pair * kOwners + owner) * 8);
    };
    // Pairs stand where other threads' single sums stood.
    __syncthreads();
    if (kRings == 1 || group == 0) {
#pragma unroll
      for (int i = 0; i < kTiles * 4; ++i) {
        asm volatile("st.shared.v2.f32 [%0], {%1,%2};" ::"r"(pair_at(i)), "f"(sums[2 * i]),
                     "f"(sums[2 * i + 1])
                     : "memory");
      }
    }
    cluster_barrier();
    const int rank = cluster_rank();
    float* const h = p.h.data + split / p.cluster * p.h.split_stride;
    float* const h0 = h + batch_row(p, block, row) * p.h.stride;
    float* const h1 = h + batch_row(p, block, row + 8) * p.h.stride;
    for (int i = rank * kRings + ring; i < count * 4; i += p.cluster * kRings) {
      float2 sum = load_of_cluster(pair_at(i), 0);
      for (int other = 1; other < p.cluster; ++other) {
        const float2 part = load_of_cluster(pair_at(i), other);
        sum.x += part.x;
        sum.y += part.y;
      }
      const Tile tile = find_tile(own, first_tile + i / 4);
      if (i % 2 == 0 ? has0 : has1)
        store_pair(i % 2 == 0 ? h0 : h1, p.max_rank, p.wide_h, tile, i / 2 % 2 * 8 + column, sum.x,
                   sum.y);
    }
    cluster_barrier();
    return;
  }
#endif
  const bool stores = kRings == 1 || group == 0;
  float* const h = p.h.data + split * p.h.split_stride;
  float* const h0 = h + batch_row(p, block, row) * p.h.stride;
  float* const h1 = h + batch_row(p, block, row + 8) * p.h.stride;
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    Tile tile = find_tile(own, first_tile + t);
    if (t >= count) tile.rank = 0;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      if (stores && has0)
        store_pair(h0, p.max_rank, p.wide_h, tile, n * 8 + column, sums[t * 8 + n * 4],
                   sums[t * 8 + n * 4 + 1]);
      if (stores && has1)
        store_pair(h1, p.max_rank, p.wide_h, tile, n * 8 + column, sums[t * 8 + n * 4 + 2],
                   sums[t * 8 + n * 4 + 3]);
    }
  }
  __syncthreads();  // before the next pass fills shared memory
}

}  // namespace

}  // namespace cuda
RANKFOLD_NAMESPACE_END
