// How decode_expand.cu comes to h, included there alone: the sum of the splits, by the block or by
// each warp for one row.
#pragma once

#include "decode_expand.hpp"
#include "decode_operands.cuh"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * 32;
constexpr int kColumns = 32;     // of a tile, which one warp makes
constexpr int kAhead = 2;        // tiles whose B and y are asked for before the first is computed
constexpr int kRankGroup = 64;   // ranks whose h stands in shared memory at a time
constexpr int kMostRanks = 256;  // whose h stands there as operands

// Four ranks of a row of h in one split, zero past the rank.
__device__ __forceinline__ float4 read_partial(const float* at, int has, bool wide) {
  if (wide) return load_partial_if(has == 4, at);
  float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  if (has > 0) v.x = __ldcg(at);
  if (has > 1) v.y = __ldcg(at + 1);
  if (has > 2) v.z = __ldcg(at + 2);
  if (has > 3) v.w = __ldcg(at + 3);
  return v;
}
__device__ __forceinline__ void add(float4& sum, const float4& v) {
  sum.x += v.x;
  sum.y += v.y;
  sum.z += v.z;
  sum.w += v.w;
}
__device__ __forceinline__ void keep_h(const DecodeExpandParams& p, int row, int column, int has,
                                       const float4& sum) {
  float* const to = p.h_out + static_cast<std::int64_t>(row) * p.h_out_stride + column;
  if (has > 0) to[0] = sum.x;
  if (has > 1) to[1] = sum.y;
  if (has > 2) to[2] = sum.z;
  if (has > 3) to[3] = sum.w;
}

// Sums the splits of ranks [first, first + kRanks) into shared memory; columns past the rank and
// rows past the count become zero, but for rows from kRows on, which stay what they are. Threads
// stand for outputs and groups of splits: a group is summed in ascending order, then the groups
// are.
template <int kRanks, int kRows = kDecodeRows>
__device__ __forceinline__ void sum_partials(const DecodeExpandParams& p, const int* rows,
                                             int count, int h_column, int rank, int first,
                                             float (*h)[kRankGroup + 4], float4* groups_of,
                                             bool keep) {
  constexpr int kQuads = kRanks / 4, kOutputs = kRows * kQuads, kGroups = kThreads / kOutputs;
  // What a round of loads takes is latency: the more splits a thread has, the more it asks for.
  constexpr int kBatch = kGroups <= 2 ? 8 : 4;
  const int thread = static_cast<int>(threadIdx.x);
  const int quad = thread % kQuads, token = thread / kQuads % kRows, group = thread / kOutputs;
  const int r = first + 4 * quad;
  const int has = token < count ? min(max(rank - r, 0), 4) : 0;
  const float* from =
      p.h.data + static_cast<std::int64_t>(rows[token]) * p.h.row_stride + h_column + r;
  const int begin = p.h.splits * group / kGroups, end = p.h.splits * (group + 1) / kGroups;
  from += begin * p.h.split_stride;
  float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  if (p.wide_h != 0 && rank % 4 == 0) {
#pragma unroll 1
    for (int s = begin; s < end; s += kBatch) {
      float4 v[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        v[i] = load_partial_if(has == 4 && s + i < end, from);
        from += p.h.split_stride;
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) add(sum, v[i]);
    }
  } else {
#pragma unroll 1
    for (int s = begin; s < end; ++s) {
      add(sum, read_partial(from, has, false));
      from += p.h.split_stride;
    }
  }
  if constexpr (kGroups > 1) {
    groups_of[thread] = sum;
    __syncthreads();
    if (group == 0) {
#pragma unroll
      for (int i = 1; i < kGroups; ++i) add(sum, groups_of[i * kOutputs + thread]);
    }
  }
  if (group == 0) {
    *reinterpret_cast<float4*>(&h[token][4 * quad]) = sum;
    if (keep) keep_h(p, rows[token], h_column + r, has, sum);
  }
  __syncthreads();
}

// The same for a block of one row, by each warp for itself: lanes that have no row take other
// splits, and a fixed tree adds them up. Lanes with g = 0 have the row, the others zero.
template <class TB, int kSteps>
__device__ __forceinline__ void sum_one_row(const DecodeExpandParams& p, int row, int h_column,
                                            int rank, bool keep, float4 (&h)[kSteps]) {
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
  const float* from =
      p.h.data + static_cast<std::int64_t>(row) * p.h.row_stride + h_column + g * p.h.split_stride;
  const bool wide = p.wide_h != 0 && rank % 4 == 0;
#pragma unroll
  for (int s = 0; s < kSteps; ++s) h[s] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 1
  for (int split = g; split < p.h.splits; split += 16) {
    float4 v[2][kSteps];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        const int r = rank_of<TB, kSteps>(s, t);
        const int has = split + 8 * i < p.h.splits ? min(max(rank - r, 0), 4) : 0;
        v[i][s] = read_partial(from + r, has, wide);
      }
      from += 8 * p.h.split_stride;
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int s = 0; s < kSteps; ++s) add(h[s], v[i][s]);
    }
  }
  __syncwarp();
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
#pragma unroll
    for (int step = 4; step < 32; step *= 2) {
      h[s].x += __shfl_xor_sync(kAll, h[s].x, step);
      h[s].y += __shfl_xor_sync(kAll, h[s].y, step);
      h[s].z += __shfl_xor_sync(kAll, h[s].z, step);
      h[s].w += __shfl_xor_sync(kAll, h[s].w, step);
    }
    const int r = rank_of<TB, kSteps>(s, t);
    if (keep && threadIdx.x < 4) keep_h(p, row, h_column + r, min(max(rank - r, 0), 4), h[s]);
    if (g > 0) h[s] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  }
}

// The same where there are many splits: each warp has every eighth eight of them.
template <class TB, int kSteps>
__device__ __forceinline__ void sum_one_row_of_many(const DecodeExpandParams& p, int row,
                                                    int h_column, int rank, bool keep,
                                                    float4* of_warps, float4 (&h)[kSteps]) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int g = lane / 4, t = lane % 4;
  const float* const from = p.h.data + static_cast<std::int64_t>(row) * p.h.row_stride + h_column;
  const bool wide = p.wide_h != 0 && rank % 4 == 0;
#pragma unroll
  for (int s = 0; s < kSteps; ++s) h[s] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 1
  for (int split = 8 * warp + g; split < p.h.splits; split += 8 * kWarps) {
    float4 v[kSteps];
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const int r = rank_of<TB, kSteps>(s, t);
      v[s] = read_partial(from + split * p.h.split_stride + r, min(max(rank - r, 0), 4), wide);
    }
#pragma unroll
    for (int s = 0; s < kSteps; ++s) add(h[s], v[s]);
  }
  __syncwarp();
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
#pragma unroll
    for (int step = 4; step < 32; step *= 2) {
      h[s].x += __shfl_xor_sync(kAll, h[s].x, step);
      h[s].y += __shfl_xor_sync(kAll, h[s].y, step);
      h[s].z += __shfl_xor_sync(kAll, h[s].z, step);
      h[s].w += __shfl_xor_sync(kAll, h[s].w, step);
    }
    if (g == 0) of_warps[(warp * kSteps + s) * 4 + t] = h[s];
  }
  __syncthreads();
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
    float4 sum = of_warps[s * 4 + t];
#pragma unroll
    for (int i = 1; i < kWarps; ++i) add(sum, of_warps[(i * kSteps + s) * 4 + t]);
    const int r = rank_of<TB, kSteps>(s, t);
    if (keep && threadIdx.x < 4) keep_h(p, row, h_column + r, min(max(rank - r, 0), 4), sum);
    h[s] = g == 0 ? sum : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  }
}

template <class TB, int kSteps>
__device__ __forceinline__ void read_rows(const float (*h)[kRankGroup + 4],
                                          float4 (&rows)[2][kSteps]) {
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      rows[i][s] = *reinterpret_cast<const float4*>(&h[g + 8 * i][rank_of<TB, kSteps>(s, t)]);
    }
  }
}

struct Shared {
  float h[kDecodeRows][kRankGroup + 4];
  float4 groups[kThreads];
  /// The left operand of four steps, a lane's parts: the same for all warps, and too much for their
  /// registers.
  uint4 left[4][3][32];
  int rows[kDecodeRows];
};
// What kernels of more ranks have besides: the operands of the other steps, and what gives the rows
// of f16 back.
struct ManyShared {
  uint4 left[kMostRanks / 16][3][32];
  float undo[kMostRanks / kRankGroup][kDecodeRows];
};

}  // namespace

}  // namespace cuda
RANKFOLD_NAMESPACE_END
