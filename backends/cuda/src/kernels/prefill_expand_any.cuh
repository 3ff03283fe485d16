// The slow way of prefill_expand_block.cuh: any alignment, any rank, a bias,
// overwriting.
#pragma once

#include "prefill_outputs.cuh"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

namespace {

/// What a block has to do.
template <class T>
struct Work {
  const T* b;
  std::int64_t b_stride;
  const float* bias;
  int rank;
  int slice;
  int rows[2];  // of the lane
  std::int64_t out;
  std::int64_t first_column;
  int first_step;
  int columns;
  int steps;
};

/// Any alignment, any rank, any columns, bias, overwriting.
template <class T, class TY, int kSlabs, int kStages, bool kOdd>
__device__ __noinline__ void expand_any(const ExpandParams& p, const Work<T>& work,
                                        const Finish<TY, kOdd>& start, std::uint32_t shared) {
  constexpr int kCols = kColumns<TY>;
  constexpr int kGroups = kCols / 32;
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32, warp = thread / 32;
  const T* const b = work.b;
  const std::int64_t b_stride = work.b_stride, out = work.out, first_column = work.first_column;
  const float* const bias = work.bias;
  const int rank = work.rank, slice = work.slice, first_step = work.first_step,
            columns = work.columns;
  const int steps = work.steps;
  const int rows[2] = {work.rows[0], work.rows[1]};
  Finish<TY, kOdd> to = start;

  // Stages of a ring: B, bias and y of a step.
  const std::uint32_t bias_offset = static_cast<std::uint32_t>(p.slabs * kCols * kSlabRowBytes);
  const std::uint32_t y_offset = bias_offset + kBiasBytes;
  const std::uint32_t stage_bytes =
      y_offset + static_cast<std::uint32_t>(blockDim.x / 32 * warp_bytes<kOdd>(p));
  const std::uint32_t own_offset =
      y_offset + static_cast<std::uint32_t>(warp * warp_bytes<kOdd>(p) + lane * 16);
  constexpr int kCopy = RowCopy<kOdd>::kBytes;
  const bool copies_b =
      reinterpret_cast<std::uintptr_t>(b) % kCopy == 0 && b_stride % (kCopy / 2) == 0;
  const RowCopy<kOdd> way(b, b_stride);
  const bool fits = rank <= kSlabs * kSlab;
  const int lane_columns = columns - lane % 4 * 8;
  const auto is_whole = [&](int step) { return to.wide && (step + 1) * kCols <= columns; };
  const auto load_bias = [&](std::uint32_t stage, int step) {
    if (!to.with_bias || thread >= kCols) return;
    const std::int64_t column = first_column + step * kCols + thread;
    const float* const from = bias + (column < out ? column : 0);
    asm volatile(
        "cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(stage + bias_offset + thread * 4),
        "l"(from), "r"(column < out ? 4 : 0)
        : "memory");
  };
  const auto load = [&](std::uint32_t stage, int step, int ahead) {
    load_b<T, kCols>(stage, b, b_stride, copies_b, way, first_column + step * kCols, out, 0, rank);
    load_bias(stage, step);
    if (!p.overwrites)
      load_y(to, ahead, is_whole(step), lane_columns - step * kCols, stage + own_offset);
  };

  // Nothing here depends on the kernel before but h: B and y are under way when it ends.
  if (fits && rank > 0) {
#pragma unroll 1
    for (int step = 0; step < kStages - 1; ++step) {
      if (step < steps) load(shared + step * stage_bytes, step, step * kCols);
      commit_copies();
    }
  }
  const float* h[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    h[r] = p.h.data + rows[r] * p.h.stride + static_cast<std::int64_t>(slice) * p.max_rank;
  }
  wait_for_previous();
  if (rank == 0) {
    const float zeros[4][4] = {};
    for (int step = 0; step < steps; ++step) {
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        finish_group<TY, false>(to, zeros, group, lane_columns - step * kCols - group * 32,
                                shared + own_offset, shared);
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) to.y[r] += kCols;
    }
    return;
  }
  if (p.h_sum.data != nullptr && first_step == 0) {
    for (int first = 0; first < rank; first += kSlab) {
      float v[1][8];
      load_hidden(p, h, first, rank, lane, v);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int r = i / 2 % 2, column = first + i / 4 * 8 + lane % 4 * 2 + i % 2;
        if (to.has[r] && column < rank) {
          p.h_sum.data[rows[r] * p.h_sum.stride + static_cast<std::int64_t>(slice) * p.max_rank +
                       column] = v[0][i];
        }
      }
    }
  }

  if (fits) {
    const int slabs = (rank + kSlab - 1) / kSlab;
    Fragment<T> fragments[kSlabs];
    {
      float v[kSlabs][8];
      load_hidden(p, h, 0, rank, lane, v);
      mask_hidden(0, rank, lane, v);
      float most[2] = {0.0f, 0.0f}, fit[2], unfit[2];
      if constexpr (std::is_same_v<T, __half>) {
#pragma unroll
        for (int i = 0; i < kSlabs * 8; ++i)
          most[i / 2 % 2] = fmaxf(most[i / 2 % 2], finite_magnitude(v[i / 8][i % 8]));
      }
      fit_rows<T>(most[0], most[1], fit, unfit);
#pragma unroll
      for (int s = 0; s < kSlabs; ++s) fragments[s] = make_fragment<T>(v[s], fit);
#pragma unroll
      for (int r = 0; r < 2; ++r) to.f_sum[r] = to.f[r] * unfit[r];
    }
    int place = 0;
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      wait_copies<kStages - 2>();
      __syncthreads();  // B of this step is there, and all have left the step before
      const int next = step + kStages - 1;
      if (next < steps) {
        load(
            shared + static_cast<std::uint32_t>(place == 0 ? kStages - 1 : place - 1) * stage_bytes,
            next, (kStages - 1) * kCols);
      }
      commit_copies();
      const std::uint32_t stage = shared + static_cast<std::uint32_t>(place) * stage_bytes;
      float sums[kGroups][4][4] = {};
#pragma unroll
      for (int s = 0; s < kSlabs; ++s) {
        if (s < slabs) multiply_slab(sums, fragments[s], stage + s * kCols * kSlabRowBytes, lane);
      }
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        finish_group<TY, false>(to, sums[group], group, lane_columns - step * kCols - group * 32,
                                stage + own_offset,
                                stage + bias_offset + static_cast<std::uint32_t>(lane % 4 * 32));
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) to.y[r] += kCols;
      place = place == kStages - 1 ? 0 : place + 1;
    }
    return;
  }

  // More ranks than a stage has: B in two stages of its own, h again for every step.
  if constexpr (kSlabs > 1) {
    constexpr int kStageSlabs = 8;
    constexpr std::uint32_t kStageBytes = kStageSlabs * kCols * kSlabRowBytes;
    const std::uint32_t shared_b = shared + stage_bytes;  // the first stage keeps y and bias
    const int parts_of_rank = (rank + kStageSlabs * kSlab - 1) / (kStageSlabs * kSlab);
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      const std::int64_t column = first_column + step * kCols;
      const auto load_part = [&](int i) {
        const int from = i * kStageSlabs * kSlab;
        load_b<T, kCols>(shared_b + static_cast<std::uint32_t>(i % 2) * kStageBytes, b, b_stride,
                         copies_b, way, column, out, from, min(kStageSlabs * kSlab, rank - from));
        commit_copies();
      };
      load_bias(shared, step);
      if (!p.overwrites)
        load_y(to, 0, is_whole(step), lane_columns - step * kCols, shared + own_offset);
      load_part(0);
      float sums[kGroups][4][4] = {};
      float v[1][8];
      load_hidden(p, h, 0, rank, lane, v);
#pragma unroll 1
      for (int i = 0; i < parts_of_rank; ++i) {
        if (i + 1 < parts_of_rank) {
          load_part(i + 1);
          wait_copies<1>();
        } else {
          wait_copies<0>();
        }
        __syncthreads();
#pragma unroll 1
        for (int s = 0; s < kStageSlabs; ++s) {
          const int first = (i * kStageSlabs + s) * kSlab;
          if (first >= rank) break;
          mask_hidden(first, rank, lane, v);
          float most[2] = {0.0f, 0.0f}, fit[2], unfit[2];
          if constexpr (std::is_same_v<T, __half>) {
#pragma unroll
            for (int j = 0; j < 8; ++j)
              most[j / 2 % 2] = fmaxf(most[j / 2 % 2], finite_magnitude(v[0][j]));
          }
          fit_rows<T>(most[0], most[1], fit, unfit);
          const Fragment<T> fragment = make_fragment<T>(v[0], fit);
          if (first + kSlab < rank) load_hidden(p, h, first + kSlab, rank, lane, v);
          const std::uint32_t slab = shared_b + static_cast<std::uint32_t>(i % 2) * kStageBytes +
                                     static_cast<std::uint32_t>(s * kCols * kSlabRowBytes);
          if constexpr (std::is_same_v<T, __half>) {
            float of_slab[kGroups][4][4] = {};
            multiply_slab(of_slab, fragment, slab, lane);
#pragma unroll
            for (int j = 0; j < kGroups * 16; ++j) {
              sums[j / 16][j / 4 % 4][j % 4] +=
                  of_slab[j / 16][j / 4 % 4][j % 4] * unfit[j / 2 % 2];
            }
          } else {
            multiply_slab(sums, fragment, slab, lane);
          }
        }
        __syncthreads();
      }
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        finish_group<TY, false>(to, sums[group], group, lane_columns - step * kCols - group * 32,
                                shared + own_offset,
                                shared + bias_offset + static_cast<std::uint32_t>(lane % 4 * 32));
      }
      __syncthreads();  // the bias is everybody's
#pragma unroll
      for (int r = 0; r < 2; ++r) to.y[r] += kCols;
    }
  }
}

}  // namespace

}  // namespace cuda
RANKFOLD_NAMESPACE_END
