#include "experts_operation.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace reference {

namespace {

Status run(const Call<ApplyExpertsArgs>& call) {
  ExpertsOperation operation(call);
  const ConstTensorView x = operation.x();
  const HiddenRows h = operation.hidden();
  ShrinkPhase shrink(x, call.args.table, operation.routing.shrink, h, operation.threads,
                     operation.parts);
  CopyPhase copy = operation.copy_phase(h);
  const TensorView y = operation.y();
  ExpandPhase expand(h, call.args.table, operation.strengths(), operation.routing.expand, y,
                     call.args.options.y_mode, false, operation.threads, operation.parts);
  return operation.run(shrink, copy, expand);
}

}  // namespace

Status ReferenceBackend::do_apply_experts(const ApplyExpertsArgs& args, const Workspace& workspace,
                                          Stream stream) {
  return StreamQueue::of(stream).enqueue<Call<ApplyExpertsArgs>>(&run, {args, workspace});
}

}  // namespace reference
RANKFOLD_NAMESPACE_END
