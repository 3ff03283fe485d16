// The strategies gemv, routed and grouped: few rows a slot. Tensor-core products of at most 16 rows
// of one slot; A and B are read once a row block, straight into the operands of the matrix
// instructions.
#pragma once

#include <cuda_runtime_api.h>

#include "../row_blocks.cuh"
#include "rankfold/arguments.hpp"
#include "rankfold/status.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

/// Rows of a row block of these strategies.
inline constexpr int kDecodeRows = 16;

/// h as float32 [splits][row][columns], summed over the splits in ascending order by who reads it.
struct SplitHidden {
  float* data = nullptr;
  std::int64_t row_stride = 0;
  std::int64_t split_stride = 0;
  int splits = 1;
};

/// x of f16 or bf16; A of x's dtype or float32.
bool decode_shrink_takes(DType x, DType a) noexcept;
/// How the shrink follows what is before it in the stream.
struct DecodeStart {
  bool early = false;    ///< launched while the kernel before ends, for which it waits
  bool fetches = false;  ///< before it waits it asks for A in the second level of cache
};
/// Bytes of A up to which fetching them early pays: more compete with what still runs.
inline constexpr std::int64_t kEarlyBytes = std::int64_t{9} << 20;

/// h = x A^T, each split its part of K. blocks: upper bound of the row blocks.
Status decode_shrink(const ConstTensorView& x, const AdapterTableView& table,
                     const Grouping& grouping, Grouping::Kind kind, std::int64_t blocks,
                     const SplitHidden& h, const DecodeStart& start, cudaStream_t stream);

struct DecodeExpand {
  SplitHidden h;
  float* h_out = nullptr;  ///< where the sum of the splits goes as well, or null
  std::int64_t h_out_stride = 0;
  const float* token_weights = nullptr;
  bool with_bias = true;
  bool made_h = false;  ///< by this operation: where an entry has no A, nobody has written h
  bool after_shrink =
      false;  ///< the launch before in the stream is the shrink that made h, and no other
  bool releases = false;   ///< what follows may be launched before this has ended
  bool pinned = false;     ///< batch_invariant: the order of sums does not depend on the rows
  bool uneven = false;     ///< row blocks have different numbers of rows
  int tiles_per_warp = 0;  ///< of 32 columns; 0: chosen
};
/// y f16, bf16 or float32; B f16, bf16 or float32.
bool decode_expand_takes(DType b, DType y) noexcept;
/// y += f (h B^T + bias).
Status decode_expand(const DecodeExpand& call, const AdapterTableView& table,
                     const Grouping& grouping, Grouping::Kind kind, std::int64_t blocks,
                     const TensorView& y, int num_sms, cudaStream_t stream);

/// The sum of the splits, of the rows and ranks that there are: out (one split) = sum of h.
Status sum_splits(const SplitHidden& h, const AdapterTableView& table, const Grouping& grouping,
                  Grouping::Kind kind, std::int64_t blocks, const SplitHidden& out,
                  cudaStream_t stream);

}  // namespace cuda
RANKFOLD_NAMESPACE_END
