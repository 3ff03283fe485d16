// The tiles of decode_shrink.cu, included there alone: eight ranks each, x times A over a warp's
// groups of columns, and their sum over the warps.
#pragma once

#include "decode_rows.cuh"
#include "decode_shrink_operands.cuh"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

namespace {

// The groups of a split: a warp has every kSharers-th, so that the warps of a block read
// neighbouring 128 bytes of a row at a time. They are the same whatever the rows.
__device__ __forceinline__ int first_of_split(const DecodeShrinkParams& p) {
  const int split = static_cast<int>(blockIdx.y);
  return split * p.groups_of_split + min(split, p.longer_splits);
}
__device__ __forceinline__ int groups_of_split(const DecodeShrinkParams& p) {
  return p.groups_of_split + (static_cast<int>(blockIdx.y) < p.longer_splits ? 1 : 0);
}

// sums += x times the tiles over kGroups groups, all asked for before the first is used.
template <int kGroups, int kSharers, class TX, class TA, int kTiles>
__device__ __forceinline__ void accumulate(const TA* (&a)[kTiles], const TX* (&x)[2], bool two,
                                           float (&sums)[kTiles][4]) {
  constexpr int kStep = kGroup * kSharers;  // from a group of the warp to its next
  Eight<TX> xs[2 * kGroups][2];
  Eight<TA> as[2 * kGroups][kTiles];
#pragma unroll
  for (int u = 0; u < 2 * kGroups; ++u) {
    const int offset = u / 2 * kStep + u % 2 * kChunk;
#pragma unroll
    for (int i = 0; i < kTiles; ++i) as[u][i] = load_wide<TA, true>(a[i] + offset);
    xs[u][0] = load_wide<TX, false>(x[0] + offset);
    if (two) {
      xs[u][1] = load_wide<TX, false>(x[1] + offset);
    } else {
      xs[u][1] = {};
    }
  }
#pragma unroll
  for (int i = 0; i < kTiles; ++i) a[i] += kGroups * kStep;
  x[0] += kGroups * kStep;
  x[1] += kGroups * kStep;
  // Matrix instructions cut off what they add; over all of K that would lean to zero. So their sums
  // are short, and added up by instructions that round.
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
    const int u = 2 * group;
    const Left<TX, TA> first(xs[u][0], xs[u][1]), second(xs[u + 1][0], xs[u + 1][1]);
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      float part[4] = {};
      multiply_chunk<TX>(part, first, as[u][i]);
      multiply_chunk<TX>(part, second, as[u + 1][i]);
#pragma unroll
      for (int c = 0; c < 4; ++c) sums[i][c] += part[c];
    }
  }
}

// The sums of `tiles` tiles whose rows are not aligned, all groups of the warp, into shared memory.
// In the order of the fast way, so that alignment changes no bits. kBatch tiles at a time.
template <int kBatch, class TX, class TA>
__device__ __forceinline__ void sum_slowly(int in, const void* const (*rows_of_a)[kTile], int tiles,
                                           const TX* x0, const TX* x1, bool two, int first,
                                           int groups, int step, float (*to)[kDecodeRows][kTile]) {
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
  const bool ends = groups > 0 && (first + (groups - 1) * step + 1) * kGroup > in;
#pragma unroll 1
  for (int tile = 0; tile < tiles; tile += kBatch) {
    float sums[kBatch][4] = {};
#pragma unroll 1
    for (int i = 0; i < groups; ++i) {
      const int group = !ends ? i : i == 0 ? groups - 1 : i - 1;
      const int k = (first + group * step) * kGroup, left = in - k - 8 * t;
      const auto add = [&]<class X, class A>(X(&rows)[2][2], A(&as)[kBatch][2]) {
#pragma unroll
        for (int u = 0; u < 2; ++u) {
          rows[u][0].load(x0 + k + u * kChunk, left - u * kChunk);
          rows[u][1].load(x1 + k + u * kChunk, two ? left - u * kChunk : 0);
        }
#pragma unroll
        for (int j = 0; j < kBatch; ++j) {
          const TA* const a =
              static_cast<const TA*>(rows_of_a[min(tile + j, tiles - 1)][g]) + 8 * t + k;
#pragma unroll
          for (int u = 0; u < 2; ++u) as[j][u].load(a + u * kChunk, left - u * kChunk);
        }
        const Left<TX, TA> low(rows[0][0].get(), rows[0][1].get());
        const Left<TX, TA> high(rows[1][0].get(), rows[1][1].get());
#pragma unroll
        for (int j = 0; j < kBatch; ++j) {
          float part[4] = {};
          multiply_chunk<TX>(part, low, as[j][0].get());
          multiply_chunk<TX>(part, high, as[j][1].get());
#pragma unroll
          for (int c = 0; c < 4; ++c) sums[j][c] += part[c];
        }
      };
      if (k >= kMargin && k + kGroup + kMargin <= in) {
        Inside<TX> rows[2][2];
        Inside<TA> as[kBatch][2];
        add(rows, as);
      } else {
        Loose<TX> rows[2][2];
        Loose<TA> as[kBatch][2];
        add(rows, as);
      }
    }
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      if (tile + j >= tiles) break;
      float(*const rows)[kTile] = to[tile + j];
      *reinterpret_cast<float2*>(&rows[g][2 * t]) = make_float2(sums[j][0], sums[j][1]);
      if (two)
        *reinterpret_cast<float2*>(&rows[g + 8][2 * t]) = make_float2(sums[j][2], sums[j][3]);
    }
  }
}

// Out of line, where a kernel has many calls of it; nothing is passed that would have to stand in
// memory.
template <class TX, class TA>
__device__ __noinline__ void call_sum_slowly(int in, const void* const (*rows_of_a)[kTile],
                                             int tiles, const TX* x0, const TX* x1, bool two,
                                             int first, int groups, int step,
                                             float (*to)[kDecodeRows][kTile]) {
  sum_slowly<sizeof(TA) == 2 ? 3 : 2, TX, TA>(in, rows_of_a, tiles, x0, x1, two, first, groups,
                                              step, to);
}

// All tiles from `from` on whose sums stand in shared memory at a time, rows not aligned. Where the
// split has fewer groups than warps share it, those without help the others with their tiles: what
// is summed stays the sum of one warp's groups.
template <class TX, class TA, int kTiles, int kParts, bool kCalls>
__device__ __forceinline__ void share_slowly(const DecodeShrinkParams& p, const TX* x0,
                                             const TX* x1, bool two, int from, int first_tile,
                                             Shared& shared) {
  constexpr int kSharers = kWarps / kParts;
  constexpr int kBatch = kCalls ? (sizeof(TA) == 2 ? 3 : 2) : 1;
  const int warp = static_cast<int>(threadIdx.x) / 32, part = warp / kSharers;
  const int lane = static_cast<int>(threadIdx.x) % 32, own = warp % kSharers;
  const int groups = groups_of_split(p), sharers = min(groups, kSharers);
  const int tiles = min(kTiles - from, kSumTiles), batches = (tiles + kBatch - 1) / kBatch;
  const int begin = part * kTiles + from;
#pragma unroll 1
  for (int item = own; item < sharers * batches; item += kSharers) {
    const int sharer = item % sharers, at = item / sharers * kBatch;
    const int count = min(tiles - at, kBatch);
    bool wanted = false;
    for (int i = 0; i < count; ++i) wanted |= shared.columns.ranks[first_tile + begin + at + i] > 0;
    if (!wanted) continue;
    const int of_sharer = (groups - sharer + kSharers - 1) / kSharers;
    float(*const to)[kDecodeRows][kTile] = shared.sums[part * kSharers + sharer] + at;
    const void* const(*const rows_of_a)[kTile] = shared.rows_of_a + begin + at;
    if constexpr (kCalls) {
      call_sum_slowly<TX, TA>(p.in, rows_of_a, count, x0, x1, two, first_of_split(p) + sharer,
                              of_sharer, kSharers, to);
    } else {
      sum_slowly<kBatch, TX, TA>(p.in, rows_of_a, count, x0, x1, two, first_of_split(p) + sharer,
                                 of_sharer, kSharers, to);
    }
  }
  if (own >= sharers) {
    for (int i = lane; i < tiles * kDecodeRows * 2; i += 32) {
      reinterpret_cast<float4*>(shared.sums[warp])[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
  }
}

// The products of the tiles with the rows of the block, summed over the warps that share K, into h.
// a: the lane's row of each tile. wide, the same in all threads: all rows are aligned, and K ends
// with a group. Rows past the rank and past the count are others again: what they
// make is not stored, and nothing of it reaches what is.
// kCalls: the slow way is a call.
template <class TX, class TA, int kTiles, int kGroups, int kParts, bool kCalls>
__device__ __forceinline__ void shrink_tiles(const DecodeShrinkParams& p, const TA* (&a)[kTiles],
                                             bool wide, const TX* const (&rows)[2], int count,
                                             int first_tile, Shared& shared) {
  constexpr int kSharers = kWarps / kParts;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int g = lane / 4, t = lane % 4;
  const int first = first_of_split(p) + warp % kSharers;
  int groups = (groups_of_split(p) - warp % kSharers + kSharers - 1) / kSharers;
  const bool two = count > 8;
  const int part = kParts == 1 ? 0 : warp / kSharers;
  float sums[kTiles][4] = {};
  if (wide) {
    const TX* x[2] = {rows[0] + first * kGroup, rows[1] + first * kGroup};
#pragma unroll
    for (int i = 0; i < kTiles; ++i) a[i] += first * kGroup;
    if constexpr (kGroups > 1) {
#pragma unroll 1
      for (; groups >= kGroups; groups -= kGroups) accumulate<kGroups, kSharers>(a, x, two, sums);
    }
    if constexpr (kGroups > 2) {
      // What is left at once, too, as far as that goes.
      if (groups >= 2) {
        accumulate<2, kSharers>(a, x, two, sums);
        groups -= 2;
      }
    }
#pragma unroll 1
    for (; groups > 0; --groups) accumulate<1, kSharers>(a, x, two, sums);
  } else {
    if (warp % kSharers == 0 && t == 0) {
#pragma unroll
      for (int i = 0; i < kTiles; ++i) shared.rows_of_a[part * kTiles + i][g] = a[i];
    }
    __syncthreads();
  }
#pragma unroll
  for (int from = 0; from < kTiles; from += kSumTiles) {
    if (from > 0) __syncthreads();
    if (!wide) {
      share_slowly<TX, TA, kTiles, kParts, kCalls>(p, rows[0], rows[1], two, from, first_tile,
                                                   shared);
    }
#pragma unroll
    for (int i = from; wide && i < kTiles && i < from + kSumTiles; ++i) {
      float(*const to)[kTile] = shared.sums[warp][i - from];
      *reinterpret_cast<float2*>(&to[g][2 * t]) = make_float2(sums[i][0], sums[i][1]);
      if (two) *reinterpret_cast<float2*>(&to[g + 8][2 * t]) = make_float2(sums[i][2], sums[i][3]);
    }
    __syncthreads();
    // The warps that share K add up their own tiles: a thread has four ranks of a row.
    const int items = (kTiles - from < kSumTiles ? kTiles - from : kSumTiles) * kDecodeRows * 2;
    for (int item = static_cast<int>(threadIdx.x) % (32 * kSharers); item < items;
         item += 32 * kSharers) {
      const int quad = item % 2, token = item / 2 % kDecodeRows, i = item / (2 * kDecodeRows);
      const int tile = first_tile + part * kTiles + from + i;
      const int ranks = shared.columns.ranks[tile] - 4 * quad;
      if (token >= count || ranks <= 0) continue;
      float4 sum =
          *reinterpret_cast<const float4*>(&shared.sums[part * kSharers][i][token][4 * quad]);
#pragma unroll
      for (int w = 1; w < kSharers; ++w) {
        const float4 other =
            *reinterpret_cast<const float4*>(&shared.sums[part * kSharers + w][i][token][4 * quad]);
        sum.x += other.x;
        sum.y += other.y;
        sum.z += other.z;
        sum.w += other.w;
      }
      float* const h = p.h.data + blockIdx.y * p.h.split_stride +
                       shared.rows[token] * p.h.row_stride + shared.columns.first[tile] + 4 * quad;
      if (ranks >= 4 && reinterpret_cast<std::uintptr_t>(h) % 16 == 0) {
        *reinterpret_cast<float4*>(h) = sum;
      } else {
        h[0] = sum.x;
        if (ranks > 1) h[1] = sum.y;
        if (ranks > 2) h[2] = sum.z;
        if (ranks > 3) h[3] = sum.w;
      }
    }
  }
}

// Rows g and g + 8 of the block at the lane's k; past the count its last row again.
template <Lookup kLookup, class TX>
__device__ __forceinline__ void rows_of_x(const DecodeShrinkParams& p, const RowBlock& block,
                                          const TX* (&x)[2], int* rows) {
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
  const TX* const at = static_cast<const TX*>(p.x) + 8 * t;
  if constexpr (kLookup == Lookup::uniform) {
    if (threadIdx.x < kDecodeRows) rows[threadIdx.x] = block.first + static_cast<int>(threadIdx.x);
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      x[c] = at +
             static_cast<std::int64_t>(block.first + min(g + 8 * c, block.count - 1)) * p.x_stride;
    }
  } else {
    const int row = decode_row<kLookup>(p.grouping, p.kind, block, min(lane, block.count - 1));
    if (threadIdx.x < kDecodeRows) rows[threadIdx.x] = row;
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      x[c] = at + static_cast<std::int64_t>(__shfl_sync(kAll, row, g + 8 * c)) * p.x_stride;
    }
  }
}

template <class TA>
__device__ __forceinline__ bool is_wide(const TA* a, std::int64_t stride) {
  return ((reinterpret_cast<std::uintptr_t>(a) | static_cast<std::uintptr_t>(stride * sizeof(TA))) &
          15) == 0;
}

}  // namespace

}  // namespace cuda
RANKFOLD_NAMESPACE_END
