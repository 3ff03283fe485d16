// What the two files of kernels of the expand of few rows share.
#pragma once

#include <cuda_runtime_api.h>

#include "decode.hpp"
#include "rankfold/dtype.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

struct DecodeExpandParams {
  SplitHidden h;
  float* h_out;
  std::int64_t h_out_stride;
  const float* token_weights;
  const AdapterEntry* entries;
  std::int64_t slot_stride;
  Grouping grouping;
  void* y;
  std::int64_t y_stride;
  std::int64_t out[kMaxSlices];
  std::int32_t chunks[kMaxSlices];   ///< of columns, before and in the slice
  std::int64_t columns[kMaxSlices];  ///< of y, before the slice
  int kind;
  int num_slices;
  int max_rank;
  int tiles_per_warp;
  int with_bias;
  int made_h;
  int wide_y;    ///< rows of y are aligned
  int wide_h;    ///< rows of h are aligned
  int releases;  ///< what follows may be launched once all blocks have begun
  int pinned;    ///< the order of sums does not depend on the rows
};

/// By kernels that copy B and y through shared memory: any rank, size and alignment, and any dtypes
/// that decode_expand_takes.
Status expand_by_ring(const DecodeExpandParams& params, DType y, DType b, dim3 grid, bool overlaps,
                      cudaStream_t stream);

}  // namespace cuda
RANKFOLD_NAMESPACE_END
