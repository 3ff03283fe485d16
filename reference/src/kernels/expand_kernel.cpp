#include "expand_kernel.hpp"

#include <algorithm>

#include "../plan.hpp"
#include "simd.hpp"
#include "transpose.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace reference {

namespace {

constexpr int kTileRows = 3;
constexpr int kTileVectors = 4;
constexpr std::int64_t kTileColumns = kTileVectors * kLanes;
constexpr std::int64_t kPanelFloats = 4096;  // 16 KB of B, widened for all rows of the block
constexpr std::int64_t kMaxPanelTiles = 8;

// One row: B is read as several streams, each asked for a little ahead of its use. One stream alone
// gets two thirds of the bandwidth.
constexpr std::int64_t kStreams = 4;
constexpr std::int64_t kPrefetchBytes = 1024;

/// Columns of one panel: as many as fit, at least one tile.
std::int64_t panel_columns(std::int64_t rank) noexcept {
  const std::int64_t columns = kPanelFloats / std::max<std::int64_t>(rank, 1);
  return std::clamp<std::int64_t>(columns / kTileColumns, 1, kMaxPanelTiles) * kTileColumns;
}

struct Output {
  std::int64_t columns;  // from the tile's first column to the end of the block
  const float* bias;     // from the tile's first column, or null
  bool overwrite;
  bool plain;  // accumulated, without bias
};

// y + f (sum + bias) of sixteen columns from `first` on, rounded once.
template <class TY>
inline void finish_pair(Pair delta, F8 factor, TY* y, std::int64_t first,
                        const Output& output) noexcept {
  const std::int64_t left = output.columns - first;
  const bool whole = left >= kPairLanes;
  TY* const target = y + first;
  if (output.bias != nullptr) {
    const float* const at = output.bias + first;
    Pair bias = whole ? load_pair(at) : load_pair(at, left);
    if constexpr (kEvenOdd<TY>) bias = split_even_odd(bias);
    delta = {add(delta.first, bias.first), add(delta.second, bias.second)};
  }
  Pair result;
  if (output.overwrite) {
    result = {mul(factor, delta.first), mul(factor, delta.second)};
  } else {
    const Pair old = whole ? load_pair(target) : load_pair(target, left);
    result = {fma(factor, delta.first, old.first), fma(factor, delta.second, old.second)};
  }
  if (whole) {
    store_pair(target, result);
  } else {
    store_pair(target, result, left);
  }
}

// What most pairs are: sixteen whole columns, accumulated into, without bias.
template <class TY>
inline void accumulate_pair(const Pair& sum, F8 factor, TY* y) noexcept {
  const Pair old = load_pair(y);
  store_pair(y, Pair{fma(factor, sum.first, old.first), fma(factor, sum.second, old.second)});
}

// One tile of rows and columns; b is packed [rank][kTileColumns], each 16 columns in the order of
// load_pair(const TY*).
template <class TY, int kRows>
inline void expand_tile(const float* const (&h)[kTileRows], const float (&f)[kTileRows],
                        TY* const (&y)[kTileRows], const float* b, std::int64_t rank,
                        const Output& output) noexcept {
  F8 acc[kRows][kTileVectors];
  for (int m = 0; m < kRows; ++m) {
    for (int v = 0; v < kTileVectors; ++v) acc[m][v] = zero8();
  }
#pragma GCC unroll 4
  for (std::int64_t j = 0; j < rank; ++j) {
    F8 row[kRows];
    for (int m = 0; m < kRows; ++m) row[m] = broadcast8(h[m][j]);
    for (int v = 0; v < kTileVectors; ++v) {
      const F8 weight = load8(b + j * kTileColumns + v * kLanes);
      for (int m = 0; m < kRows; ++m) acc[m][v] = fma(row[m], weight, acc[m][v]);
    }
  }
  if (output.plain && output.columns >= kTileColumns) {
    for (int m = 0; m < kRows; ++m) {
      const F8 factor = broadcast8(f[m]);
      for (int v = 0; v < kTileVectors; v += 2) {
        accumulate_pair(Pair{acc[m][v], acc[m][v + 1]}, factor, y[m] + v * kLanes);
      }
    }
    return;
  }
  for (int v = 0; v < kTileVectors; v += 2) {
    if (v * kLanes >= output.columns) return;
    for (int m = 0; m < kRows; ++m) {
      finish_pair(Pair{acc[m][v], acc[m][v + 1]}, broadcast8(f[m]), y[m], v * kLanes, output);
    }
  }
}

// Where a row is read and written.
struct RowPlace {
  const float* h;
  float f;
  std::int64_t y;  // elements from the slice's column 0 of row 0
};

RowPlace row_place(const ExpandBlock& block, std::int64_t i) noexcept {
  const std::int64_t row = block.rows[i];
  const std::int64_t h_row = block.h_rows != nullptr ? block.h_rows[i] : i;
  float f = block.scaling;
  if (block.row_weights != nullptr) f *= block.row_weights[row];
  if (block.token_weights != nullptr) {
    f *= block.token_weights[block.tokens != nullptr ? block.tokens[i] : row];
  }
  return {block.h + h_row * block.h_stride, f, row * block.y_stride};
}

// Rows of y of one tile, from one column on.
template <class TY>
struct TileRows {
  int num_rows;
  const float* h[kTileRows];
  float f[kTileRows];
  TY* y[kTileRows];
};

template <class TY>
TileRows<TY> tile_rows(const ExpandBlock& block, std::int64_t i, std::int64_t column) noexcept {
  TileRows<TY> tile{};
  tile.num_rows = static_cast<int>(std::clamp<std::int64_t>(block.num_rows - i, 0, kTileRows));
  for (int m = 0; m < tile.num_rows; ++m) {
    const RowPlace place = row_place(block, i + m);
    tile.h[m] = place.h;
    tile.f[m] = place.f;
    tile.y[m] = static_cast<TY*>(block.y) + place.y + column;
  }
  return tile;
}

// `next_b` (next_bytes) is asked for meanwhile, in equal pieces.
template <class TY>
void expand_panel(const ExpandBlock& block, std::int64_t begin, std::int64_t end,
                  const float* panel, const char* next_b, std::int64_t next_bytes) noexcept {
  const bool plain = !block.overwrite && block.bias == nullptr;
  const std::int64_t num_tiles = (block.num_rows + kTileRows - 1) / kTileRows *
                                 ((end - begin + kTileColumns - 1) / kTileColumns);
  const std::int64_t step = round_up((next_bytes + num_tiles - 1) / num_tiles, 64);
  std::int64_t asked = 0;
  TileRows<TY> tile = tile_rows<TY>(block, 0, begin);
  for (std::int64_t i = 0; i < block.num_rows; i += kTileRows) {
    const TileRows<TY> next = tile_rows<TY>(block, i + kTileRows, begin);
    for (std::int64_t c = begin; c < end; c += kTileColumns) {
      for (int m = 0; m < next.num_rows; ++m) {
        prefetch(next.y[m] + (c - begin), kTileColumns * static_cast<std::int64_t>(sizeof(TY)));
      }
      prefetch(next_b + asked, std::min(step, next_bytes - asked));
      asked += std::min(step, next_bytes - asked);
      const Output output{end - c, block.bias != nullptr ? block.bias + c : nullptr,
                          block.overwrite, plain};
      const float* const b = panel + (c - begin) * block.rank;
      switch (tile.num_rows) {
        case 1:
          expand_tile<TY, 1>(tile.h, tile.f, tile.y, b, block.rank, output);
          break;
        case 2:
          expand_tile<TY, 2>(tile.h, tile.f, tile.y, b, block.rank, output);
          break;
        default:
          expand_tile<TY, 3>(tile.h, tile.f, tile.y, b, block.rank, output);
          break;
      }
      for (int m = 0; m < tile.num_rows; ++m) tile.y[m] += kTileColumns;
    }
    tile = next;
  }
}

template <class TY, class TB>
void pack_panel(const ExpandBlock& block, std::int64_t begin, std::int64_t end) noexcept {
  const auto* const b = static_cast<const TB*>(block.b);
  float* tile = block.scratch;
  for (std::int64_t c = begin; c < end; c += kTileColumns, tile += kTileColumns * block.rank) {
    for (std::int64_t v = 0; v < kTileColumns && c + v < end; v += kPairLanes) {
      const std::int64_t columns = std::min<std::int64_t>(kPairLanes, end - c - v);
      const TB* const first = b + (c + v) * block.b_stride;
      // Every second column of sixteen, or eight next to each other.
      const std::int64_t step = kEvenOdd<TY> ? 2 : 1;
      const std::int64_t skip = kEvenOdd<TY> ? 1 : kLanes;
      const std::int64_t count =
          kEvenOdd<TY> ? (columns + 1) / 2 : std::min<std::int64_t>(columns, 8);
      pack_columns(first, step * block.b_stride, count, block.rank, tile + v, kTileColumns);
      pack_columns(first + skip * block.b_stride, step * block.b_stride, columns - count,
                   block.rank, tile + v + kLanes, kTileColumns);
    }
  }
}

// Sixteen columns of y, eight j at a time, as load_pair(const TY*) orders them.
template <class TY, class TB>
inline Pair one_row_pair(const float* h, const TB* b, std::int64_t b_stride, std::int64_t columns,
                         std::int64_t rank) noexcept {
  const char* ahead = reinterpret_cast<const char*>(b) + kPrefetchBytes;
  constexpr std::int64_t kStep = kEvenOdd<TY> ? 2 : 1;
  constexpr std::int64_t kSkip = kEvenOdd<TY> ? 1 : kLanes;
  Pair sum{zero8(), zero8()};
  std::int64_t j = 0;
  if (columns >= kPairLanes) {
    for (; j + 8 <= rank; j += 8) {
      F8 first[8];
      F8 second[8];
      constexpr std::int64_t kBlockBytes = 8 * kPairLanes * static_cast<std::int64_t>(sizeof(TB));
      prefetch(ahead, kBlockBytes);
      ahead += kBlockBytes;
      load_8x8(b + j, kStep * b_stride, first);
      for (int i = 0; i < 8; ++i) sum.first = fma(broadcast8(h[j + i]), first[i], sum.first);
      load_8x8(b + kSkip * b_stride + j, kStep * b_stride, second);
      for (int i = 0; i < 8; ++i) sum.second = fma(broadcast8(h[j + i]), second[i], sum.second);
    }
  }
  const std::int64_t valid = std::min<std::int64_t>(columns, kPairLanes);
  const std::int64_t of_first =
      kEvenOdd<TY> ? (valid + 1) / 2 : std::min<std::int64_t>(valid, kLanes);
  for (; j < rank; ++j) {
    float first[kLanes];
    float second[kLanes];
    pack_any(b + j, kStep * b_stride, of_first, 1, first, kLanes);
    pack_any(b + kSkip * b_stride + j, kStep * b_stride, valid - of_first, 1, second, kLanes);
    sum.first = fma(broadcast8(h[j]), load8(first), sum.first);
    sum.second = fma(broadcast8(h[j]), load8(second), sum.second);
  }
  return sum;
}

// One row: B streams by and is never stored widened.
template <class TY, class TB>
void expand_one_row(const ExpandBlock& block) noexcept {
  const auto* const b = static_cast<const TB*>(block.b);
  const RowPlace place = row_place(block, 0);
  const F8 factor = broadcast8(place.f);
  auto* const y = static_cast<TY*>(block.y) + place.y;
  const std::int64_t stream =
      round_up((block.column_end - block.column_begin + kStreams - 1) / kStreams, kPairLanes);
  for (std::int64_t c = block.column_begin; c < block.column_end; c += stream) {
    prefetch(b + c * block.b_stride, kPrefetchBytes);
  }
  for (std::int64_t at = 0; at < stream; at += kPairLanes) {
    for (std::int64_t s = 0; s < kStreams; ++s) {
      const std::int64_t c = block.column_begin + s * stream + at;
      if (c >= block.column_end) break;
      const Output output{block.column_end - c, block.bias != nullptr ? block.bias + c : nullptr,
                          block.overwrite, false};
      const Pair sum = one_row_pair<TY>(place.h, b + c * block.b_stride, block.b_stride,
                                        output.columns, block.rank);
      finish_pair(sum, factor, y + c, 0, output);
    }
  }
}

}  // namespace

std::int64_t expand_scratch_floats(std::int64_t max_rank) noexcept {
  return std::max(kPanelFloats, max_rank * kTileColumns);
}

void expand_block(const ExpandBlock& block) noexcept {
  if (block.num_rows == 1) {
    with_element(block.y_dtype, [&]<class TY>(const TY*) {
      with_element(block.b_dtype, [&]<class TB>(const TB*) { expand_one_row<TY, TB>(block); });
    });
    return;
  }
  const std::int64_t width = block.num_rows <= kTileRows ? kTileColumns : panel_columns(block.rank);
  for (std::int64_t begin = block.column_begin; begin < block.column_end; begin += width) {
    const std::int64_t end = std::min(begin + width, block.column_end);
    with_element(block.y_dtype, [&]<class TY>(const TY*) {
      with_element(block.b_dtype,
                   [&]<class TB>(const TB*) { pack_panel<TY, TB>(block, begin, end); });
      const std::int64_t b_row = block.b_stride * static_cast<std::int64_t>(size_of(block.b_dtype));
      expand_panel<TY>(block, begin, end, block.scratch,
                       static_cast<const char*>(block.b) + end * b_row,
                       (std::min(end + width, block.column_end) - end) * b_row);
    });
  }
}

}  // namespace reference
RANKFOLD_NAMESPACE_END
