// What the operations of experts have in common: plan, route, then run the phases on the window.
#pragma once

#include "expert_routing.hpp"
#include "operation.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace reference {

/// The state of one running operation. Lives on the stack of the thread that runs it. Everything
/// counts from the start of the window: the views are moved there, so that the phases see a small
/// batch whichever part of a large one it is.
template <class Args>
class ExpertsOperation {
 public:
  explicit ExpertsOperation(const Call<Args>& call) noexcept
      : args(call.args),
        problem(make_problem(call.args)),
        parts(parts_of(plan_workspace(problem), call.workspace)),
        threads(std::min(max_lanes(), available_threads())),
        window(args.addressing),
        routing(route_experts(problem, args.addressing, args.table, window, grouping(problem),
                              threads, parts)) {}

  /// Runs the phases, in the caller alone where no more is worth it.
  template <class... Phases>
  Status run(Phases&... phases) {
    const std::array<Phase*, sizeof...(Phases)> all = {&phases...};
    const std::int64_t rows = std::max(routing.shrink.num_active, routing.expand.num_active);
    run_phases(all, worth_threads(problem, rows) ? threads : 1);
    return {};
  }

  ConstTensorView x() const noexcept {
    return moved(args.x,
                 args.addressing.x_rows == XRows::own ? window.first_row : window.first_token);
  }
  TensorView y() const noexcept { return moved(args.y, window.first_row); }
  /// The caller's h.
  auto h() const noexcept { return moved(args.h, window.first_row); }
  /// The workspace's h, by row of the window.
  HiddenRows hidden() const noexcept {
    HiddenRows rows = hidden_rows(parts, args.table.shape);
    rows.by_row = true;
    return rows;
  }

  RowStrengths strengths() const noexcept {
    const ExpertAddressing& addressing = args.addressing;
    RowStrengths strengths;
    if (addressing.row_weights != nullptr)
      strengths.rows = addressing.row_weights + window.first_row;
    if (addressing.token_weights != nullptr) {
      strengths.tokens = addressing.token_weights + window.first_token;
      strengths.row_tokens = routing.tokens;
    }
    return strengths;
  }

  CopyPhase copy_phase(const HiddenRows& h) const noexcept {
    return {h, args.table.shape, routing.copies, routing.num_copies, routing.sources};
  }

  const Args& args;
  const Problem problem;
  const WorkspaceParts parts;
  const int threads;
  const ExpertWindow window;
  const ExpertRouting routing;

 private:
  template <class View>
  static View moved(View view, std::int64_t rows) noexcept {
    using Byte =
        std::conditional_t<std::is_same_v<View, ConstTensorView>, const std::byte, std::byte>;
    view.data = static_cast<Byte*>(view.data) +
                rows * view.strides[0] * static_cast<std::int64_t>(size_of(view.dtype));
    return view;
  }
  static Grouping grouping(const Problem& problem) noexcept {
    const auto strategy = choose_strategy(problem);
    return strategy.ok() && *strategy == Strategy::experts_gathered ? Grouping::by_row
                                                                    : Grouping::by_entry;
  }
};

}  // namespace reference
RANKFOLD_NAMESPACE_END
