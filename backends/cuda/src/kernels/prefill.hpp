// The strategy tensor_core: shrink and expand for segments of many rows, on matrix instructions.
//
// A block of the shrink has 64 rows of one slot, all slices, and a part of K; a block of the expand
// has 64 or 128 rows and 256 columns of one slice. What alignment allows wide accesses is found per
// entry on the device; all else takes a slower path through the same shared memory.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "general.hpp"
#include "rankfold/adapter_table.hpp"
#include "rankfold/dtype.hpp"
#include "rankfold/options.hpp"
#include "rankfold/status.hpp"
#include "rankfold/tensor_view.hpp"
#include "row_blocks.cuh"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

/// What the kernels ask of the device.
struct PrefillDevice {
  int num_sms = 1;
  int shared_bytes = 0;    ///< a block may have: cudaDevAttrMaxSharedMemoryPerBlockOptin
  bool is_hopper = false;  ///< compute capability 9.x: clusters, programmatic dependent launch
};

/// Ranks that the kernels have room for where A and B are of float32.
inline constexpr int kPrefillFloatRank = 128;

/// Whether the kernels compute this at all: x f16 or bf16, A and B of the same dtype, or x bf16, A
/// and B f32 of up to kPrefillFloatRank ranks; y of x's dtype or f32; and the shared memory of the
/// device.
bool prefill_supports(const PrefillDevice& device, const TableShape& shape, DType x_dtype,
                      DType y_dtype) noexcept;

/// How the work is cut; by host-known bounds alone.
struct PrefillPlan {
  int shrink_rows = 64;  ///< of a block: 64 or 128
  int splits = 1;        ///< parts of K
  int tile_parts = 1;    ///< blocks that share the tiles of ranks of 64 rows and a part of K
  int cluster = 1;  ///< blocks that sum their parts of K on chip: a divisor of splits, at most 8
  int expand_steps = 0;  ///< of 128 bytes of a row of y for a block; 0: by the number of blocks
  int expand_rows = 64;  ///< of a block: 64 or 128
  int shared_bytes = 0;  ///< of PrefillDevice

  /// Partial sums of h in the workspace.
  constexpr int partials() const noexcept { return splits / cluster; }
};
PrefillPlan plan_prefill(const PrefillDevice& device, const TableShape& shape, Grouping::Kind kind,
                         std::int64_t active_rows, std::int64_t max_segments) noexcept;

/// Whether a block of the shrink may have so many rows, 64 or 128.
bool prefill_shrink_takes(const PrefillDevice& device, int rows) noexcept;

/// h as float32 [partials][row][num_slices * max_rank].
struct PartialHidden {
  float* data = nullptr;
  std::int64_t stride = 0;        ///< floats between rows
  std::int64_t split_stride = 0;  ///< floats between splits
};

/// h = x A^T for the rows of the grouping (uniform or segments), plan.splits partial sums of it.
/// Columns past the rank are not written. active_rows: bound of the rows that the grouping has.
Status prefill_shrink(const ConstTensorView& x, const AdapterTableView& table, const Grouping& rows,
                      Grouping::Kind kind, std::int64_t active_rows, const PartialHidden& h,
                      const PrefillPlan& plan, cudaStream_t stream);

struct PrefillExpandOptions {
  YMode mode = YMode::accumulate;  ///< overwrite: rows of the grouping alone
  bool with_bias = true;
  bool made_h = false;  ///< by this operation: where an entry has no A, nobody has written h
  /// The kernel before in the stream is the shrink of the same call (launched without overlap
  /// itself), so that this one may begin beside it: all but h was there before.
  bool overlaps_shrink = false;
  Hidden h_sum = {};  ///< data not null: the sum of the partial h is written there, too
};
/// y += f (h B^T + bias).
Status prefill_expand(const PartialHidden& h, const AdapterTableView& table, const Grouping& rows,
                      Grouping::Kind kind, std::int64_t active_rows, const float* token_weights,
                      const TensorView& y, const PrefillExpandOptions& options,
                      const PrefillPlan& plan, const PrefillDevice& device, cudaStream_t stream);

}  // namespace cuda
RANKFOLD_NAMESPACE_END
