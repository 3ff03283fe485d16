// The strategy general: products without tensor cores, each row on its own. Any dtype, rank, size
// and stride; what a row becomes depends on that row and its adapter alone.
#pragma once

#include <cuda_runtime_api.h>

#include "philox.cuh"
#include "rankfold/arguments.hpp"
#include "rankfold/status.hpp"
#include "rows.cuh"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

/// h of the caller is indexed by row; of the workspace, from the first row of a window.
struct Hidden {
  float* data = nullptr;
  std::int64_t stride = 0;
  std::int64_t first_row = 0;
};

/// Rows [first_row, first_row + num_rows) of a call.
struct RowRange {
  std::int64_t first_row = 0;
  std::int64_t num_rows = 0;
};

/// h = x A^T, with dropout on x.
Status general_shrink(const ConstTensorView& x, const AdapterTableView& table, const Rows& rows,
                      RowRange range, const Hidden& h, const DropoutMask& dropout,
                      cudaStream_t stream);
/// h = A[:, ids].
Status general_gather(const ConstTensorView& ids, const AdapterTableView& table, const Rows& rows,
                      RowRange range, const Hidden& h, cudaStream_t stream);

struct ExpandOptions {
  YMode mode = YMode::accumulate;
  bool with_bias = true;
  bool made_h = false;    ///< by this operation: where an entry has no A, nobody has written h
  bool unscaled = false;  ///< f = 1
};
/// y += f (h B^T + bias).
Status general_expand(const Hidden& h, const AdapterTableView& table, const Rows& rows,
                      RowRange range, const TensorView& y, const ExpandOptions& options,
                      cudaStream_t stream);

/// Strategy unfused: y += f delta, of a delta [rows, sum of out] of general_expand, unscaled; one
/// rounding.
Status add_delta(const float* delta, const AdapterTableView& table, const Rows& rows,
                 RowRange range, const TensorView& y, YMode mode, cudaStream_t stream);

/// ds = f dy B.
Status general_ds(const ConstTensorView& dy, const AdapterTableView& table, const Rows& rows,
                  std::int64_t num_rows, const Hidden& ds, cudaStream_t stream);
/// dx += ds A, under the mask of the dropout.
Status general_dx(const Hidden& ds, const AdapterTableView& table, const Rows& rows,
                  std::int64_t num_rows, const TensorView& dx, YMode mode,
                  const DropoutMask& dropout, cudaStream_t stream);

/// Rows by slot, ascending: those of a slot end at order[ends[slot]] and begin where the slot
/// before ends.
struct SlotRows {
  const std::int32_t* order = nullptr;
  const std::int32_t* ends = nullptr;  ///< int32 [num_slots]
};
/// dA = ds^T x, into what grads.da points to.
Status general_da(const Hidden& ds, const ConstTensorView& x, const AdapterTableView& table,
                  const SlotRows& slot_rows, const Gradients& grads, const DropoutMask& dropout,
                  cudaStream_t stream);
/// The same for ids: columns of dA.
Status general_da_columns(const Hidden& ds, const ConstTensorView& ids,
                          const AdapterTableView& table, const SlotRows& slot_rows,
                          const Gradients& grads, cudaStream_t stream);
/// dB = sum of f dy^T h and dbias = sum of f dy.
Status general_db(const Hidden& h, const ConstTensorView& dy, const AdapterTableView& table,
                  const Rows& rows, const SlotRows& slot_rows, const Gradients& grads,
                  cudaStream_t stream);

/// A slot a row of the grouped form: slots[row], -1 for a row in no segment.
Status scatter_slots(const LoraAddressing& addressing, std::int32_t num_slots, std::int32_t* slots,
                     cudaStream_t stream);
/// Where grouped rows go.
struct Segments {
  std::int32_t* order = nullptr;         ///< int32 [num_tokens]
  std::int32_t* offsets = nullptr;       ///< int32 [max_segments + 1]
  std::int32_t* slots = nullptr;         ///< int32 [max_segments]
  std::int32_t* num_segments = nullptr;  ///< int32 [1]
  std::int64_t max_segments = 0;         ///< at least min(num_tokens, num_slots)
};
/// Whether one launch can group this: at most 1024 slots, so that counters have room on chip.
bool groups_in_one_launch(std::int64_t num_tokens, std::int32_t num_slots) noexcept;
Status group_rows_of_slots(const std::int32_t* token_slots, std::int64_t num_tokens,
                           std::int32_t num_slots, const Segments& out, bool has_clusters,
                           cudaStream_t stream);
/// Rows of a tile of the counting sort.
inline constexpr std::int64_t kSortTile = 1024;
/// Stable counting sort of the rows by slot. counts: int32 [num_slots * tiles]; ends: int32
/// [num_slots].
Status sort_by_slot(const Rows& rows, std::int64_t num_rows, std::int32_t* counts,
                    std::int32_t* order, std::int32_t* ends, cudaStream_t stream);
/// The segments of a sorted order.
Status make_segments(const std::int32_t* ends, std::int32_t num_slots,
                     const LoraAddressing& grouped, cudaStream_t stream);

}  // namespace cuda
RANKFOLD_NAMESPACE_END
