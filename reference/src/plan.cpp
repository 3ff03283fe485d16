#include "plan.hpp"

#include <algorithm>

#include "parallel.hpp"
#include "training_plan.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace reference {

namespace {

constexpr std::size_t kAlignment = 64;
// Far over every machine's memory, far below where sums of sizes would wrap.
constexpr std::int64_t kMaxBytes = std::int64_t{1} << 60;
constexpr std::int64_t kMaxIn = std::int64_t{1} << 56;

bool shrinks(const Problem& problem) noexcept {
  const Op op = problem.op;
  return op == Op::shrink || op == Op::apply_linear || op == Op::forward ||
         (op == Op::backward && recomputes_h(problem));
}
bool expands(Op op) noexcept {
  return op == Op::expand || op == Op::apply_linear || op == Op::apply_embedding ||
         op == Op::forward || op == Op::forward_embedding;
}
bool keeps_h(const Problem& problem) noexcept {
  const Op op = problem.op;
  return op == Op::apply_linear || op == Op::apply_embedding ||
         (is_backward(op) && recomputes_h(problem));
}

}  // namespace

WorkspacePlan plan_workspace(const Problem& problem) noexcept {
  WorkspacePlan plan;
  const TableShape& shape = problem.shape;
  const std::int64_t rows = problem.bounds.rows;
  if (rows <= 0) return plan;
  if (rows > kMaxRows || shape.in > kMaxIn) {
    plan.too_large = true;
    return plan;
  }
  std::size_t at = 0;
  const auto take = [&](std::int64_t count, std::int64_t width, std::size_t bytes) {
    const std::size_t offset = at;
    std::int64_t size = 0;
    std::int64_t end = 0;
    // No sum of these can wrap: whatever passes kMaxBytes ends the plan.
    if (__builtin_mul_overflow(count, width, &size) ||
        __builtin_mul_overflow(size, static_cast<std::int64_t>(bytes), &size) ||
        __builtin_add_overflow(static_cast<std::int64_t>(at), size, &end) || end > kMaxBytes) {
      plan.too_large = true;
      return offset;
    }
    at = (static_cast<std::size_t>(end) + kAlignment - 1) / kAlignment * kAlignment;
    return offset;
  };
  plan.order = take(rows, 1, sizeof(std::int32_t));
  plan.bare = take(rows, 1, sizeof(std::int32_t));
  plan.marks = take(rows, 1, 1);
  plan.groups = take(rows, 1, sizeof(RowGroup));
  plan.counters = take(shape.num_slots, 1, sizeof(std::int32_t));
  const std::int64_t columns = std::int64_t{shape.num_slices} * shape.max_rank;
  plan.h = keeps_h(problem) ? take(rows, columns, sizeof(float)) : at;
  plan.training = at;
  if (is_backward(problem.op)) {
    const TrainingPlan training = plan_training(problem);
    plan.training = take(training.bytes, 1, 1);
    plan.too_large = plan.too_large || training.too_large;
  }
  plan.lanes = max_lanes();
  std::int64_t floats = 0;
  if (shrinks(problem)) floats = shrink_scratch_floats(shape.in, shape.max_rank);
  if (expands(problem.op)) floats = std::max(floats, expand_scratch_floats(shape.max_rank));
  if (is_backward(problem.op)) floats = std::max(floats, backward_scratch_floats(shape));
  plan.scratch_floats = static_cast<std::size_t>((floats + 15) / 16 * 16);
  plan.scratch = take(plan.lanes, static_cast<std::int64_t>(plan.scratch_floats), sizeof(float));
  plan.bytes = at + kAlignment;  // the caller's memory may start at a multiple of 16 alone
  return plan;
}

WorkspaceParts parts_of(const WorkspacePlan& plan, const Workspace& workspace) noexcept {
  const auto address = reinterpret_cast<std::uintptr_t>(workspace.data);
  auto* const base =
      static_cast<std::byte*>(workspace.data) + (kAlignment - address % kAlignment) % kAlignment;
  WorkspaceParts parts;
  parts.order = reinterpret_cast<std::int32_t*>(base + plan.order);
  parts.bare = reinterpret_cast<std::int32_t*>(base + plan.bare);
  parts.marks = reinterpret_cast<std::uint8_t*>(base + plan.marks);
  parts.groups = reinterpret_cast<RowGroup*>(base + plan.groups);
  parts.counters = reinterpret_cast<std::int32_t*>(base + plan.counters);
  parts.h = reinterpret_cast<float*>(base + plan.h);
  parts.training = base + plan.training;
  parts.scratch = reinterpret_cast<float*>(base + plan.scratch);
  parts.scratch_floats = plan.scratch_floats;
  parts.lanes = plan.lanes;
  return parts;
}

}  // namespace reference
RANKFOLD_NAMESPACE_END
