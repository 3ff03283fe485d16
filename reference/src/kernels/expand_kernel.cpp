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
constexpr std::int64_t kPanelFloats = 8192;  // 32 KB of B, widened for all rows of the block

/// Columns of one panel: as many as fit, at least one tile.
std::int64_t panel_columns(std::int64_t rank) noexcept {
  const std::int64_t columns = kPanelFloats / std::max<std::int64_t>(rank, 1);
  return std::clamp<std::int64_t>(columns / kTileColumns, 1, 16) * kTileColumns;
}

struct Output {
  std::int64_t columns;  // of this tile: 1 to kTileColumns
  const float* bias;     // from this tile's first column, or null
  bool overwrite;
};

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
  for (std::int64_t j = 0; j < rank; ++j) {
    F8 row[kRows];
    for (int m = 0; m < kRows; ++m) row[m] = broadcast8(h[m][j]);
    for (int v = 0; v < kTileVectors; ++v) {
      const F8 weight = load8(b + j * kTileColumns + v * kLanes);
      for (int m = 0; m < kRows; ++m) acc[m][v] = fma(row[m], weight, acc[m][v]);
    }
  }
  for (int v = 0; v < kTileVectors; v += 2) {
    const std::int64_t first = v * kLanes;
    const std::int64_t left = output.columns - first;
    if (left <= 0) return;
    const bool whole = left >= kPairLanes;
    Pair bias{zero8(), zero8()};
    if (output.bias != nullptr) {
      bias = whole ? load_pair(output.bias + first) : load_pair(output.bias + first, left);
      if constexpr (kEvenOdd<TY>) bias = split_even_odd(bias);
    }
    for (int m = 0; m < kRows; ++m) {
      const F8 factor = broadcast8(f[m]);
      Pair delta{acc[m][v], acc[m][v + 1]};
      if (output.bias != nullptr) {
        delta = {add(delta.first, bias.first), add(delta.second, bias.second)};
      }
      TY* const target = y[m] + first;
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
  }
}

template <class TY>
void expand_panel(const ExpandBlock& block, std::int64_t begin, std::int64_t end,
                  const float* panel) noexcept {
  auto* const y = static_cast<TY*>(block.y);
  for (std::int64_t i = 0; i < block.num_rows; i += kTileRows) {
    const int num_rows = static_cast<int>(std::min<std::int64_t>(kTileRows, block.num_rows - i));
    const float* h[kTileRows];
    float f[kTileRows];
    TY* target[kTileRows];
    for (int m = 0; m < kTileRows; ++m) {
      const std::int64_t at = i + std::min(m, num_rows - 1);
      const std::int64_t row = block.rows[at];
      h[m] = block.h + (block.h_rows != nullptr ? block.h_rows[at] : at) * block.h_stride;
      f[m] =
          block.token_weights != nullptr ? block.scaling * block.token_weights[row] : block.scaling;
      target[m] = y + row * block.y_stride + begin;
    }
    for (std::int64_t c = begin; c < end; c += kTileColumns) {
      const Output output{std::min(kTileColumns, end - c),
                          block.bias != nullptr ? block.bias + c : nullptr, block.overwrite};
      const float* const b = panel + (c - begin) * block.rank;
      switch (num_rows) {
        case 1:
          expand_tile<TY, 1>(h, f, target, b, block.rank, output);
          break;
        case 2:
          expand_tile<TY, 2>(h, f, target, b, block.rank, output);
          break;
        default:
          expand_tile<TY, 3>(h, f, target, b, block.rank, output);
          break;
      }
      for (int m = 0; m < kTileRows; ++m) target[m] += kTileColumns;
    }
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

}  // namespace

std::int64_t expand_scratch_floats(std::int64_t max_rank) noexcept {
  return std::max(kPanelFloats, max_rank * kTileColumns);
}

void expand_block(const ExpandBlock& block) noexcept {
  const std::int64_t width = block.num_rows <= kTileRows ? kTileColumns : panel_columns(block.rank);
  for (std::int64_t begin = block.column_begin; begin < block.column_end; begin += width) {
    const std::int64_t end = std::min(begin + width, block.column_end);
    with_element(block.y_dtype, [&]<class TY>(const TY*) {
      with_element(block.b_dtype,
                   [&]<class TB>(const TB*) { pack_panel<TY, TB>(block, begin, end); });
      expand_panel<TY>(block, begin, end, block.scratch);
    });
  }
}

}  // namespace reference
RANKFOLD_NAMESPACE_END
