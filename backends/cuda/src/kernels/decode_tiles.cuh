// The tiles of decode_expand.cu, included there alone: y += h B^T, the fast way and the way for any
// alignment, any rank and a bias.
#pragma once

#include "decode_hidden.cuh"
#include "decode_operands.cuh"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

namespace {

// What a lane knows of its work before h is there.
template <class TY, class TB>
struct Work {
  TY* y[2];  ///< rows g and g + 8 at the lane's eight columns of the warp's first tile; null past
             ///< the count
  const TB* b;  ///< the first of the lane's four rows of B in the warp's first tile
  std::int64_t b_stride;
  const float* bias;  ///< at the lane's columns of the warp's first tile, or null
  int left;           ///< columns of the slice from those of the lane on
  int b_left;         ///< and from the lane's rows of B on
  int tiles;          ///< of the warp
  int rank;
  int count;  ///< rows of the block
  int h_column;
  bool first_chunk;
  float strength[2];  ///< f of the two rows
};
constexpr int kTileStep = kWarps * kColumns;  // from one tile of a warp to its next

template <class TY, class TB, int kSteps>
struct Operands {
  Four<TB> b[kSteps][4];  ///< of 16 ranks, four rows
  Eight<TY> y[2];
};

template <class TY, class TB, int kSteps>
__device__ __forceinline__ void clear_b(Operands<TY, TB, kSteps>& o) {
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
#pragma unroll
    for (int j = 0; j < 4; ++j) o.b[s][j] = {};
  }
}
template <class TY, class TB, int kSteps>
__device__ __forceinline__ void clear(Operands<TY, TB, kSteps>& o) {
  clear_b(o);
#pragma unroll
  for (int i = 0; i < 2; ++i) o.y[i] = {};
}

// Rows of B past the slice's end may stay what they are: the columns that they make are not stored.
template <bool kWide, class TY, class TB, int kSteps>
__device__ __forceinline__ void load_operands(const Work<TY, TB>& w, int tile, int first_rank,
                                              bool with_y, Operands<TY, TB, kSteps>& o) {
  const int t = static_cast<int>(threadIdx.x) % 4;
  const int step = tile * kTileStep;
  const bool exists = tile < w.tiles;
  const TB* const b = w.b + step * w.b_stride + first_rank;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const bool there = exists && step + (kWide ? 0 : j) < w.b_left;
    load_row<kWide, TB, kSteps>(b + j * w.b_stride, there, w.rank - first_rank, t, j, o.b);
  }
  if constexpr (kWide) {
    if (!with_y) return;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (i == 1 && w.count <= 8) break;
      const bool there = exists && w.y[i] != nullptr && step < w.left;
#pragma unroll
      for (int part = 0; part < static_cast<int>(sizeof(TY)) / 2; ++part) {
        load_into_if<true>(o.y[i].part[part], there, w.y[i] + step + part * (16 / sizeof(TY)));
      }
    }
  }
}

// Sums c[0] (row g) or c[2] (row g + 8) of product j stand at column j of the lane's eight, c[1] or
// c[3] at 4 + j. y of both rows += undo times the sums + strength times the bias, in float32, one
// rounding.
template <bool kWide, class TY, class TB>
__device__ __forceinline__ void add_to_y(const Work<TY, TB>& w, int tile, const float (&sums)[4][4],
                                         const float (&undo)[2], const Eight<TY> (&old)[2]) {
  const int step = tile * kTileStep;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (i == 1 && w.count <= 8) break;
    if (w.y[i] == nullptr || step >= w.left) continue;
    TY* const to = w.y[i] + step;
    float values[8] = {};
    if constexpr (kWide) {
      unpack(old[i], values);
    } else {
#pragma unroll
      for (int c = 0; c < 8; ++c) {
        if (step + c < w.left) values[c] = widen(to[c]);
      }
    }
    if (w.bias == nullptr) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        values[j] = fmaf(sums[j][2 * i], undo[i], values[j]);
        values[4 + j] = fmaf(sums[j][2 * i + 1], undo[i], values[4 + j]);
      }
    } else {
      // The delta is whole before it is added.
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float first = step + j < w.left ? w.bias[step + j] : 0.0f;
        const float second = step + 4 + j < w.left ? w.bias[step + 4 + j] : 0.0f;
        values[j] += fmaf(first, w.strength[i], sums[j][2 * i] * undo[i]);
        values[4 + j] += fmaf(second, w.strength[i], sums[j][2 * i + 1] * undo[i]);
      }
    }
    if constexpr (kWide) {
      store_eight(to, values);
    } else {
#pragma unroll
      for (int c = 0; c < 8; ++c) {
        if (step + c < w.left) to[c] = narrow<TY>(values[c]);
      }
    }
  }
}

// What a lane asks for of a tile: rows of B at b, y at both rows. Beyond what the slice has, things
// stay what they are: the columns that they make are not stored. Ranks past the rank are never
// loaded, and so stay zero.
template <bool kTwo, class TY, class TB, int kSteps>
__device__ __forceinline__ void load_tile(const TB* b, std::int64_t stride, bool there, int rank,
                                          const TY* y0, bool y0_there, const TY* y1, bool y1_there,
                                          Operands<TY, TB, kSteps>& o) {
  const int t = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int j = 0; j < 4; ++j) load_row<true, TB, kSteps>(b + j * stride, there, rank, t, j, o.b);
#pragma unroll
  for (int part = 0; part < static_cast<int>(sizeof(TY)) / 2; ++part) {
    load_into_if<true>(o.y[0].part[part], y0_there, y0 + part * (16 / sizeof(TY)));
    if (kTwo) load_into_if<true>(o.y[1].part[part], y1_there, y1 + part * (16 / sizeof(TY)));
  }
}

template <class TY>
__device__ __forceinline__ void add_row(TY* to, const float (&sums)[4][4], int row, float undo,
                                        const Eight<TY>& old) {
  float values[8];
  unpack(old, values);
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    values[j] = fmaf(sums[j][2 * row], undo, values[j]);
    values[4 + j] = fmaf(sums[j][2 * row + 1], undo, values[4 + j]);
  }
  store_eight(to, values);
}

// Aligned rows, no bias, the whole rank at once. kTwo: there may be more than eight rows.
template <bool kTwo, class TY, class TB, int kSteps>
__device__ __forceinline__ void expand_tiles(const DecodeExpandParams& p, const Work<TY, TB>& w,
                                             Shared& shared) {
  constexpr int kDepth = kSteps <= 2 ? kAhead : 1;
  Operands<TY, TB, kSteps> ahead[kDepth];
  const TB* b = w.b;
  TY *y0 = w.y[0], *y1 = w.y[1];
  const std::int64_t b_step = kTileStep * w.b_stride;
  // Tiles of which the lane's rows of B exist, and its columns of y in each of its two rows.
  const int b_tiles = min(w.tiles, (w.b_left + kTileStep - 1) / kTileStep);
  const int y_tiles = min(w.tiles, (w.left + kTileStep - 1) / kTileStep);
  const int y0_tiles = y0 != nullptr ? y_tiles : 0, y1_tiles = kTwo && y1 != nullptr ? y_tiles : 0;
#pragma unroll
  for (int i = 0; i < kDepth; ++i) {
    clear(ahead[i]);
    load_tile<kTwo>(b, w.b_stride, i < b_tiles, w.rank, y0 + i * kTileStep, i < y0_tiles,
                    y1 + i * kTileStep, i < y1_tiles, ahead[i]);
    b += b_step;
  }
  wait_for_previous();
  if (p.releases != 0) release_next();
  const bool keep = p.h_out != nullptr && w.first_chunk;
  float4 rows[2][kSteps];
  if (!kTwo && w.count == 1 && p.pinned == 0) {
    if (p.h.splits <= 16) {
      sum_one_row<TB, kSteps>(p, shared.rows[0], w.h_column, w.rank, keep, rows[0]);
    } else {
      sum_one_row_of_many<TB, kSteps>(p, shared.rows[0], w.h_column, w.rank, keep, shared.groups,
                                      rows[0]);
    }
  } else {
    sum_partials<16 * kSteps>(p, shared.rows, w.count, w.h_column, w.rank, 0, shared.h,
                              shared.groups, keep);
    read_rows<TB, kSteps>(shared.h, rows);
  }
  if constexpr (!kTwo) {
#pragma unroll
    for (int s = 0; s < kSteps; ++s) rows[1][s] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  }
  float undo[2];
  scale_rows<TB, kSteps>(rows, w.strength, undo);
  // Sixteen-bit weights of several steps: warp s makes step s for all.
  constexpr bool kShares = kSteps > 1 && sizeof(TB) == 2;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  Left<TB> left[kShares ? 1 : kSteps];
  if constexpr (kShares) {
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      if (static_cast<int>(threadIdx.x) / 32 != s) continue;
      const Left<TB> own = make_left<TB>(rows[0][s], rows[1][s]);
#pragma unroll
      for (int i = 0; i < kPartsOf<TB>; ++i) shared.left[s][i][lane] = own.part[i][0];
    }
    __syncthreads();
  } else {
#pragma unroll
    for (int s = 0; s < kSteps; ++s) left[s] = make_left<TB>(rows[0][s], rows[1][s]);
  }
#pragma unroll 1
  for (int tile = 0; tile < w.tiles; tile += kDepth) {
#pragma unroll
    for (int i = 0; i < kDepth; ++i) {
      if (kDepth > 1 && tile + i >= w.tiles) break;
      float sums[4][4] = {};
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        if constexpr (kShares) {
#pragma unroll
          for (int part = 0; part < kPartsOf<TB>; ++part)
            left[0].part[part][0] = shared.left[s][part][lane];
        }
        multiply_step<TB>(sums, left[kShares ? 0 : s], ahead[i].b[s]);
      }
      if (tile + i < y0_tiles) add_row(y0 + i * kTileStep, sums, 0, undo[0], ahead[i].y[0]);
      if (kTwo && tile + i < y1_tiles) add_row(y1 + i * kTileStep, sums, 1, undo[1], ahead[i].y[1]);
      const int next = tile + i + kDepth;
      load_tile<kTwo>(b, w.b_stride, next < b_tiles, w.rank, y0 + (i + kDepth) * kTileStep,
                      next < y0_tiles, y1 + (i + kDepth) * kTileStep, next < y1_tiles, ahead[i]);
      b += b_step;
    }
    y0 += kDepth * kTileStep;
    y1 += kDepth * kTileStep;
  }
}

// Any alignment, any rank, a bias. Ranks over those of kSteps come group by group; the sums of all
// tiles of a warp cannot be kept, so tiles are outermost and h is summed again for each. Bits are
// those of expand_tiles.
template <bool kWide, int kSteps, class TY, class TB>
__device__ __forceinline__ void expand_in_groups(const DecodeExpandParams& p, const Work<TY, TB>& w,
                                                 Shared& shared) {
  constexpr int kRanks = 16 * kSteps;
  wait_for_previous();
  if (p.releases != 0) release_next();
#pragma unroll 1
  for (int tile = 0; tile < p.tiles_per_warp; ++tile) {
    float total[4][4] = {};
    float undo[2] = {1.0f, 1.0f};
    Operands<TY, TB, kSteps> o;
    clear(o);
    if (w.rank == 0) load_operands<kWide>(w, tile, 0, true, o);
#pragma unroll 1
    for (int first = 0; first < w.rank; first += kRanks) {
      if (first > 0) clear(o);
      load_operands<kWide>(w, tile, first, true, o);
      __syncthreads();
      const bool keep = p.h_out != nullptr && w.first_chunk && tile == 0;
      sum_partials<kRanks>(p, shared.rows, w.count, w.h_column, w.rank, first, shared.h,
                           shared.groups, keep);
      float4 rows[2][kSteps];
      read_rows<TB, kSteps>(shared.h, rows);
      scale_rows<TB, kSteps>(rows, w.strength, undo);
      float sums[4][4] = {};
#pragma unroll
      for (int s = 0; s < kSteps; ++s)
        multiply_step<TB>(sums, make_left<TB>(rows[0][s], rows[1][s]), o.b[s]);
      if (w.rank <= kRanks) {
#pragma unroll
        for (int i = 0; i < 16; ++i) total[i / 4][i % 4] = sums[i / 4][i % 4];
      } else {
#pragma unroll
        for (int i = 0; i < 16; ++i) {
          total[i / 4][i % 4] = fmaf(sums[i / 4][i % 4], undo[i % 4 / 2], total[i / 4][i % 4]);
        }
      }
    }
    if (w.rank > kRanks) undo[0] = undo[1] = 1.0f;
    if (tile < w.tiles) add_to_y<kWide>(w, tile, total, undo, o.y);
  }
}

// More ranks than those of a group, all of whose h stands in shared memory as operands; B comes a
// group at a time, one ahead. Bits are those of expand_in_groups. kWide: aligned rows, no bias.
template <bool kWide, class TY, class TB>
__device__ __forceinline__ void expand_many_ranks(const DecodeExpandParams& p,
                                                  const Work<TY, TB>& w, Shared& shared,
                                                  ManyShared& many) {
  constexpr int kSteps = kRankGroup / 16;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int g = lane / 4;
  const int groups = (w.rank + kRankGroup - 1) / kRankGroup;
  const bool ragged = w.rank % kRankGroup != 0;
  Operands<TY, TB, kSteps> ahead;
  clear(ahead);
  load_operands<kWide>(w, 0, 0, true, ahead);
  wait_for_previous();
  const bool keep = p.h_out != nullptr && w.first_chunk;
  const bool alone = w.count == 1 && p.pinned == 0;
#pragma unroll 1
  for (int group = 0; group < groups; ++group) {
    if (alone) {
      sum_partials<kRankGroup, 1>(p, shared.rows, w.count, w.h_column, w.rank, group * kRankGroup,
                                  shared.h, shared.groups, keep);
    } else {
      sum_partials<kRankGroup>(p, shared.rows, w.count, w.h_column, w.rank, group * kRankGroup,
                               shared.h, shared.groups, keep);
    }
    if (warp < kSteps) {
      float4 rows[2][kSteps];
      read_rows<TB, kSteps>(shared.h, rows);
      if (alone) {
#pragma unroll
        for (int s = 0; s < kSteps; ++s) {
          if (g > 0) rows[0][s] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
          rows[1][s] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        }
      }
      float undo[2];
      scale_rows<TB, kSteps>(rows, w.strength, undo);
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        if (warp != s) continue;
        const Left<TB> own = make_left<TB>(rows[0][s], rows[1][s]);
#pragma unroll
        for (int i = 0; i < kPartsOf<TB>; ++i)
          many.left[group * kSteps + s][i][lane] = own.part[i][0];
      }
      if (warp == 0 && lane % 4 == 0) {
        many.undo[group][g] = undo[0];
        many.undo[group][g + 8] = undo[1];
      }
    }
    __syncthreads();
  }
#pragma unroll 1
  for (int tile = 0; tile < w.tiles; ++tile) {
    float total[4][4] = {};
#pragma unroll 1
    for (int group = 0; group < groups; ++group) {
      float sums[4][4] = {};
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        Left<TB> left;
#pragma unroll
        for (int i = 0; i < kPartsOf<TB>; ++i)
          left.part[i][0] = many.left[group * kSteps + s][i][lane];
        multiply_step<TB>(sums, left, ahead.b[s]);
      }
      const float undo[2] = {many.undo[group][g], many.undo[group][g + 8]};
#pragma unroll
      for (int i = 0; i < 16; ++i)
        total[i / 4][i % 4] = fmaf(sums[i / 4][i % 4], undo[i % 4 / 2], total[i / 4][i % 4]);
      const bool ends = group + 1 == groups;
      if (ends) {
        const float nothing[2] = {1.0f, 1.0f};
        add_to_y<kWide>(w, tile, total, nothing, ahead.y);
      }
      // Of a last group that is not whole the other ranks are zero.
      if (ragged) clear_b(ahead);
      load_operands<kWide>(w, ends ? tile + 1 : tile, ends ? 0 : (group + 1) * kRankGroup, ends,
                           ahead);
    }
  }
}

// The same called, where it would stand in the way of a kernel that is long already. w is a copy,
// as what is passed by address stands in memory.
template <int kSteps, class TY, class TB>
__device__ __noinline__ void call_expand_in_groups(const DecodeExpandParams& p,
                                                   const Work<TY, TB>& w, Shared& shared) {
  expand_in_groups<false, kSteps, TY, TB>(p, w, shared);
}
template <class TY, class TB>
__device__ __noinline__ void call_expand_many_ranks(const DecodeExpandParams& p,
                                                    const Work<TY, TB>& w, Shared& shared,
                                                    ManyShared& many) {
  expand_many_ranks<false, TY, TB>(p, w, shared, many);
}

}  // namespace

}  // namespace cuda
RANKFOLD_NAMESPACE_END
