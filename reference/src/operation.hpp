// What the operations have in common: plan, route, then run the phases.
#pragma once

#include <algorithm>
#include <array>

#include "backend.hpp"
#include "parallel.hpp"
#include "phases.hpp"
#include "plan.hpp"
#include "rankfold/problem.hpp"
#include "routing.hpp"
#include "strategies.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace reference {

/// The state of one running operation. Lives on the stack of the thread that runs it.
template <class Args>
class Operation {
 public:
  explicit Operation(const Call<Args>& call) noexcept
      : args(call.args),
        problem(make_problem(call.args)),
        parts(parts_of(plan_workspace(problem), call.workspace)),
        threads(std::min(max_lanes(), available_threads())),
        routing(route_rows(args.addressing, args.table, grouping(problem), threads, parts)) {}

  /// Runs the phases, in the caller alone where no more is worth it.
  template <class... Phases>
  Status run(Phases&... phases) {
    const std::array<Phase*, sizeof...(Phases)> all = {&phases...};
    const std::int64_t rows = args.addressing.num_tokens - routing.num_bare;
    run_phases(all, worth_threads(problem, rows) ? threads : 1);
    return {};
  }

  const Args& args;
  const Problem problem;
  const WorkspaceParts parts;
  const int threads;
  const Routing routing;

 private:
  static Grouping grouping(const Problem& problem) noexcept {
    const auto strategy = choose_strategy(problem);
    return strategy.ok() && *strategy == Strategy::routed ? Grouping::by_row : Grouping::by_entry;
  }
};

}  // namespace reference
RANKFOLD_NAMESPACE_END
