// What decode_expand_ring.cu copies into its rings, included there alone: units of B and tiles of
// y.
#pragma once

#include "decode_copies.cuh"
#include "decode_ring_hidden.cuh"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

namespace {

namespace ring {

constexpr int kTileStep = kWarps * kColumns;  // from one tile of a warp to its next

// What a lane knows of its work before h is there.
template <class TY, class TB>
struct Work {
  TY* y[2];  ///< rows g and g + 8 at the lane's eight columns of the warp's first tile; null past
             ///< the count
  const TB* b;  ///< row 0 of the warp's first tile
  std::int64_t b_stride;
  const float* bias;  ///< at the lane's columns of the warp's first tile, or null
  int left;           ///< columns of the slice from the warp's first tile on
  int tiles;          ///< of the warp
  int rank;
  int count;  ///< rows of the block
  int h_column;
  int b_unit, y_unit;  ///< see copy_unit
  bool first_chunk;
  float strength[2];  ///< f of the two rows
};

// A unit is what a tile takes of B at a time. kNarrow: up to 16 ranks of 2 bytes; else 64 bytes of
// a row of B, which are 32 ranks, or 16 of float32. A row of 16 ranks stands at an even place that
// is turned by two in every other eight rows, so that a warp reads without conflicts.
template <class TY, class TB, bool kNarrow>
struct Ring {
  static constexpr int kRanks = kNarrow || sizeof(TB) == 4 ? 16 : 32;
  static constexpr int kRowBytes = kRanks * static_cast<int>(sizeof(TB));
  static constexpr int kPieces = kRowBytes / 16;  // of a row
  static constexpr int kElements = 16 / static_cast<int>(sizeof(TB));
  static constexpr int kRowsOfCopy = 32 / kPieces;  // that the lanes copy at once
  static constexpr int kUnitBytes = kColumns * kRowBytes;
  static constexpr int kYParts = static_cast<int>(sizeof(TY)) / 2;
  static constexpr int kYBytes = 2 * kYParts * 512;
  static constexpr int kStages = 72 * 1024 / kWarps / (kUnitBytes + kYBytes);
  static constexpr int kBytes = kStages * (kUnitBytes + kYBytes);  // of a warp
};

// Unit `unit` of a tile of B into shared memory. Ranks and columns that do not exist become zero.
template <class TY, class TB, bool kNarrow>
__device__ __forceinline__ void copy_b(const Work<TY, TB>& w, int tile, int unit, bool wide,
                                       std::uint32_t to) {
  using R = Ring<TY, TB, kNarrow>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int row = lane / R::kPieces, piece = lane % R::kPieces;
  const int place = kNarrow ? row ^ (row >> 3 & 1) << 1 : row;
  to += place * R::kRowBytes + piece * 16;
  const int first = unit * R::kRanks + piece * R::kElements;
  const int ranks = min(max(w.rank - first, 0), R::kElements);
  const int column = tile * kTileStep + row;
  const TB* from = w.b + column * w.b_stride + first;
#pragma unroll
  for (int i = 0; i < kColumns / R::kRowsOfCopy; ++i) {
    const int n = column + i * R::kRowsOfCopy < w.left ? ranks : 0;
    const std::uint32_t at = to + i * R::kRowsOfCopy * R::kRowBytes;
    if (wide) {
      copy_async_or_clear(at, from, n > 0);
    } else {
      copy_16(at, from, n * static_cast<int>(sizeof(TB)), w.b_unit);
    }
    from += R::kRowsOfCopy * w.b_stride;
  }
}

// y of a tile, each lane what it adds to.
template <class TY, class TB>
__device__ __forceinline__ void copy_y(const Work<TY, TB>& w, int tile, bool wide,
                                       std::uint32_t to) {
  constexpr int kElements = 16 / static_cast<int>(sizeof(TY));
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int step = tile * kTileStep, left = w.left - step - 8 * (lane % 4);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (i == 1 && w.count <= 8) break;
#pragma unroll
    for (int part = 0; part < 8 / kElements; ++part) {
      const int n = w.y[i] != nullptr ? min(max(left - part * kElements, 0), kElements) : 0;
      const TY* const from = w.y[i] + step + part * kElements;
      const std::uint32_t at = to + (i * (8 / kElements) + part) * 512 + lane * 16;
      if (n <= 0) continue;
      if (wide) {
        copy_async_or_clear(at, from, true);
      } else {
        copy_16(at, from, n * static_cast<int>(sizeof(TY)), w.y_unit);
      }
    }
  }
}

// The lane's part of a unit of B, as the right operands of a step: rows 8 (g / 2) + 2 j + g % 2 of
// the tile, so that it ends with eight consecutive columns.
template <class TY, class TB, bool kNarrow>
__device__ __forceinline__ std::uint32_t b_place(int j) {
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
  const int row = g / 2 * 8 + ((2 * j) ^ (kNarrow ? g / 2 % 2 * 2 : 0)) + g % 2;
  return row * Ring<TY, TB, kNarrow>::kRowBytes + t * (kNarrow ? 8 : 16);
}

}  // namespace ring

}  // namespace

}  // namespace cuda
RANKFOLD_NAMESPACE_END
