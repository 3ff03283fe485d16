// The expand for weights of float32 and ranks up to 16, included by prefill_expand_floats.cu alone:
// little is multiplied, so that all warps load B, split it, multiply and move y, two blocks on a
// multiprocessor.
#pragma once

#include "prefill_float_products.cuh"
#include "prefill_launch.hpp"
#include "prefill_outputs.cuh"
#include "prefill_words.cuh"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

namespace {

constexpr int kLowThreads = 256;

/// Of the block, how B and y stand in shared memory: two places of B in parts, with the powers of
/// two of its columns and the bias, and a ring of y.
template <class TY, int kSlabs>
struct LowStages {
  static constexpr int kCols = kColumns<TY>;
  static constexpr int kPartBytes = kSlabs * kCols * kSlabRowBytes;
  static constexpr int kScales = 2 * kPartBytes;
  static constexpr int kBias = kScales + 256;
  static constexpr int kPlaceBytes = kBias + kBiasBytes;
  static constexpr int kYBytes = kLowThreads / 32 * kWarpBytes;
  static constexpr int kCount = kSlabs == 4 ? 4 : 6;  // of y
  static constexpr int kBytes = 2 * kPlaceBytes + kCount * kYBytes;
  static constexpr int kBlocks = kSlabs == 8 ? 1 : 2;  // on a multiprocessor
  // Pieces of eight ranks of a column are neighbouring threads.
  static constexpr int kPieces = 2 * kSlabs;
  static constexpr int kTurn = kLowThreads / kPieces;  // columns
  static constexpr int kTurns = kCols > kTurn ? kCols / kTurn : 1;
};

/// The thread's pieces of B of a step.
template <class TY, int kSlabs>
struct LowColumns {
  using S = LowStages<TY, kSlabs>;
  const float* b;  // at the thread's piece of its first column
  std::int64_t stride;
  int count;  // of the piece's ranks
  int columns;
  int column;  // the thread's first of the step fetched last
  bool wide;
  std::uint32_t words[S::kTurns][8];

  __device__ __forceinline__ void fetch() {
#pragma unroll
    for (int i = 0; i < S::kTurns; ++i) {
      const int c = column + i * S::kTurn;
      const int present = c < columns ? count : 0;
      const float* const from = present > 0 ? b + c * stride : b;
#pragma unroll
      for (int j = 0; j < 8; ++j) words[i][j] = 0u;
      if (wide) {
        load_words_if(words[i], present >= 4, present >= 8, from);
        // Two steps on: 128 bytes are four pieces.
        if (static_cast<int>(threadIdx.x) % 4 == 0 && present > 0 && c + 2 * S::kCols < columns) {
          asm volatile("prefetch.global.L2 [%0];" ::"l"(from + 2 * S::kCols * stride) : "memory");
        }
      } else {
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          if (j < present) words[i][j] = __float_as_uint(from[j]);
        }
      }
    }
    column += S::kCols;
  }
  __device__ __forceinline__ void store(std::uint32_t place) const {
    const int piece = static_cast<int>(threadIdx.x) % S::kPieces;
    const int n = static_cast<int>(threadIdx.x) / S::kPieces;
#pragma unroll
    for (int i = 0; i < S::kTurns; ++i) {
      float most = 0.0f;
#pragma unroll
      for (int j = 0; j < 8; ++j)
        most = fmaxf(most, finite_magnitude(__uint_as_float(words[i][j])));
#pragma unroll
      for (int step = 1; step < S::kPieces; step *= 2)
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
      float fit, unfit;
      fit_f16(most, fit, unfit);
      std::uint32_t high[4], low[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        split_pair<__half>(__uint_as_float(words[i][2 * j]) * fit,
                           __uint_as_float(words[i][2 * j + 1]) * fit, high[j], low[j]);
      }
      const int c = n + i * S::kTurn;
      if (S::kTurn > S::kCols && c >= S::kCols) continue;
      const std::uint32_t at = place +
                               static_cast<std::uint32_t>(piece / 2 * S::kCols * kSlabRowBytes) +
                               slab_offset(permuted(c), piece % 2);
      store_shared_16(at, high);
      store_shared_16(at + S::kPartBytes, low);
      if (piece == 0) {
        asm volatile("st.shared.f32 [%0], %1;" ::"r"(place + S::kScales + c * 4), "f"(unfit)
                     : "memory");
      }
    }
  }
};

template <class TY, int kSlabs>
__global__ void __launch_bounds__(kLowThreads, (LowStages<TY, kSlabs>::kBlocks))
    expand_low_floats(const __grid_constant__ ExpandParams p) {
  using S = LowStages<TY, kSlabs>;
  constexpr int kCols = S::kCols, kGroups = kCols / 32, kStages = S::kCount;
  constexpr int kRows = kLowThreads / 32 * kWarpRows;
  extern __shared__ __align__(256) unsigned char dynamic[];
  const std::uint32_t shared = shared_address(dynamic);
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32, warp = thread / 32;
  const int part = static_cast<int>(blockIdx.x);
  const int index = static_cast<int>(blockIdx.y + blockIdx.z * kRowBlocksY);
  const RowBlock block = p.kind == Grouping::uniform
                             ? find_row_block<Grouping::uniform, kRows>(p.rows, index)
                             : find_row_block<Grouping::segments, kRows>(p.rows, index);
  if (block.slot < 0) {
    wait_for_previous();
    return;
  }
  std::int64_t y_column = 0;
  int slice = 0;
  for (; slice + 1 < p.num_slices && part >= p.first_part[slice + 1]; ++slice)
    y_column += p.out[slice];
  const std::int64_t first_column = std::int64_t{part - p.first_part[slice]} * p.steps * kCols;
  const int columns =
      static_cast<int>(min(p.out[slice] - first_column, std::int64_t{p.steps} * kCols));
  const int steps = (columns + kCols - 1) / kCols;
  const AdapterEntry* const entry = p.entries + block.slot * p.slot_stride + slice;

  Finish<TY> to;
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
  const bool has_rows = warp * kWarpRows < block.count;
  const int lane_columns = columns - lane % 4 * 8;
  std::uint32_t own =
      shared + 2 * S::kPlaceBytes + static_cast<std::uint32_t>(warp * kWarpBytes + lane * 16);
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
  const float* const b = static_cast<const float*>(entry->b);
  const std::int64_t b_stride = entry->b_row_stride;
  const float* const bias = p.with_bias ? entry->bias : nullptr;
  const int entry_rank = bounded_rank(*entry, p.max_rank);
  const int rank = (b != nullptr) & (!p.made_h | (a != nullptr)) ? entry_rank : 0;
  const float scaling = entry->scaling;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    to.f[r] = scaling;
    if (p.token_weights != nullptr) to.f[r] *= p.token_weights[rows[r]];
    to.f_sum[r] = to.f[r];
  }
  to.with_bias = bias != nullptr && rank > 0;
  if (rank == 0 && !p.overwrites) {
    wait_copies<0>();
    wait_for_previous();
    return;
  }

  LowColumns<TY, kSlabs> next;
  const int piece = thread % S::kPieces;
  next.count = min(max(rank - piece * 8, 0), 8);
  next.b = b + (next.count > 0 ? first_column * b_stride + piece * 8 : 0);
  next.stride = b_stride;
  next.columns = columns;
  next.column = thread / S::kPieces;
  next.wide = reinterpret_cast<std::uintptr_t>(b) % 16 == 0 && b_stride % 4 == 0 && rank % 4 == 0;
  const auto store_bias = [&](std::uint32_t place, int step) {
    if (!to.with_bias || thread >= kCols) return;
    const int column = step * kCols + thread;
    const float v = column < columns ? bias[first_column + column] : 0.0f;
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(place + S::kBias + thread * 4), "f"(v) : "memory");
  };
  next.fetch();
  next.store(shared);
  store_bias(shared, 0);
  next.fetch();

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

  int stage = 0, last = kStages - 1;
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    const std::uint32_t place = shared + static_cast<std::uint32_t>(step % 2 * S::kPlaceBytes);
    const std::uint32_t other =
        shared + static_cast<std::uint32_t>((step + 1) % 2 * S::kPlaceBytes);
    wait_copies<kStages - 2>();
    publish_to_matrices();
    __syncthreads();  // B of this step is there, and all have left the step before
    ask_for_y(step + kStages - 1, (kStages - 1) * kCols,
              own + static_cast<std::uint32_t>(last * S::kYBytes));
    float sums[kGroups][4][4] = {};
    begin_float_slabs<kSlabs>(sums, fragments, place, place + S::kPartBytes, lane);
    next.store(other);
    store_bias(other, step + 1);
    next.fetch();
    end_float_slabs(sums, place + S::kScales + static_cast<std::uint32_t>(lane % 4 * 32));
    if (has_rows) {
      const std::uint32_t from = own + static_cast<std::uint32_t>(stage * S::kYBytes);
      if (is_whole(step) && !to.with_bias && !to.overwrites) {
#pragma unroll
        for (int group = 0; group < kGroups; ++group)
          finish_group<TY, true>(to, sums[group], group, 8, from, 0);
      } else {
#pragma unroll
        for (int group = 0; group < kGroups; ++group) {
          finish_group<TY, false>(to, sums[group], group, lane_columns - step * kCols - group * 32,
                                  from,
                                  place + S::kBias + static_cast<std::uint32_t>(lane % 4 * 32));
        }
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) to.y[r] += kCols;
    last = stage;
    stage = stage == kStages - 1 ? 0 : stage + 1;
  }
}

template <class TY, int kSlabs>
Status launch_low_floats(const ExpandParams& params, std::int64_t row_blocks, bool overlaps,
                         cudaStream_t stream) {
  static std::atomic<std::uint64_t> prepared{0};
  return launch_shaped(&expand_low_floats<TY, kSlabs>,
                       {.blocks = params.parts,
                        .blocks_y = std::min<std::int64_t>(row_blocks, kRowBlocksY),
                        .blocks_z = divide_up(row_blocks, kRowBlocksY),
                        .threads = kLowThreads,
                        .shared_bytes = LowStages<TY, kSlabs>::kBytes,
                        .overlaps = overlaps},
                       &prepared, stream, params);
}

}  // namespace

}  // namespace cuda
RANKFOLD_NAMESPACE_END
