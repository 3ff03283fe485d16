// The tiles of decode_expand_ring.cu, included there alone: y += f (h B^T + bias), 32 columns at a
// time. A warp has a ring of its own in shared memory, into which B and y are copied some tiles
// ahead.
#pragma once

#include "decode_operands.cuh"
#include "decode_ring_copies.cuh"
#include "decode_ring_hidden.cuh"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

namespace {

namespace ring {

// Sums c[0], c[1] (row g) or c[2], c[3] (row g + 8) of product j stand at columns 2j, 2j + 1 of the
// lane's eight. y += undo times the sums + strength times the bias, in float32, one rounding.
template <class TY, class TB>
__device__ __forceinline__ void add_to_y(const Work<TY, TB>& w, int tile, bool wide,
                                         const float (&sums)[4][4], const float (&undo)[2],
                                         std::uint32_t old) {
  constexpr int kParts = static_cast<int>(sizeof(TY)) / 2;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int step = tile * kTileStep, left = w.left - step - 8 * (lane % 4);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (i == 1 && w.count <= 8) break;
    if (w.y[i] == nullptr || left <= 0) continue;
    Eight<TY> bits;
#pragma unroll
    for (int part = 0; part < kParts; ++part)
      bits.part[part] = read_shared(old + (i * kParts + part) * 512 + lane * 16);
    float values[8];
    unpack(bits, values);
    if (wide || w.bias == nullptr) {
#pragma unroll
      for (int c = 0; c < 8; ++c) values[c] = fmaf(sums[c / 2][2 * i + c % 2], undo[i], values[c]);
    } else {
      // The delta is whole before it is added.
#pragma unroll
      for (int c = 0; c < 8; ++c) {
        const float bias = c < left ? w.bias[step + c] : 0.0f;
        values[c] += fmaf(bias, w.strength[i], sums[c / 2][2 * i + c % 2] * undo[i]);
      }
    }
    TY* const to = w.y[i] + step;
    if (wide) {
      store_eight(to, values);
    } else {
#pragma unroll
      for (int c = 0; c < 8; ++c) {
        if (c < left) to[c] = narrow<TY>(values[c]);
      }
    }
  }
}

template <class TY>
__device__ __forceinline__ void add_row(TY* to, const float (&sums)[4][4], int row, float undo,
                                        std::uint32_t old) {
  constexpr int kParts = static_cast<int>(sizeof(TY)) / 2;
  Eight<TY> bits;
#pragma unroll
  for (int part = 0; part < kParts; ++part) bits.part[part] = read_shared(old + part * 512);
  float values[8];
  unpack(bits, values);
#pragma unroll
  for (int c = 0; c < 8; ++c) values[c] = fmaf(sums[c / 2][2 * row + c % 2], undo, values[c]);
  store_eight(to, values);
}

// Up to 16 ranks of 2 bytes; rows of B and y are aligned and end with whole copies, no bias. What
// is behind the slice's end is not copied: the columns that it makes are not stored.
template <class TY, class TB>
__device__ __forceinline__ void expand_narrow(const DecodeExpandParams& p, const Work<TY, TB>& w,
                                              Shared& shared, std::uint32_t ring) {
  using R = Ring<TY, TB, true>;
  constexpr int kStages = R::kStages, kFirst = kStages < 2 ? kStages : 2;
  constexpr int kYParts = R::kYParts, kYRow = kYParts * 512;
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
  const std::uint32_t y_ring = ring + kStages * R::kUnitBytes + lane * 16;
  // Up to eight ranks are one piece of a row, and the other stays zero.
  const bool one = w.rank <= 8;
  const int row = one ? lane : lane / 2, piece = one ? 0 : lane % 2;
  const std::uint32_t to = ring + (row ^ (row >> 3 & 1) << 1) * R::kRowBytes + piece * 16;
  const TB* b = w.b + row * w.b_stride + piece * 8;
  const std::int64_t b_step = kTileStep * w.b_stride, b_half = 16 * w.b_stride;
  TY *y0 = w.y[0], *y1 = w.y[1];
  // Tiles of which the lane's rows of B exist, and its columns of y in each of its two rows.
  const auto tiles_of = [&](int first) {
    return min(w.tiles, (w.left - first + kTileStep - 1) / kTileStep);
  };
  const int b_tiles = tiles_of(row), other_tiles = one ? 0 : tiles_of(row + 16);
  const int y_tiles = tiles_of(8 * t);
  const int y0_tiles = y0 != nullptr ? y_tiles : 0, y1_tiles = y1 != nullptr ? y_tiles : 0;
  const auto copy = [&](int tile, int stage, int ahead) {
    const std::uint32_t b_to = to + stage * R::kUnitBytes, y_to = y_ring + stage * R::kYBytes;
    copy_async_if(b_to, b, tile < b_tiles);
    copy_async_if(b_to + 16 * R::kRowBytes, b + b_half, tile < other_tiles);
    b += b_step;
#pragma unroll
    for (int part = 0; part < kYParts; ++part) {
      const int offset = ahead * kTileStep + part * (16 / static_cast<int>(sizeof(TY)));
      copy_async_if(y_to + part * 512, y0 + offset, tile < y0_tiles);
      copy_async_if(y_to + kYRow + part * 512, y1 + offset, tile < y1_tiles);
    }
    commit_copies();
  };
#pragma unroll
  for (int i = 0; i < kFirst; ++i) copy(i, i, i);
  if (one) {
#pragma unroll
    for (int i = 0; i < kStages; ++i)
      write_shared(to + i * R::kUnitBytes + 16, make_uint4(0, 0, 0, 0));
  }
  wait_for_previous();
  if (p.releases != 0) release_next();
  float undo[2];
  // What else is asked for would keep h waiting.
  const Left<TB> left = narrow_left<TB>(p, w.count, w.h_column, w.rank, w.strength,
                                        p.h_out != nullptr && w.first_chunk, shared, undo, [&] {
#pragma unroll
                                          for (int i = kFirst; i < kStages; ++i) copy(i, i, i);
                                        });
  const int turn = g / 2 % 2 * 2;
  const std::uint32_t places[2] = {ring + (g / 2 * 8 + g % 2 + turn) * R::kRowBytes + t * 8,
                                   ring + (g / 2 * 8 + g % 2 + (2 ^ turn)) * R::kRowBytes + t * 8};
  int stage = 0;
#pragma unroll 1
  for (int tile = 0; tile < w.tiles; ++tile) {
    wait_for_copies<kStages - 1>();
    __syncwarp();
    Four<TB> rows[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint2 two =
          read_shared_8(places[j % 2] + j / 2 * 4 * R::kRowBytes + stage * R::kUnitBytes);
      rows[j].words[0] = two.x;
      rows[j].words[1] = two.y;
    }
    float sums[4][4] = {};
    multiply_step<TB>(sums, left, rows);
    const std::uint32_t y = y_ring + stage * R::kYBytes;
    if (tile < y0_tiles) add_row(y0, sums, 0, undo[0], y);
    if (tile < y1_tiles) add_row(y1, sums, 1, undo[1], y + kYRow);
    __syncwarp();
    copy(tile + kStages, stage, kStages);
    y0 += kTileStep;
    y1 += kTileStep;
    stage = stage + 1 < kStages ? stage + 1 : 0;
  }
  wait_for_copies<0>();
}

// The same of any rows, with a bias.
template <class TY, class TB>
__device__ __forceinline__ void expand_narrow_slowly(const DecodeExpandParams& p,
                                                     const Work<TY, TB>& w, Shared& shared,
                                                     std::uint32_t ring) {
  using R = Ring<TY, TB, true>;
  constexpr int kStages = R::kStages;
  const std::uint32_t y_ring = ring + kStages * R::kUnitBytes;
#pragma unroll 1
  for (int i = 0; i < kStages; ++i) {
    if (i < w.tiles) {
      copy_b<TY, TB, true>(w, i, 0, false, ring + i * R::kUnitBytes);
      copy_y(w, i, false, y_ring + i * R::kYBytes);
    }
    commit_copies();
  }
  wait_for_previous();
  if (p.releases != 0) release_next();
  float undo[2];
  const Left<TB> left = narrow_left<TB>(p, w.count, w.h_column, w.rank, w.strength,
                                        p.h_out != nullptr && w.first_chunk, shared, undo, [] {});
  int stage = 0;
#pragma unroll 1
  for (int tile = 0; tile < w.tiles; ++tile) {
    wait_for_copies<kStages - 1>();
    __syncwarp();
    const std::uint32_t b = ring + stage * R::kUnitBytes, y = y_ring + stage * R::kYBytes;
    Four<TB> rows[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint2 two = read_shared_8(b + b_place<TY, TB, true>(j));
      rows[j].words[0] = two.x;
      rows[j].words[1] = two.y;
    }
    float sums[4][4] = {};
    multiply_step<TB>(sums, left, rows);
    add_to_y(w, tile, false, sums, undo, y);
    __syncwarp();
    if (tile + kStages < w.tiles) {
      copy_b<TY, TB, true>(w, tile + kStages, 0, false, b);
      copy_y(w, tile + kStages, false, y);
    }
    commit_copies();
    stage = stage + 1 < kStages ? stage + 1 : 0;
  }
  wait_for_copies<0>();
}

// Any rank: unit by unit. Ranks over kSection<TB> come section by section, h summed anew for each.
template <bool kWide, class TY, class TB>
__device__ __forceinline__ void expand_wide(const DecodeExpandParams& p, const Work<TY, TB>& w,
                                            Shared& shared, std::uint32_t ring, uint4* left) {
  using R = Ring<TY, TB, false>;
  constexpr int kStages = R::kStages, kSteps = R::kRanks / 16;
  constexpr int kWords = static_cast<int>(sizeof(Left<TB>)) / 16;
  constexpr int kUnitsOfGroup = kRankGroup / R::kRanks;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int units = (w.rank + R::kRanks - 1) / R::kRanks;
  const std::uint32_t y_ring = ring + kStages * R::kUnitBytes;
  const bool sections = w.rank > kSection<TB>;
  int next_tile = 0, next_unit = 0, next_y = 0;
  const auto copy_next = [&](std::uint32_t to) {
    if (next_tile < w.tiles) {
      copy_b<TY, TB, false>(w, next_tile, next_unit, kWide, to);
      if (++next_unit == units) {
        copy_y(w, next_tile, kWide, y_ring + next_y * R::kYBytes);
        next_y = next_y + 1 < kStages ? next_y + 1 : 0;
        next_unit = 0;
        ++next_tile;
      }
    }
    commit_copies();
  };
#pragma unroll 1
  for (int i = 0; i < kStages; ++i) copy_next(ring + i * R::kUnitBytes);
  wait_for_previous();
  if (p.releases != 0) release_next();
  const bool keep = p.h_out != nullptr && w.first_chunk;
  if (!sections) {
    wide_left<TB>(p, w.count, w.h_column, w.rank, 0, w.strength, keep, shared, left);
  }
  // All warps make the same tiles where h is summed by all of them in between.
  const int tiles = sections ? p.tiles_per_warp : w.tiles;
  int stage = 0, y_stage = 0;
#pragma unroll 1
  for (int tile = 0; tile < tiles; ++tile) {
    float total[4][4] = {}, sums[4][4] = {};
    float last[2] = {1.0f, 1.0f};  // what is left to scale back: of up to 64 ranks all
    int own = -1;                  // unit of the section
#pragma unroll 1
    for (int unit = 0; unit < units; ++unit) {
      own = (own + 1) * R::kRanks < kSection<TB> ? own + 1 : 0;
      if (sections && own == 0) {
        __syncthreads();
        wide_left<TB>(p, w.count, w.h_column, w.rank, unit * R::kRanks, w.strength,
                      keep && tile == 0, shared, left);
      }
      wait_for_copies<kStages - 1>();
      __syncwarp();
      const std::uint32_t b = ring + stage * R::kUnitBytes;
      uint4 bits[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) bits[j] = read_shared(b + b_place<TY, TB, false>(j));
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        Left<TB> h;
#pragma unroll
        for (int i = 0; i < kWords; ++i) {
          reinterpret_cast<uint4*>(&h)[i] = left[((own * kSteps + s) * kWords + i) * 32 + lane];
        }
        Four<TB> rows[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const std::uint32_t words[4] = {bits[j].x, bits[j].y, bits[j].z, bits[j].w};
#pragma unroll
          for (int i = 0; i < static_cast<int>(sizeof(TB)); ++i)
            rows[j].words[i] = words[s * static_cast<int>(sizeof(TB)) + i];
        }
        multiply_step<TB>(sums, h, rows);
      }
      if (unit + 1 == units || (unit + 1) % kUnitsOfGroup == 0) {
        // Sums of 64 ranks are added up by instructions that round, and f16 is scaled back.
        float undo[2] = {1.0f, 1.0f};
        if constexpr (std::is_same_v<TB, __half>) {
          const float* const of_group = shared.undo[own / kUnitsOfGroup];
          undo[0] = of_group[lane / 4];
          undo[1] = of_group[lane / 4 + 8];
        }
        if (units <= kUnitsOfGroup) {
#pragma unroll
          for (int i = 0; i < 16; ++i) total[i / 4][i % 4] = sums[i / 4][i % 4];
          last[0] = undo[0];
          last[1] = undo[1];
        } else {
#pragma unroll
          for (int i = 0; i < 16; ++i)
            total[i / 4][i % 4] = fmaf(sums[i / 4][i % 4], undo[i % 4 / 2], total[i / 4][i % 4]);
        }
#pragma unroll
        for (int i = 0; i < 16; ++i) sums[i / 4][i % 4] = 0.0f;
      }
      if (unit + 1 == units && tile < w.tiles) {
        add_to_y(w, tile, kWide, total, last, y_ring + y_stage * R::kYBytes);
        y_stage = y_stage + 1 < kStages ? y_stage + 1 : 0;
      }
      __syncwarp();
      copy_next(b);
      stage = stage + 1 < kStages ? stage + 1 : 0;
    }
  }
  wait_for_copies<0>();
}

}  // namespace ring

}  // namespace

}  // namespace cuda
RANKFOLD_NAMESPACE_END
