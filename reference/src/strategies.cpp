#include "strategies.hpp"

#include <algorithm>
#include <array>
#include <cinttypes>

#include "backend.hpp"
#include "plan.hpp"
#include "training_plan.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace reference {

namespace {

constexpr const char* kRoutedConditions = "one row at a time; taken for a single row";
constexpr const char* kGroupedConditions = "rows grouped by adapter; taken for two rows or more";

constexpr const char* kBackwardConditions = "rows grouped by adapter; gradients are sums over rows";

constexpr std::array<Op, 9> kOps = {
    Op::shrink,  Op::expand,   Op::apply_linear,      Op::gather_shrink,     Op::apply_embedding,
    Op::forward, Op::backward, Op::forward_embedding, Op::backward_embedding};

bool implemented(Op op) noexcept { return std::find(kOps.begin(), kOps.end(), op) != kOps.end(); }

}  // namespace

Result<Strategy> choose_strategy(const Problem& problem) noexcept {
  if (problem.op == Op::group_tokens) return Strategy::grouped;
  if (!implemented(problem.op)) {
    return Status::format(
        StatusCode::unsupported,
        "%s: not implemented by the reference backend of this version; it has group_tokens, "
        "shrink, expand, apply_linear, gather_shrink, apply_embedding, forward, backward, "
        "forward_embedding and backward_embedding",
        to_string(problem.op));
  }
  if (problem.bounds.rows > kMaxRows) {
    return Status::format(StatusCode::unsupported,
                          "%s: the bound of rows is %" PRId64
                          "; the reference backend takes at most %" PRId64
                          ", since its row numbers are int32",
                          to_string(problem.op), problem.bounds.rows, kMaxRows);
  }
  if (problem.options.configuration < 0 || problem.options.configuration > 1) {
    return Status::format(StatusCode::unsupported,
                          "%s: configuration is %d; each strategy of the reference backend has one "
                          "configuration, so it should be 0 or 1",
                          to_string(problem.op), problem.options.configuration);
  }
  if (is_backward(problem.op)) {
    if (problem.options.strategy == Strategy::automatic ||
        problem.options.strategy == Strategy::grouped) {
      return Strategy::grouped;
    }
    return Status::format(StatusCode::unsupported,
                          "%s: strategy is %s; the reference backend has grouped alone, since "
                          "gradients are sums over the rows of an adapter",
                          to_string(problem.op), to_string(problem.options.strategy));
  }
  switch (problem.options.strategy) {
    case Strategy::automatic:
      return problem.bounds.rows <= 1 ? Strategy::routed : Strategy::grouped;
    case Strategy::routed:
    case Strategy::grouped:
      return problem.options.strategy;
    default:
      return Status::format(StatusCode::unsupported,
                            "%s: strategy is %s; the reference backend has routed and grouped",
                            to_string(problem.op), to_string(problem.options.strategy));
  }
}

bool worth_threads(const Problem& problem, std::int64_t rows) noexcept {
  constexpr double kSerialProducts = 65536;   // about ten microseconds of one core
  constexpr std::int64_t kSerialRows = 4096;  // that are only cleared
  const TableShape& shape = problem.shape;
  if (is_backward(problem.op)) {
    // Gradients of slots without rows are cleared, whatever the number of rows.
    const double both =
        static_cast<double>(total_out(shape)) + static_cast<double>(shape.in) * shape.num_slices;
    const double rank = std::max(shape.max_rank, 1);
    return 2 * static_cast<double>(rows) * rank * both >= kSerialProducts ||
           static_cast<double>(shape.num_slots) * rank * both >= 16 * kSerialProducts;
  }
  const double width =
      static_cast<double>(total_out(shape)) +
      (problem.op == Op::shrink || problem.op == Op::apply_linear || problem.op == Op::forward
           ? static_cast<double>(shape.in) * shape.num_slices
           : 0.0);
  return static_cast<double>(rows) * std::max(shape.max_rank, 1) * width >= kSerialProducts ||
         (problem.bounds.rows >= kSerialRows && problem.options.y_mode == YMode::overwrite);
}

int ReferenceBackend::do_list_strategies(StrategyInfo* out, int capacity) const {
  int count = 0;
  const auto add = [&](Op op, Strategy strategy, const char* conditions) {
    if (count < capacity) out[count] = {op, strategy, conditions, "default"};
    ++count;
  };
  add(Op::group_tokens, Strategy::grouped, "counting sort");
  for (const Op op : kOps) {
    if (is_backward(op)) {
      add(op, Strategy::grouped, kBackwardConditions);
      continue;
    }
    add(op, Strategy::routed, kRoutedConditions);
    add(op, Strategy::grouped, kGroupedConditions);
  }
  return count;
}

Result<Strategy> ReferenceBackend::do_supports(const Problem& problem) const {
  return choose_strategy(problem);
}

Result<std::uint64_t> ReferenceBackend::do_workspace_bytes(const Problem& problem) const {
  if (problem.op == Op::group_tokens) return std::uint64_t{0};
  const WorkspacePlan plan = plan_workspace(problem);
  if (!plan.too_large) return std::uint64_t{plan.bytes};
  return Status::format(StatusCode::unsupported,
                        "%s: the workspace of %" PRId64 " rows, in %" PRId64
                        " and num_slices * max_rank %" PRId64 " is over 2^60 bytes",
                        to_string(problem.op), problem.bounds.rows, problem.shape.in,
                        std::int64_t{problem.shape.num_slices} * problem.shape.max_rank);
}

}  // namespace reference
RANKFOLD_NAMESPACE_END
