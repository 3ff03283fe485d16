// What backward and backward_embedding have in common: plan, route, and what their phases share.
#pragma once

#include <algorithm>

#include "backend.hpp"
#include "backward_phases.hpp"
#include "operation.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace reference {

/// The state of one running backward. Lives on the stack of the thread that runs it.
template <class Args>
class BackwardOperation {
 public:
  explicit BackwardOperation(const Call<Args>& call) noexcept
      : args(call.args),
        problem(make_problem(call.args)),
        workspace(parts_of(plan_workspace(problem), call.workspace)),
        threads(std::min(max_lanes(), available_threads())),
        parts(training_parts(plan_training(problem), workspace.training)),
        routing(route_training(args.addressing, args.table, threads, workspace, parts)),
        made_h(hidden_rows(workspace, args.table.shape)),
        backward{.dy = args.dy,
                 .table = args.table,
                 .addressing = args.addressing,
                 .grads = args.grads,
                 .routing = routing,
                 .parts = parts,
                 .workspace = workspace,
                 .outputs = problem.outputs,
                 .h = args.h.data != nullptr ? given_rows(args.h) : made_h,
                 .ds = args.ds.data != nullptr
                           ? hidden_rows(args.ds)
                           : HiddenRows{parts.ds, made_h.stride, false, false}} {}

  /// What recomputes h sees these rows: none where nobody needs h.
  Routing rows_for_h() const noexcept { return recomputes_h(problem) ? routing.rows : Routing{}; }

  template <class... Phases>
  Status run(Phases&... phases) {
    const std::array<Phase*, sizeof...(Phases)> all = {&phases...};
    const std::int64_t rows = args.addressing.num_tokens - routing.rows.num_bare;
    run_phases(all, worth_threads(problem, rows) ? threads : 1);
    return {};
  }

  const Args& args;
  const Problem problem;
  const WorkspaceParts workspace;
  const int threads;
  const TrainingParts parts;
  const TrainingRouting routing;
  const HiddenRows made_h;
  const Backward backward;

 private:
  static HiddenRows given_rows(const ConstTensorView& h) noexcept {
    return {const_cast<float*>(static_cast<const float*>(h.data)), h.strides[0], true, false};
  }
};

}  // namespace reference
RANKFOLD_NAMESPACE_END
