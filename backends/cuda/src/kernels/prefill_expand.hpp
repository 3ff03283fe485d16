// What the kernels of prefill_expand.cu are given, and who launches those for rows that are not
// aligned.
#pragma once

#include <cstdint>

#include "prefill.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

struct ExpandParams {
  PartialHidden h;
  int partials;
  int wide_h;  // pairs of h at multiples of 8 bytes
  Hidden h_sum;
  const AdapterEntry* entries;
  std::int64_t slot_stride;
  Grouping rows;
  int kind;
  const float* token_weights;
  void* y;
  std::int64_t y_stride;
  std::int64_t out[kMaxSlices];
  int first_part[kMaxSlices];  // of a slice; a part is `steps` steps of columns
  int num_slices;
  int max_rank;
  int parts;
  int steps;
  int slabs;   // of B in a stage
  int wide_y;  // rows of y begin at multiples of 16 bytes
  int overwrites;
  int with_bias;
  int made_h;
  int warp_bytes;  // of y of a warp in a stage; of expand_odd() alone
};

/// The expand where rows of y are no multiples of 16 bytes, or rows of B multiples of 8. A and B of
/// y's dtype, or y of float32. rows: of a block, 64 or 128.
Status expand_odd(ExpandParams& params, DType b_dtype, DType y_dtype, std::int64_t row_blocks,
                  int rows, bool overlaps, cudaStream_t stream);

/// Shared memory that the expand of float32 weights takes at most.
inline constexpr int kFloatExpandBytes = 200 * 1024;

/// The expand of float32 weights, 128 rows a block. odd: rows of y are no multiples of 16 bytes.
Status expand_floats(const ExpandParams& params, DType y_dtype, bool odd, std::int64_t row_blocks,
                     bool overlaps, cudaStream_t stream);

}  // namespace cuda
RANKFOLD_NAMESPACE_END
