#include "plan.hpp"

#include <algorithm>
#include <limits>

#include "kernels/backward_tensor.hpp"
#include "kernels/experts.hpp"
#include "kernels/general.hpp"
#include "kernels/pairs.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

namespace {

// Far over every device's memory, far below where sums of sizes would wrap.
constexpr std::int64_t kMaxBytes = std::int64_t{1} << 60;

// Few rows are split along K over the whole chip; more than this the sums of the splits never take.
constexpr std::int64_t kMostSplits = 64;
constexpr std::int64_t kSplitFloats = std::int64_t{1} << 22;

bool splits_h(Op op) noexcept {
  return op == Op::apply_linear || op == Op::forward || op == Op::shrink;
}
bool is_linear(Op op) noexcept {
  return splits_h(op) || op == Op::expand || op == Op::apply_embedding ||
         op == Op::forward_embedding;
}

// Whether a configuration may choose them; the built-in choice goes by bounds, and what a workspace
// has is to be monotone in those.
bool may_take_pairs(const Problem& problem) noexcept {
  return problem.op == Op::apply_experts && problem.options.strategy != Strategy::general &&
         problem.options.batch_invariant != BatchInvariant::on &&
         why_not_fused_experts(problem) == nullptr && why_not_pairs(problem) == nullptr;
}

bool keeps_h(const Problem& problem) noexcept {
  switch (problem.op) {
    case Op::shrink:
    case Op::forward:
    case Op::apply_linear:
    case Op::apply_embedding:
      return true;
    case Op::apply_experts:
      return problem.options.strategy == Strategy::general ||
             why_not_fused_experts(problem) != nullptr || may_take_pairs(problem);
    case Op::backward:
    case Op::backward_embedding:
      return (problem.outputs & kRecomputesH) != 0;
    default:
      return false;
  }
}

}  // namespace

std::int64_t partial_floats(std::int64_t rows, std::int64_t columns) noexcept {
  std::int64_t once = 0, split = 0;
  if (__builtin_mul_overflow(rows, columns, &once)) return kMaxBytes;
  if (__builtin_mul_overflow(once, kMostSplits, &split)) split = kMaxBytes;
  return std::max(once, std::min(split, kSplitFloats));
}

int pinned_splits(std::int64_t in, std::int64_t columns) noexcept {
  return static_cast<int>(
      std::clamp<std::int64_t>(std::min(in / 512, 512 / std::max<std::int64_t>(columns, 1)), 1, 8));
}

int fitting_splits(std::int64_t rows, std::int64_t columns, std::int64_t wanted) noexcept {
  const std::int64_t once = std::max<std::int64_t>(rows * columns, 1);
  return static_cast<int>(
      std::clamp<std::int64_t>(std::min(wanted, kSplitFloats / once), 1, kMostSplits));
}

WorkspacePlan plan_workspace(const Problem& problem) noexcept {
  WorkspacePlan plan;
  const TableShape& shape = problem.shape;
  const std::int64_t rows = problem.bounds.rows;
  if (rows > std::numeric_limits<std::int32_t>::max()) {
    plan.too_large = true;
    return plan;
  }
  std::size_t at = 0;
  const auto take = [&](std::int64_t count, std::int64_t width) {
    const std::size_t offset = at;
    std::int64_t size = 0, end = 0;
    if (__builtin_mul_overflow(count, width, &size) ||
        __builtin_mul_overflow(size, std::int64_t{4}, &size) ||
        __builtin_add_overflow(static_cast<std::int64_t>(at), size, &end) || end > kMaxBytes) {
      plan.too_large = true;
      return offset;
    }
    at = (static_cast<std::size_t>(end) + 15) / 16 * 16;
    return offset;
  };
  const std::int64_t columns = std::int64_t{shape.num_slices} * shape.max_rank;
  if (is_unfused(problem)) {
    plan.row_slots = take(problem.addressing == AddressingMode::grouped ? rows : 0, 1);
    plan.h = take(rows, columns);
    plan.delta = take(rows, total_out(shape));
    plan.bytes = at;
    return plan;
  }
  const bool grouped = is_backward(problem.op) && problem.addressing == AddressingMode::grouped;
  plan.row_slots = take(grouped ? rows : 0, 1);
  if (is_linear(problem.op) && problem.addressing == AddressingMode::tokens) {
    plan.segments = take(rows, 1);
    (void)take(std::min<std::int64_t>(rows, shape.num_slots) + 1, 2);
  }
  if (keeps_h(problem)) {
    const bool pinned = problem.options.batch_invariant == BatchInvariant::on;
    if (!splits_h(problem.op)) {
      plan.h = take(rows, columns);
    } else if (pinned) {
      plan.h = take(rows * pinned_splits(shape.in, columns), columns);
    } else {
      plan.h = take(partial_floats(rows, columns), 1);
    }
  }
  if (may_take_pairs(problem)) {
    plan.pair_rows = take(rows, 4);
    plan.pair_blocks = take(rows, 4);
    plan.pair_experts = take(pair_list_experts(shape.num_experts), 2);
  }
  if (is_backward(problem.op)) {
    plan.ds = take((problem.outputs & kOutputDs) != 0 ? 0 : rows, columns);
    plan.order = take(rows, 1);
    plan.ends = take(shape.num_slots, 1);
    plan.counts = take(shape.num_slots, (rows + kSortTile - 1) / kSortTile);
  }
  if (const BackwardTiling tiling = tile_backward(problem); tiling.fits) {
    const bool makes_ds = (problem.outputs & (kOutputDs | kOutputDx | kOutputDa)) != 0;
    plan.ds_partials = take(makes_ds ? tiling.ds_partials * rows : 0, tiling.ranks);
    plan.db_partials =
        take((problem.outputs & kOutputDb) != 0 ? tiling.dy_partials * total_out(shape) : 0,
             tiling.ranks);
    plan.da_partials = take((problem.outputs & kOutputDa) != 0 ? tiling.x_partials * columns : 0,
                            (shape.in + 3) / 4 * 4);
    plan.da_counts = take(
        (problem.outputs & kOutputDa) != 0 ? (shape.in + kXBlockColumns - 1) / kXBlockColumns : 0,
        1);
    plan.whole_ds = take(makes_ds ? rows : 0, whole_ds_stride(shape));
    plan.packed_h = take((problem.outputs & kOutputDb) != 0 ? rows : 0, packed_h_stride(shape));
    plan.dbias_partials = take((problem.outputs & kOutputDbias) != 0 ? tiling.dy_partials : 0,
                               (total_out(shape) + 3) / 4 * 4);
  }
  plan.bytes = at;
  return plan;
}

}  // namespace cuda
RANKFOLD_NAMESPACE_END
