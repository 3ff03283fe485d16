// The expand of prefill_expand.cu for weights of float32, included by prefill_expand_floats.cu
// alone. Each column of B is brought to the range of f16 by a power of two and becomes the sum of
// two parts of f16, as h does: of a step the two hold 22 bits, and of the four products of parts
// the smallest is left out. One warpgroup loads and splits B; two others, 64 rows each, multiply
// and move y.
#pragma once

#include "prefill_float_columns.cuh"
#include "prefill_launch.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

namespace {

/// What a block has of the batch and of an entry.
struct FloatBlock {
  int slice;
  int columns;
  int steps;
  std::int64_t first_column;
  int rank;
  const float* b;
  std::int64_t b_stride;
  const float* bias;  // nullptr: none
};

/// The loading warpgroup.
template <class TY, int kSlabs, bool kOdd, bool kWide>
__device__ __forceinline__ void load_columns(const FloatBlock& block, std::uint32_t shared) {
  using S = FloatStages<TY, kSlabs, kOdd>;
  const int thread = static_cast<int>(threadIdx.x) - kFloatMultipliers;
  FloatColumns<TY, kSlabs, kOdd, kWide> next;
  const int piece = thread % S::kPieces;
  next.count = min(max(block.rank - piece * 8, 0), 8);
  next.b = block.b;
  next.stride = block.b_stride;
  next.left = block.columns - thread / S::kPieces;
  next.from = block.b + (block.first_column + thread / S::kPieces) * block.b_stride + piece * 8;
  // The second level of cache is asked for whole columns, some steps earlier.
  constexpr int kEarlier = 3;
  const auto ask_for = [&](int step) {
    const int column = step * S::kCols + thread;
    if (kWide && thread < S::kCols && column < block.columns && block.rank > 0)
      prefetch_bulk(block.b + (block.first_column + column) * block.b_stride, block.rank * 4);
  };
#pragma unroll
  for (int i = 0; i < S::kTurns; ++i) next.fetch(i);
  for (int step = 1; step < kEarlier; ++step) ask_for(step);
  int place = 0, turn = 0;
#pragma unroll 1
  for (int step = 0; step < block.steps; ++step) {
    ask_for(step + kEarlier);
    const std::uint32_t at = shared + static_cast<std::uint32_t>(place * S::kPlaceBytes);
    barrier_wait(shared + static_cast<std::uint32_t>(S::kEmpty + place * 8), turn ^ 1);
    next.advance();
    next.store_and_fetch(at);
    if (block.bias != nullptr && thread < S::kCols) {
      const int column = step * S::kCols + thread;
      const float v = column < block.columns ? block.bias[block.first_column + column] : 0.0f;
      asm volatile("st.shared.f32 [%0], %1;" ::"r"(at + S::kBias + thread * 4), "f"(v) : "memory");
    }
    barrier_arrive(shared + static_cast<std::uint32_t>(S::kFull + place * 8));
    if (++place == S::kPlaces) {
      place = 0;
      turn ^= 1;
    }
  }
}

template <class TY, int kSlabs, bool kOdd>
__global__ void __launch_bounds__(kFloatThreads, 1)
    expand_float_columns(const __grid_constant__ ExpandParams p) {
  using S = FloatStages<TY, kSlabs, kOdd>;
  constexpr int kCols = S::kCols, kGroups = kCols / 32, kStages = S::kCount;
  constexpr int kRows = kFloatMultipliers / 32 * kWarpRows;
  extern __shared__ __align__(256) unsigned char dynamic[];
  const std::uint32_t shared = shared_address(dynamic);
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32, warp = thread / 32;
  if (thread == 0) {
    for (int i = 0; i < S::kPlaces; ++i) {
      barrier_init(shared + static_cast<std::uint32_t>(S::kFull + i * 8),
                   kFloatThreads - kFloatMultipliers);
      barrier_init(shared + static_cast<std::uint32_t>(S::kEmpty + i * 8), kFloatMultipliers / 32);
    }
    barrier_publish();
  }
  const int part = static_cast<int>(blockIdx.x);
  const int index = static_cast<int>(blockIdx.y + blockIdx.z * kRowBlocksY);
  const RowBlock block = p.kind == Grouping::uniform
                             ? find_row_block<Grouping::uniform, kRows>(p.rows, index)
                             : find_row_block<Grouping::segments, kRows>(p.rows, index);
  if (block.slot < 0) {
    wait_for_previous();
    return;
  }
  FloatBlock own_block;
  std::int64_t y_column = 0;
  int slice = 0;
  for (; slice + 1 < p.num_slices && part >= p.first_part[slice + 1]; ++slice)
    y_column += p.out[slice];
  const std::int64_t first_column = std::int64_t{part - p.first_part[slice]} * p.steps * kCols;
  const int columns =
      static_cast<int>(min(p.out[slice] - first_column, std::int64_t{p.steps} * kCols));
  const int steps = (columns + kCols - 1) / kCols;
  const AdapterEntry* const entry = p.entries + block.slot * p.slot_stride + slice;
  const bool multiplies = thread < kFloatMultipliers;

  Finish<TY, kOdd> to;
  if constexpr (kOdd) to.all_left = lane % 4 == 0 && y_column + first_column == 0 ? columns : -1;
  int rows[2];
  to.wide = p.wide_y && y_column * sizeof(TY) % 16 == 0;
  to.overwrites = p.overwrites;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int i = warp * kWarpRows + lane / 4 + r * 8;
    to.has[r] = i < block.count;
    const int at = min(i, block.count - 1);
    rows[r] = p.kind == Grouping::uniform ? row_at<Grouping::uniform>(p.rows, block, at)
                                          : row_at<Grouping::segments>(p.rows, block, at);
    to.y[r] = static_cast<TY*>(p.y) + rows[r] * p.y_stride + y_column + first_column + lane % 4 * 8;
  }
  const bool has_rows = multiplies && warp * kWarpRows < block.count;
  const int lane_columns = columns - lane % 4 * 8;
  const std::uint32_t own =
      shared + static_cast<std::uint32_t>(S::kY + warp * kYWarpBytes<TY, kOdd> + lane * 16);
  const auto is_whole = [&](int step) { return to.wide && (step + 1) * kCols <= columns; };
  const auto ask_for_y = [&](int step, int ahead, std::uint32_t at) {
    if (step < steps && has_rows && !p.overwrites)
      load_y(to, ahead, is_whole(step), lane_columns - step * kCols, at);
    commit_copies();
  };
#pragma unroll 1
  for (int step = 0; step < kStages - 1; ++step)
    ask_for_y(step, step * kCols, own + static_cast<std::uint32_t>(step * S::kYBytes));

  const void* const a = entry->a;
  own_block.b = static_cast<const float*>(entry->b);
  own_block.b_stride = entry->b_row_stride;
  own_block.bias = p.with_bias ? entry->bias : nullptr;
  const int entry_rank = bounded_rank(*entry, p.max_rank);
  const int rank = (own_block.b != nullptr) & (!p.made_h | (a != nullptr)) ? entry_rank : 0;
  if (rank == 0) own_block.bias = nullptr;
  own_block.rank = rank;
  own_block.slice = slice;
  own_block.columns = columns;
  own_block.steps = steps;
  own_block.first_column = first_column;
  const float scaling = entry->scaling;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    to.f[r] = scaling;
    if (p.token_weights != nullptr) to.f[r] *= p.token_weights[rows[r]];
    to.f_sum[r] = to.f[r];
  }
  to.with_bias = own_block.bias != nullptr;
  if (rank == 0 && !p.overwrites) {
    wait_copies<0>();
    wait_for_previous();
    return;
  }
  __syncthreads();  // the barriers are there

  if (!multiplies) {
    const bool wide = reinterpret_cast<std::uintptr_t>(own_block.b) % 16 == 0 &&
                      own_block.b_stride % 4 == 0 && rank % 4 == 0;
    if (wide) {
      load_columns<TY, kSlabs, kOdd, true>(own_block, shared);
    } else {
      load_columns<TY, kSlabs, kOdd, false>(own_block, shared);
    }
    wait_for_previous();
    return;
  }

  const float* h[2];
#pragma unroll
  for (int r = 0; r < 2; ++r)
    h[r] = p.h.data + rows[r] * p.h.stride + static_cast<std::int64_t>(slice) * p.max_rank;
  wait_for_previous();
  Fragment<__half> fragments[kSlabs];
  {
    float v[kSlabs][8] = {};
    if (rank > 0) load_slabs_of_hidden(p, h, rank, lane, v);
    mask_hidden(0, rank, lane, v);
    if (p.h_sum.data != nullptr && part == p.first_part[slice]) {
#pragma unroll
      for (int i = 0; i < kSlabs * 8; ++i) {
        const int r = i / 2 % 2, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
        if (to.has[r] && column < rank) {
          p.h_sum.data[rows[r] * p.h_sum.stride + static_cast<std::int64_t>(slice) * p.max_rank +
                       column] = v[i / 8][i % 8];
        }
      }
    }
    float most[2] = {0.0f, 0.0f}, fit[2], unfit[2];
#pragma unroll
    for (int i = 0; i < kSlabs * 8; ++i)
      most[i / 2 % 2] = fmaxf(most[i / 2 % 2], finite_magnitude(v[i / 8][i % 8]));
    fit_rows<__half>(most[0], most[1], fit, unfit);
#pragma unroll
    for (int s = 0; s < kSlabs; ++s) fragments[s] = make_fragment<__half>(v[s], fit);
#pragma unroll
    for (int r = 0; r < 2; ++r) to.f_sum[r] = to.f[r] * unfit[r];
  }

  const bool group_has_rows = warp / 4 * 64 < block.count;
  int stage = 0, last = kStages - 1, place = 0, turn = 0;
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    const std::uint32_t b = shared + static_cast<std::uint32_t>(place * S::kPlaceBytes);
    const std::uint32_t empty = shared + static_cast<std::uint32_t>(S::kEmpty + place * 8);
    barrier_wait(shared + static_cast<std::uint32_t>(S::kFull + place * 8), turn);
    if (group_has_rows) {
      // Here, not where it was written: the fence waits for what its thread has under way.
      publish_to_matrices();
      float sums[kGroups][4][4] = {};
      if (kSlabs > 1 && rank <= kSlab) {
        begin_float_slabs<1>(sums, fragments, b, b + S::kPartBytes, lane);
      } else if (kSlabs > 4 && rank <= 4 * kSlab) {
        begin_float_slabs<4>(sums, fragments, b, b + S::kPartBytes, lane);
      } else {
        begin_float_slabs<kSlabs>(sums, fragments, b, b + S::kPartBytes, lane);
      }
      ask_for_y(step + kStages - 1, (kStages - 1) * kCols,
                own + static_cast<std::uint32_t>(last * S::kYBytes));
      end_float_slabs(sums, b + S::kScales + static_cast<std::uint32_t>(lane % 4 * 32));
      const bool plain = is_whole(step) && !to.with_bias && !to.overwrites;
      if (plain) {
        __syncwarp();
        if (lane == 0) barrier_arrive(empty);
      }
      wait_copies<kStages - 1>();
      if (has_rows) {
        const std::uint32_t from = own + static_cast<std::uint32_t>(stage * S::kYBytes);
        if (plain) {
#pragma unroll
          for (int group = 0; group < kGroups; ++group)
            finish_group<TY, true>(to, sums[group], group, 8, from, 0);
        } else {
#pragma unroll
          for (int group = 0; group < kGroups; ++group) {
            finish_group<TY, false>(to, sums[group], group,
                                    lane_columns - step * kCols - group * 32, from,
                                    b + S::kBias + static_cast<std::uint32_t>(lane % 4 * 32));
          }
        }
      }
      if (!plain) {
        __syncwarp();
        if (lane == 0) barrier_arrive(empty);
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) to.y[r] += kCols;
      last = stage;
      stage = stage == kStages - 1 ? 0 : stage + 1;
    } else if (lane == 0) {
      barrier_arrive(empty);
    }
    if (++place == S::kPlaces) {
      place = 0;
      turn ^= 1;
    }
  }
}

template <class TY, int kSlabs, bool kOdd>
Status launch_floats(const ExpandParams& params, std::int64_t row_blocks, bool overlaps,
                     cudaStream_t stream) {
  static std::atomic<std::uint64_t> prepared{0};
  return launch_shaped(&expand_float_columns<TY, kSlabs, kOdd>,
                       {.blocks = params.parts,
                        .blocks_y = std::min<std::int64_t>(row_blocks, kRowBlocksY),
                        .blocks_z = divide_up(row_blocks, kRowBlocksY),
                        .threads = kFloatThreads,
                        .shared_bytes = FloatStages<TY, kSlabs, kOdd>::kBytes,
                        .overlaps = overlaps},
                       &prepared, stream, params);
}

}  // namespace

}  // namespace cuda
RANKFOLD_NAMESPACE_END
