#include "plan.hpp"

#include <limits>

#include "kernels/backward_tensor.hpp"
#include "kernels/general.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

namespace {

// Far over every device's memory, far below where sums of sizes would wrap.
constexpr std::int64_t kMaxBytes = std::int64_t{1} << 60;

bool keeps_h(const Problem& problem) noexcept {
  switch (problem.op) {
    case Op::apply_linear:
    case Op::apply_embedding:
    case Op::apply_experts:
      return true;
    case Op::backward:
    case Op::backward_embedding:
      return (problem.outputs & kRecomputesH) != 0;
    default:
      return false;
  }
}

bool routes_experts(Op op) noexcept {
  return op == Op::shrink_experts || op == Op::expand_experts || op == Op::apply_experts;
}

}  // namespace

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
    if (__builtin_mul_overflow(count, width, &size) || __builtin_mul_overflow(size, std::int64_t{4}, &size) ||
        __builtin_add_overflow(static_cast<std::int64_t>(at), size, &end) || end > kMaxBytes) {
      plan.too_large = true;
      return offset;
    }
    at = (static_cast<std::size_t>(end) + 15) / 16 * 16;
    return offset;
  };
  const std::int64_t columns = std::int64_t{shape.num_slices} * shape.max_rank;
  const bool grouped = !routes_experts(problem.op) && problem.addressing == AddressingMode::grouped;
  plan.row_slots = take(grouped ? rows : 0, 1);
  plan.h = take(keeps_h(problem) ? rows : 0, columns);
  if (is_backward(problem.op)) {
    plan.ds = take((problem.outputs & kOutputDs) != 0 ? 0 : rows, columns);
    plan.order = take(rows, 1);
    plan.ends = take(shape.num_slots, 1);
    plan.counts = take(shape.num_slots, (rows + kSortTile - 1) / kSortTile);
  }
  if (const BackwardTiling tiling = tile_backward(problem); tiling.fits) {
    const bool makes_ds = (problem.outputs & (kOutputDs | kOutputDx | kOutputDa)) != 0;
    plan.ds_partials = take(makes_ds ? tiling.dy_blocks * rows : 0, tiling.ranks);
    plan.db_partials =
        take((problem.outputs & kOutputDb) != 0 ? tiling.dy_partials * total_out(shape) : 0, tiling.ranks);
    plan.da_partials =
        take((problem.outputs & kOutputDa) != 0 ? tiling.x_partials * columns : 0, (shape.in + 3) / 4 * 4);
    plan.whole_ds = take(makes_ds ? rows : 0, whole_ds_stride(shape));
    plan.packed_h = take((problem.outputs & kOutputDb) != 0 ? rows : 0, shape.num_slices * ((shape.max_rank + 3) / 4 * 4));
    plan.dbias_partials =
        take((problem.outputs & kOutputDbias) != 0 ? tiling.dy_partials : 0, (total_out(shape) + 3) / 4 * 4);
  }
  plan.bytes = at;
  return plan;
}

}  // namespace cuda
RANKFOLD_NAMESPACE_END
