// The workspace of an operation: where each part stands, from host-known bounds alone.
#pragma once

#include <cstddef>
#include <cstdint>

#include "rankfold/problem.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

/// Byte offsets into the workspace, multiples of 16. Each part is monotone in every bound, and so
/// is their sum.
struct WorkspacePlan {
  std::size_t row_slots = 0;  ///< int32 [rows]; grouped addressing
  std::size_t segments =
      0;  ///< int32 [rows + 2 segments + 2]; tokens that an operation groups for itself
  std::size_t h =
      0;  ///< float [splits, rows, num_slices * max_rank]; operations that make it for themselves
  std::size_t ds = 0;      ///< the same; backward
  std::size_t order = 0;   ///< int32 [rows]; backward
  std::size_t ends = 0;    ///< int32 [num_slots]; backward
  std::size_t counts = 0;  ///< int32 [num_slots, tiles]; backward
  std::size_t ds_partials =
      0;  ///< float [ds_partials, rows, ranks] of BackwardTiling; tensor-core backward
  std::size_t db_partials = 0;  ///< float [dy_partials, total out, ranks]
  std::size_t da_partials = 0;  ///< float [x_partials, num_slices * max_rank, in rounded up to 4]
  std::size_t whole_ds =
      0;  ///< float [rows, num_slices * max_rank rounded up to 4], by place in the order
  std::size_t packed_h = 0;        ///< float [rows, num_slices, max_rank rounded up to 4]
  std::size_t da_counts = 0;       ///< int32 [in / kXBlockColumns, rounded up]
  std::size_t dbias_partials = 0;  ///< float [dy_partials, total out rounded up to 4]
  std::size_t delta = 0;           ///< float [rows, total out]; strategy unfused
  std::size_t pair_rows = 0;       ///< int4 [rows]; experts sorted, as PairLists says
  std::size_t pair_blocks = 0;     ///< int4 [rows]
  std::size_t pair_experts = 0;    ///< int2 [pair_list_experts(num_experts)]
  std::size_t bytes = 0;
  bool too_large = false;  ///< no memory is enough; the rest says nothing
};

WorkspacePlan plan_workspace(const Problem& problem) noexcept;

/// Floats of h in the workspace, all splits together: what they may take at most, monotone in rows
/// and columns.
std::int64_t partial_floats(std::int64_t rows, std::int64_t columns) noexcept;
/// Splits of K where bits must not follow the batch: by K and the columns of h alone.
int pinned_splits(std::int64_t in, std::int64_t columns) noexcept;
/// The most splits whose h fits partial_floats, at most `wanted`.
int fitting_splits(std::int64_t rows, std::int64_t columns, std::int64_t wanted) noexcept;

inline bool is_unfused(const Problem& problem) noexcept {
  return problem.op == Op::apply_linear && problem.options.strategy == Strategy::unfused;
}
inline bool routes_experts(Op op) noexcept {
  return op == Op::shrink_experts || op == Op::expand_experts || op == Op::apply_experts;
}
inline bool is_backward(Op op) noexcept {
  return op == Op::backward || op == Op::backward_embedding;
}

}  // namespace cuda
RANKFOLD_NAMESPACE_END
