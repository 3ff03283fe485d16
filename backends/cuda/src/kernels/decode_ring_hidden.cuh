// How the kernels of decode_expand_ring.cu come to h, included there alone: as operands of matrix
// instructions, for 16 ranks in registers, else in shared memory.
#pragma once

#include "decode_hidden.cuh"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

namespace {

namespace ring {

// Ranks whose h stands in shared memory as operands at a time.
template <class TB>
constexpr int kSection = sizeof(TB) == 2 ? 192 : 128;

__device__ __forceinline__ void add_lane(float4& sum, int distance) {
  sum.x += __shfl_xor_sync(kAll, sum.x, distance);
  sum.y += __shfl_xor_sync(kAll, sum.y, distance);
  sum.z += __shfl_xor_sync(kAll, sum.z, distance);
  sum.w += __shfl_xor_sync(kAll, sum.w, distance);
}

// Stands before the rings.
struct alignas(128) Shared {
  float h[kDecodeRows][kRankGroup + 4];
  float4 groups[kThreads];
  float undo[4][kDecodeRows];  ///< of f16: what gives the rows back
  int rows[kDecodeRows];
};

// Sums the splits of ranks [first, first + kRanks) into shared memory; columns past the rank and
// rows past the count become zero, but for rows from kRows on, which stay what they are. Threads
// stand for outputs and groups of splits: a group is summed in ascending order, then the groups
// are.
// meanwhile() is called when the first of h has been asked for.
template <int kRanks, int kRows, class Meanwhile>
__device__ __forceinline__ void sum_partials(const DecodeExpandParams& p, int count, int h_column,
                                             int rank, int first, Shared& shared, bool keep,
                                             Meanwhile meanwhile) {
  constexpr int kQuads = kRanks / 4, kOutputs = kRows * kQuads, kGroups = kThreads / kOutputs;
  constexpr int kBatch = kGroups <= 2 ? 8 : 4;
  const int thread = static_cast<int>(threadIdx.x);
  const int quad = thread % kQuads, token = thread / kQuads % kRows, group = thread / kOutputs;
  const int r = first + 4 * quad;
  const int has = token < count ? min(max(rank - r, 0), 4) : 0;
  const float* from =
      p.h.data + static_cast<std::int64_t>(shared.rows[token]) * p.h.row_stride + h_column + r;
  const int begin = p.h.splits * group / kGroups, end = p.h.splits * (group + 1) / kGroups;
  from += begin * p.h.split_stride;
  float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  if (p.wide_h != 0 && rank % 4 == 0) {
    float4 v[kBatch];
    int s = begin;
    const auto read = [&] {
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        v[i] = load_partial_if(has == 4 && s + i < end, from);
        from += p.h.split_stride;
      }
    };
    const auto add_all = [&] {
#pragma unroll
      for (int i = 0; i < kBatch; ++i) add(sum, v[i]);
    };
    read();
    meanwhile();
    add_all();
#pragma unroll 1
    for (s += kBatch; s < end; s += kBatch) {
      read();
      add_all();
    }
  } else {
    meanwhile();
#pragma unroll 1
    for (int s = begin; s < end; ++s) {
      add(sum, read_partial(from, has, false));
      from += p.h.split_stride;
    }
  }
  if constexpr (kGroups > 1) {
    shared.groups[thread] = sum;
    __syncthreads();
    if (group == 0) {
#pragma unroll
      for (int i = 1; i < kGroups; ++i) add(sum, shared.groups[i * kOutputs + thread]);
    }
  }
  if (group == 0) {
    *reinterpret_cast<float4*>(&shared.h[token][4 * quad]) = sum;
    if (keep) keep_h(p, shared.rows[token], h_column + r, has, sum);
  }
  __syncthreads();
}

// The same of up to 16 ranks for a block of one row, by each warp for itself: lanes that have no
// row take other splits, and a fixed tree adds them up. Lanes with g = 0 have the row, the others
// zero.
template <class Meanwhile>
__device__ __forceinline__ float4 sum_one_row(const DecodeExpandParams& p, int row, int h_column,
                                              int rank, bool keep, Meanwhile meanwhile) {
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
  const int has = min(max(rank - 4 * t, 0), 4);
  const float* from = p.h.data + static_cast<std::int64_t>(row) * p.h.row_stride + h_column +
                      g * p.h.split_stride + 4 * t;
  const bool wide = p.wide_h != 0 && rank % 4 == 0;
  float4 h = read_partial(from, g < p.h.splits ? has : 0, wide);
  const float4 other =
      read_partial(from + 8 * p.h.split_stride, g + 8 < p.h.splits ? has : 0, wide);
  meanwhile();
  add(h, other);
  __syncwarp();
#pragma unroll
  for (int step = 4; step < 32; step *= 2) add_lane(h, step);
  if (keep && threadIdx.x < 4) keep_h(p, row, h_column + 4 * t, has, h);
  return g > 0 ? make_float4(0.0f, 0.0f, 0.0f, 0.0f) : h;
}

// The same where there are more than 16 splits: each warp has every eighth eight of them.
__device__ __forceinline__ float4 sum_one_row_of_many(const DecodeExpandParams& p, int h_column,
                                                      int rank, bool keep, Shared& shared) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int g = lane / 4, t = lane % 4, row = shared.rows[0];
  const int has = min(max(rank - 4 * t, 0), 4);
  const float* const from =
      p.h.data + static_cast<std::int64_t>(row) * p.h.row_stride + h_column + 4 * t;
  const bool wide = p.wide_h != 0 && rank % 4 == 0;
  float4 h = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 1
  for (int split = 8 * warp + g; split < p.h.splits; split += 8 * kWarps) {
    add(h, read_partial(from + split * p.h.split_stride, has, wide));
  }
  __syncwarp();
#pragma unroll
  for (int step = 4; step < 32; step *= 2) add_lane(h, step);
  if (g == 0) shared.groups[4 * warp + t] = h;
  __syncthreads();
  float4 sum = shared.groups[t];
#pragma unroll
  for (int i = 1; i < kWarps; ++i) add(sum, shared.groups[4 * i + t]);
  if (keep && threadIdx.x < 4) keep_h(p, row, h_column + 4 * t, has, sum);
  return g > 0 ? make_float4(0.0f, 0.0f, 0.0f, 0.0f) : sum;
}

// Four ranks of rows g and g + 8; rows past the count are zero.
__device__ __forceinline__ void read_rows(const Shared& shared, int count, int rank, float4& row,
                                          float4& other) {
  const int g = static_cast<int>(threadIdx.x) % 32 / 4;
  row = other = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  if (g < count) row = *reinterpret_cast<const float4*>(&shared.h[g][rank]);
  if (g + 8 < count) other = *reinterpret_cast<const float4*>(&shared.h[g + 8][rank]);
}

// h of up to 16 ranks as the left operand of every warp, times f; undo gives what f16 needs.
template <class TB, class Meanwhile>
__device__ __forceinline__ Left<TB> narrow_left(const DecodeExpandParams& p, int count,
                                                int h_column, int rank, const float (&strength)[2],
                                                bool keep, Shared& shared, float (&undo)[2],
                                                Meanwhile meanwhile) {
  float4 rows[2][1];
  if (count == 1 && p.pinned == 0) {
    if (p.h.splits <= 16) {
      rows[0][0] = sum_one_row(p, shared.rows[0], h_column, rank, keep, meanwhile);
    } else {
      meanwhile();
      rows[0][0] = sum_one_row_of_many(p, h_column, rank, keep, shared);
    }
    rows[1][0] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  } else {
    sum_partials<16, kDecodeRows>(p, count, h_column, rank, 0, shared, keep, meanwhile);
    read_rows(shared, count, 4 * (static_cast<int>(threadIdx.x) % 4), rows[0][0], rows[1][0]);
  }
  scale_rows<TB, 1>(rows, strength, undo);
  return make_left<TB>(rows[0][0], rows[1][0]);
}

// h of ranks [first, first + kSection<TB>) as left operands in shared memory, the same for all
// warps: 64 ranks are summed at a time, and each of four warps makes a step of 16 of them.
template <class TB>
__device__ __forceinline__ void wide_left(const DecodeExpandParams& p, int count, int h_column,
                                          int rank, int first, const float (&strength)[2],
                                          bool keep, Shared& shared, uint4* left) {
  constexpr int kSteps = kRankGroup / 16, kWords = static_cast<int>(sizeof(Left<TB>)) / 16;
  const int lane = static_cast<int>(threadIdx.x) % 32, step = static_cast<int>(threadIdx.x) / 32;
  const int end = min(rank, first + kSection<TB>);
#pragma unroll 1
  for (int from = first; from < end; from += kRankGroup) {
    if (count == 1 && p.pinned == 0) {
      sum_partials<kRankGroup, 1>(p, count, h_column, rank, from, shared, keep, [] {});
    } else {
      sum_partials<kRankGroup, kDecodeRows>(p, count, h_column, rank, from, shared, keep, [] {});
    }
    if (step < kSteps) {
      float undo[2];
      Left<TB> own;
      if constexpr (std::is_same_v<TB, __half>) {
        float4 rows[2][kSteps];
#pragma unroll
        for (int s = 0; s < kSteps; ++s)
          read_rows(shared, count, rank_of<TB, 4>(s, lane % 4), rows[0][s], rows[1][s]);
        scale_rows<TB, kSteps>(rows, strength, undo);
#pragma unroll
        for (int s = 0; s < kSteps; ++s) {
          if (s == step) own = make_left<TB>(rows[0][s], rows[1][s]);
        }
        if (step == 0 && lane % 4 == 0) {
          float* const to = shared.undo[(from - first) / kRankGroup] + lane / 4;
          to[0] = undo[0];
          to[8] = undo[1];
        }
      } else {
        float4 rows[2][1];
        read_rows(shared, count, rank_of<TB, 4>(step, lane % 4), rows[0][0], rows[1][0]);
        scale_rows<TB, 1>(rows, strength, undo);
        own = make_left<TB>(rows[0][0], rows[1][0]);
      }
      uint4* const to = left + ((from - first) / 16 + step) * kWords * 32 + lane;
#pragma unroll
      for (int i = 0; i < kWords; ++i) to[32 * i] = reinterpret_cast<const uint4*>(&own)[i];
    }
    __syncthreads();
  }
}

}  // namespace ring

}  // namespace

}  // namespace cuda
RANKFOLD_NAMESPACE_END
