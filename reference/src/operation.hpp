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
        threads(std::min(useful_threads(problem), available_threads())),
        route(args.addressing, args.table, grouping(problem), threads, parts) {}

  /// Runs routing, then the phases given.
  template <class... Phases>
  Status run(Phases&... phases) {
    const std::array<Phase*, sizeof...(Phases) + 1> all = {&route, &phases...};
    run_phases(all, threads);
    return {};
  }

  const Args& args;
  const Problem problem;
  const WorkspaceParts parts;
  const int threads;
  RoutePhase route;

 private:
  static Grouping grouping(const Problem& problem) noexcept {
    const auto strategy = choose_strategy(problem);
    return strategy.ok() && *strategy == Strategy::routed ? Grouping::by_row : Grouping::by_entry;
  }
};

}  // namespace reference
RANKFOLD_NAMESPACE_END
