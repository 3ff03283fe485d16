// The expand of the fused experts' kernel, and what its parts share.
#pragma once

#include "experts_parts.cuh"
#include "experts_rows.cuh"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {
namespace experts {

inline constexpr int kHiddenStride =
    20;                              // floats of a token's 16 sums: no two lanes meet in a bank
inline constexpr int kColumns = 64;  // of y that a warp has at a time

/// What the parts of a block share.
struct Block {
  const SliceOfBlock* slices;
  int first_slice, num_slices, rank_tiles;
  float* partial;    // [warps][tiles of a pass][rows][kHiddenStride]
  uint4* hidden;     // [tiles][rows][4]
  uint2* rest;       // [tiles][rows][4]
  float* strengths;  // [slices][rows]
  const float* row_weights;
  const float* token_weights;
  int count;  // rows
};

/// 64 columns of a slice; a warp takes every kWarps-th of each slice that has a delta.
template <int kWarps>
struct Items {
  const Block& block;
  int slice, column;

  __device__ __forceinline__ Items(const Block& of) : block(of), slice(0), column(first()) {
    find();
  }
  static __device__ __forceinline__ int first() {
    return static_cast<int>(threadIdx.x) / 32 * kColumns;
  }
  __device__ __forceinline__ bool ended() const { return slice >= block.num_slices; }
  __device__ __forceinline__ void find() {
    while (!ended() && (block.slices[slice].rank == 0 || column >= block.slices[slice].out)) {
      ++slice;
      column = first();
    }
  }
  __device__ __forceinline__ void advance() {
    column += kWarps * kColumns;
    find();
  }
};

/// The expand of a block: a warp has 64 columns at a time, and of these a token tile.
template <class T, class TY, int kTokenTiles, int kWarps, int kAhead, int kBSlots, bool kOneTile,
          bool kWide>
struct Expand {
  static constexpr int kRows = kTokenTiles * 8;
  static constexpr int kStep =
      kTokenTiles % 2 == 0 && kAhead >= 4 && kOneTile ? 2 : 1;  // tiles at a time
  static constexpr unsigned kBBytes = 2048, kHalfY = sizeof(TY) * 256, kYBytes = 2 * kHalfY;
  const Block& block;
  int token_tiles, g, t;
  bool overwrites;
  unsigned b_slots, y_slots, y_rows;
  // What is asked for next, and where it goes.
  Items<kWarps> asked;
  int asked_tile, asked_left;
  unsigned asked_b, asked_y;
  std::int64_t asked_offset;  // in a row of y

  __device__ __forceinline__ Expand(const Block& of, const void* fifo_of_warp,
                                    const void* rows_of_y, bool over)
      : block(of), overwrites(over), asked(of) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    g = lane / 4, t = lane % 4;
    token_tiles = kTokenTiles == 1 ? 1 : (block.count + 7) / 8;
    b_slots = shared_address(fifo_of_warp) + lane * 8;
    y_slots = shared_address(fifo_of_warp) + kBSlots * kBBytes + lane * 16;
    y_rows = shared_address(rows_of_y) + 2 * t * 8;
    asked_tile = 0;
    asked_b = asked_y = 0;
    see_item(asked, asked_left, asked_offset);
  }
  __device__ __forceinline__ void see_item(const Items<kWarps>& item, int& left,
                                           std::int64_t& offset) const {
    if (item.ended()) return;
    const SliceOfBlock& slice = block.slices[item.slice];
    left = slice.out - item.column - g * 8;
    offset = slice.y_column + item.column + g * 8;
  }
  __device__ __forceinline__ static unsigned after(unsigned slot, unsigned bytes, int slots) {
    return slot + bytes == slots * bytes ? 0 : slot + bytes;
  }
  /// One tile more on its way, one group of copies.
  __device__ __forceinline__ void ask() {
    if (!asked.ended()) {
      if (asked_tile == 0) {
        if constexpr (kOneTile)
          ask_b<kWide, T>(b_slots + asked_b, block.slices[asked.slice], asked.column, 0);
        asked_b = after(asked_b, kBBytes, kBSlots);
      }
      if (!overwrites) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const TY* const from =
              take_pointer<const TY>(y_rows + (asked_tile * 8 + i) * 8) + asked_offset;
          Eight<TY>::template ask<kWide>(y_slots + asked_y + i * kHalfY, from,
                                         asked_tile * 8 + 2 * t + i < block.count ? asked_left : 0);
        }
      }
      asked_y = after(asked_y, kYBytes, kAhead);
      if (++asked_tile == token_tiles) {
        asked_tile = 0;
        asked.advance();
        see_item(asked, asked_left, asked_offset);
      }
    }
    commit_copies();
  }
  __device__ __forceinline__ void begin() {
#pragma unroll 1
    for (int i = 0; i < kAhead; ++i) ask();
  }
  __device__ __forceinline__ void run() {
    unsigned b_at = 0, y_place = 0;
    const unsigned hidden = shared_address(block.hidden) + (g * 4 + t) * 16;
    const unsigned rest = shared_address(block.rest) + (g * 4 + t) * 8;
    const unsigned strengths = shared_address(block.strengths) + 2 * t * 4;
    for (Items<kWarps> item(block); !item.ended(); item.advance()) {
      const SliceOfBlock& slice = block.slices[item.slice];
      const int rank_tiles = kOneTile ? 1 : (slice.rank + 15) / 16;
      int left = 0;
      std::int64_t offset = 0;
      see_item(item, left, offset);
      uint4 b[4];
      // Two tiles at a time, so that their chains of instructions overlap.
#pragma unroll 1
      for (int tile = 0; tile < token_tiles; tile += kStep) {
        wait_copies<kAhead - kStep>();
        if (kOneTile && tile == 0) take_b(b, b_slots + b_at);
        float c[kStep][4][4] = {};
#pragma unroll 1
        for (int rank_tile = 0; rank_tile < rank_tiles; ++rank_tile) {
          if constexpr (!kOneTile) {
            ask_b<kWide, T>(b_slots + b_at, slice, item.column, rank_tile);
            commit_copies();
            wait_copies<0>();
            take_b(b, b_slots + b_at);
          }
          const int at =
              ((kOneTile ? item.slice : item.slice * block.rank_tiles + rank_tile) * kTokenTiles +
               tile) *
              32;
          HiddenParts<T> h[kStep];
#pragma unroll
          for (int u = 0; u < kStep; ++u) {
            h[u].high_low = take_16(hidden + (at + u * 32) * 16);
            if constexpr (!std::is_same_v<T, __half>) h[u].rest = take_8(rest + (at + u * 32) * 8);
          }
#pragma unroll
          for (int j = 0; j < 4; ++j) {
#pragma unroll
            for (int u = 0; u < kStep; ++u) h[u].multiply_into(c[u][j], b[j]);
          }
        }
        Eight<TY> y[kStep][2];
        TY* to[kStep][2];
        uint2 f[kStep];
        unsigned place = y_place;
#pragma unroll
        for (int u = 0; u < kStep; ++u) {
          f[u] = take_8(strengths + (item.slice * kRows + (tile + u) * 8) * 4);
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            y[u][i].take(y_slots + place + i * kHalfY);
            to[u][i] = take_pointer<TY>(y_rows + ((tile + u) * 8 + i) * 8) + offset;
          }
          place = after(place, kYBytes, kAhead);
        }
#pragma unroll
        for (int u = 0; u < kStep; ++u) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const float even[4] = {c[u][0][i], c[u][1][i], c[u][2][i], c[u][3][i]};
            const float odd[4] = {c[u][0][2 + i], c[u][1][2 + i], c[u][2][2 + i], c[u][3][2 + i]};
            y[u][i].add(overwrites, __uint_as_float(i == 0 ? f[u].x : f[u].y), even, odd);
            y[u][i].template store<kWide>(to[u][i],
                                          (tile + u) * 8 + 2 * t + i < block.count ? left : 0);
          }
        }
#pragma unroll 1
        for (int u = 0; u < kStep && tile + u < token_tiles; ++u) {
          ask();
          y_place = after(y_place, kYBytes, kAhead);
        }
      }
      b_at = after(b_at, kBBytes, kBSlots);
    }
  }
};

}  // namespace experts
}  // namespace cuda
RANKFOLD_NAMESPACE_END
