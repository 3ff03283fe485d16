// h[row, j] = sum over k of x[row, k] A[j, k], for a block of rows that share A.
#pragma once

#include <cstdint>

#include "philox.hpp"
#include "rankfold/dtype.hpp"
#include "rankfold/export.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace reference {

/// One block of the product. The bits of h[row, j] depend on x[row], A[j] and `in` alone: k runs
/// upwards in chunks of kShrinkChunk; in a chunk, each of eight lanes adds its own k (k mod 8, or
/// k / 2 mod 8 where A is bfloat16) with fused multiply-add; the lanes are added in a fixed tree,
/// and the chunks' sums in order.
struct ShrinkBlock {
  const void* x;
  DType x_dtype;
  std::int64_t x_stride;     ///< elements; may be 0
  const std::int32_t* rows;  ///< row numbers of x
  std::int64_t num_rows;     ///< at most kMaxGroupRows
  const void* a;             ///< row 0 of A
  DType a_dtype;
  std::int64_t a_stride;
  std::int64_t in;
  std::int64_t rank_begin;  ///< rows of A: [rank_begin, rank_end)
  std::int64_t rank_end;
  float* h;  ///< row i of the block is written at h + h_rows[i] * h_stride + j
  std::int64_t h_stride;
  const std::int32_t* h_rows;            ///< null: i
  float* scratch;                        ///< shrink_scratch_floats()
  const DropoutMask* dropout = nullptr;  ///< of x, or null
};

inline constexpr std::int64_t kShrinkChunk = 1024;

void shrink_block(const ShrinkBlock& block) noexcept;

}  // namespace reference
RANKFOLD_NAMESPACE_END
