// y[row, c] = round(y[row, c] + f[row] (sum over j of h[row, j] B[c, j] + bias[c])), for a block of
// rows that share B.
#pragma once

#include <cstdint>

#include "rankfold/dtype.hpp"
#include "rankfold/export.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace reference {

/// One block of the product. The bits of y[row, c] depend on h[row], B[c], bias[c], f and y alone:
/// j runs upwards with fused multiply-add, then bias is added, then y + f * sum is one fused
/// multiply-add, then it is rounded to y's dtype.
struct ExpandBlock {
  const float* h;  ///< row i of the block is at h + h_rows[i] * h_stride
  std::int64_t h_stride;
  const std::int32_t* h_rows;  ///< null: i
  const void* b;               ///< row 0 of B
  DType b_dtype;
  std::int64_t b_stride;
  std::int64_t rank;
  const float* bias;  ///< [columns] of the slice, or null
  float scaling;
  /// f = scaling * row weight * token weight, multiplied in this order; null: all 1.
  const float* row_weights = nullptr;    ///< by row number
  const float* token_weights = nullptr;  ///< by token number
  const std::int32_t* tokens =
      nullptr;  ///< token number of the i-th row of the block; null: rows[i]
  void* y;      ///< column 0 of the slice
  DType y_dtype;
  std::int64_t y_stride;
  const std::int32_t* rows;  ///< row numbers of y
  std::int64_t num_rows;
  std::int64_t column_begin;  ///< columns of the slice: [column_begin, column_end)
  std::int64_t column_end;
  bool overwrite;  ///< y is written and never read
  float* scratch;  ///< expand_scratch_floats()
};

void expand_block(const ExpandBlock& block) noexcept;

}  // namespace reference
RANKFOLD_NAMESPACE_END
