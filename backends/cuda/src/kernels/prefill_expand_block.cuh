// What a block of prefill_expand.cu and of pairs_expand.cu does: rows of one entry, some columns of
// one slice. Included by these kernels alone.
#pragma once

#include "prefill_expand_any.cuh"
#include "prefill_outputs.cuh"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

namespace {

/// entries: of the rows' first slice. rows: the lane's two, of h and of y, of `count` in the block;
/// past the count the last again. part: of p.parts. strength(r, scaling): f of rows[r]. All threads
/// call it, with whole warpgroups; who calls it again waits for the block in between.
template <class T, class TY, int kSlabs, int kStages, bool kOdd = false, class Strength>
__device__ __forceinline__ void expand_block(const ExpandParams& p, const AdapterEntry* entries,
                                             const int (&rows)[2], int count, int part,
                                             std::uint32_t shared, const Strength& strength) {
  constexpr int kCols = kColumns<TY>;
  constexpr int kGroups = kCols / 32;
  constexpr int kLanePieces = kWarpBytes / 512;
  constexpr int kCopy = RowCopy<kOdd>::kBytes;
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32, warp = thread / 32;
  Work<T> work;
  std::int64_t y_column = 0;
  int slice = 0;
  for (; slice + 1 < p.num_slices && part >= p.first_part[slice + 1]; ++slice)
    y_column += p.out[slice];
  work.slice = slice;
  work.first_step = (part - p.first_part[slice]) * p.steps;
  work.out = p.out[slice];
  work.first_column = std::int64_t{work.first_step} * kCols;
  work.columns = static_cast<int>(min(work.out - work.first_column, std::int64_t{p.steps} * kCols));
  work.steps = (work.columns + kCols - 1) / kCols;
  const AdapterEntry* const entry = entries + slice;

  Finish<TY, kOdd> to;
  if constexpr (kOdd)
    to.all_left = lane % 4 == 0 && y_column + work.first_column == 0 ? work.columns : -1;
  to.wide = p.wide_y && y_column * sizeof(TY) % 16 == 0;
  to.overwrites = p.overwrites;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    to.has[r] = warp * kWarpRows + lane / 4 + r * 8 < count;
    work.rows[r] = rows[r];
    to.y[r] = static_cast<TY*>(p.y) + work.rows[r] * p.y_stride + y_column + work.first_column +
              lane % 4 * 8;
  }

  // Stages of a ring: B, bias and y of a step.
  const std::uint32_t y_offset =
      static_cast<std::uint32_t>(p.slabs * kCols * kSlabRowBytes + kBiasBytes);
  const std::uint32_t stage_bytes = y_offset + blockDim.x / 32 * warp_bytes<kOdd>(p);
  const std::uint32_t own =
      shared + y_offset + static_cast<std::uint32_t>(warp * warp_bytes<kOdd>(p) + lane * 16);
  const int steps = work.steps;
  const auto copy_y = [&](std::uint32_t stage_own, int ahead) {
#pragma unroll
    for (int i = 0; i < kLanePieces; ++i) {
      constexpr int kPieces = sizeof(TY) / 2;
      const TY* const from = to.y[i / kPieces % 2] + ahead + i / kPieces / 2 * 32 + i % kPieces * 4;
      copy_16(stage_own + static_cast<std::uint32_t>(i * 512), from, 16);
    }
  };
  // The entry is asked for before y, which does not wait for it.
  work.b = static_cast<const T*>(entry->b);
  work.b_stride = entry->b_row_stride;
  work.bias = p.with_bias ? entry->bias : nullptr;
  const void* const a = entry->a;
  const int entry_rank = bounded_rank(*entry, p.max_rank);
  const float scaling = entry->scaling;
  // y needs nothing of the table, B needs the table alone, and neither the kernel before: all is
  // under way when that ends. Rows past the count are the last row again, so that there are no
  // branches.
  const bool whole_y = to.wide && !to.overwrites && work.columns % kCols == 0;
  const bool has_rows = warp * kWarpRows < count;
  if (whole_y && has_rows) {
#pragma unroll
    for (int step = 0; step < kStages - 1; ++step) {
      if (step < steps) copy_y(own + step * stage_bytes, step * kCols);
    }
  }
  work.rank = (work.b != nullptr) & (!p.made_h | (a != nullptr)) ? entry_rank : 0;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    to.f[r] = strength(r, scaling);
    to.f_sum[r] = to.f[r];
  }
  to.with_bias = work.bias != nullptr && work.rank > 0;
  const int rank = work.rank;
  if (!whole_y || to.with_bias || rank == 0 || rank > kSlabs * kSlab ||
      (p.h_sum.data != nullptr && part == p.first_part[slice]) || !p.wide_h ||
      reinterpret_cast<std::uintptr_t>(work.b) % kCopy != 0 || work.b_stride % (kCopy / 2) != 0) {
    commit_copies();
    wait_copies<0>();
    if (rank == 0 && !p.overwrites) {
      wait_for_previous();
    } else {
      const Work<T> copy = work;  // so that the work itself stays in registers
      const Finish<TY, kOdd> start = to;
      expand_any<T, TY, kSlabs, kStages>(p, copy, start, shared);
    }
    return;
  }

  // The thread's pieces of B: every turn of the block's threads is `turn` rows further, 16 or a
  // multiple of 32.
  constexpr int kTurns = kSlabs == 1 ? 1 : kCols / 16 * (kSlabs > 4 ? 2 : 1);
  const int slabs = __shfl_sync(0xffffffffu, (rank + kSlab - 1) / kSlab, 0);
  const int shift = slabs == 1 ? 1 : slabs == 2 ? 2 : slabs <= 4 ? 3 : 4;
  const int piece = thread & ((1 << shift) - 1), n = thread >> shift;
  const int turn = static_cast<int>(blockDim.x) >> shift;
  const int piece_bytes = min(max(rank - piece * 8, 0), 8) * 2;
  const int turns = piece < slabs * 2 && n < kCols ? (kCols - n + turn - 1) / turn : 0;
  const T* b = work.b + (work.first_column + n) * work.b_stride + (piece_bytes > 0 ? piece * 8 : 0);
  const std::int64_t b_turn = turn * work.b_stride;
  const std::uint32_t b_offset = static_cast<std::uint32_t>(piece / 2 * kCols * kSlabRowBytes) +
                                 slab_offset(permuted(n), piece % 2);
  const RowCopy<kOdd> way(work.b, work.b_stride);
  const auto copy_b = [&](std::uint32_t stage) {
#pragma unroll
    for (int i = 0; i < kTurns; ++i) {
      if (i >= turns) break;
      std::uint32_t at = b_offset + static_cast<std::uint32_t>(i * turn * kSlabRowBytes);
      // 16 rows further in B are 4 rows further in the slab.
      if constexpr (kSlabs > 4) {
        at = static_cast<std::uint32_t>(piece / 2 * kCols * kSlabRowBytes) +
             slab_offset(permuted(n + i * turn), piece % 2);
      } else if (kTurns > 1 && turn == 16) {
        at = ((b_offset + (i % 2 * 128)) ^ (i % 2 * 16)) + static_cast<std::uint32_t>(i / 2 * 1024);
      }
      way.copy(stage + at, b + i * b_turn, piece_bytes);
    }
    b += kCols * work.b_stride;
  };
#pragma unroll 1
  for (int step = 0; step < kStages - 1; ++step) {
    if (step < steps) copy_b(shared + step * stage_bytes);
    commit_copies();
  }
  const float* h[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    h[r] = p.h.data + work.rows[r] * p.h.stride + static_cast<std::int64_t>(slice) * p.max_rank;
  }
  wait_for_previous();

  Fragment<T> fragments[kSlabs];
  {
    float v[kSlabs][8];
    if constexpr (kSlabs > 4) {
      load_slabs_of_hidden(p, h, rank, lane, v);
    } else {
      load_wide_hidden(p, h, 0, rank, lane, v);
    }
    if (rank != kSlabs * kSlab) mask_hidden(0, rank, lane, v);
    float most[2] = {0.0f, 0.0f}, fit[2], unfit[2];
    if constexpr (std::is_same_v<T, __half>) {
#pragma unroll
      for (int i = 0; i < kSlabs * 8; ++i) {
        most[i / 2 % 2] = fmaxf(most[i / 2 % 2], finite_magnitude(v[i / 8][i % 8]));
      }
    }
    fit_rows<T>(most[0], most[1], fit, unfit);
#pragma unroll
    for (int s = 0; s < kSlabs; ++s) fragments[s] = make_fragment<T>(v[s], fit);
#pragma unroll
    for (int r = 0; r < 2; ++r) to.f_sum[r] = to.f[r] * unfit[r];
  }
  std::uint32_t stage = 0, last = (kStages - 1) * stage_bytes;
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    wait_copies<kStages - 2>();
    publish_to_matrices();
    __syncthreads();  // B of this step is there, and all have left the step before
    if (step + kStages - 1 < steps) {
      if (has_rows) copy_y(own + last, (kStages - 1) * kCols);
      copy_b(shared + last);
    }
    commit_copies();
    float sums[kGroups][4][4] = {};
    multiply_slabs<kSlabs, T>(sums, fragments, shared + stage, slabs, lane);
    if (has_rows) {
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        finish_group<TY, true>(to, sums[group], group, 8, own + stage, 0);
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) to.y[r] += kCols;
    last = stage;
    stage = stage == (kStages - 1) * stage_bytes ? 0 : stage + stage_bytes;
  }
}

}  // namespace

}  // namespace cuda
RANKFOLD_NAMESPACE_END
