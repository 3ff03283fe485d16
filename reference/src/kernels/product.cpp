#include "product.hpp"

#include "simd.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace reference {

namespace {

constexpr int kTileRows = 6;  // with two vectors: twelve sums, as many as hide the latency of fma

// kUnitRow: p_row is 1; else p_step is 1.
template <int kRows, int kVectors, bool kUnitRow>
inline void product_tile(const Product& product, std::int64_t i, std::int64_t j) noexcept {
  F8 acc[kRows][kVectors];
  for (int m = 0; m < kRows; ++m) {
    for (int v = 0; v < kVectors; ++v) acc[m][v] = zero8();
  }
  const std::int64_t row = kUnitRow ? 1 : product.p_row;
  const std::int64_t step = kUnitRow ? product.p_step : 1;
  const float* p = product.p + i * row;
  const float* q = product.q + j;
#pragma GCC unroll 4
  for (std::int64_t k = 0; k < product.depth; ++k) {
    F8 right[kVectors];
    for (int v = 0; v < kVectors; ++v) right[v] = load8(q + v * kLanes);
    for (int m = 0; m < kRows; ++m) {
      const F8 left = broadcast8(p[m * row]);
      for (int v = 0; v < kVectors; ++v) acc[m][v] = fma(left, right[v], acc[m][v]);
    }
    p += step;
    q += product.q_stride;
  }
  for (int m = 0; m < kRows; ++m) {
    float* const c = product.c + (i + m) * product.c_stride + j;
    for (int v = 0; v < kVectors; ++v) {
      const F8 sum = acc[m][v];
      store8(c + v * kLanes, product.accumulate ? add(load8(c + v * kLanes), sum) : sum);
    }
  }
}

template <int kVectors, bool kUnitRow>
inline void product_rows(const Product& product, std::int64_t i, std::int64_t rows,
                         std::int64_t j) noexcept {
  switch (rows) {
    case 1:
      return product_tile<1, kVectors, kUnitRow>(product, i, j);
    case 2:
      return product_tile<2, kVectors, kUnitRow>(product, i, j);
    case 3:
      return product_tile<3, kVectors, kUnitRow>(product, i, j);
    case 4:
      return product_tile<4, kVectors, kUnitRow>(product, i, j);
    case 5:
      return product_tile<5, kVectors, kUnitRow>(product, i, j);
    default:
      return product_tile<6, kVectors, kUnitRow>(product, i, j);
  }
}

template <bool kUnitRow>
void multiply_by(const Product& product, Ahead& ahead) noexcept {
  // Tiles of equal height: 16 rows are 6 + 5 + 5, not 6 + 6 + 4.
  const std::int64_t tiles = (product.rows + kTileRows - 1) / kTileRows;
  for (std::int64_t j = 0; j < product.columns; j += 2 * kLanes) {
    std::int64_t i = 0;
    for (std::int64_t t = 0; t < tiles; ++t) {
      const std::int64_t rows = (product.rows - i + tiles - t - 1) / (tiles - t);
      if (product.columns - j > kLanes) {
        product_rows<2, kUnitRow>(product, i, rows, j);
      } else {
        product_rows<1, kUnitRow>(product, i, rows, j);
      }
      ahead.step();
      i += rows;
    }
  }
}

}  // namespace

void multiply(const Product& product, Ahead& ahead) noexcept {
  if (product.p_row == 1) {
    multiply_by<true>(product, ahead);
  } else {
    multiply_by<false>(product, ahead);
  }
}

}  // namespace reference
RANKFOLD_NAMESPACE_END
