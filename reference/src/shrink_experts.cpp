#include "experts_operation.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace reference {

namespace {

Status run(const Call<ShrinkExpertsArgs>& call) {
  ExpertsOperation operation(call);
  const ConstTensorView x = operation.x();
  const HiddenRows h = hidden_rows(operation.h());
  ShrinkPhase shrink(x, call.args.table, operation.routing.shrink, h, operation.threads,
                     operation.parts);
  CopyPhase copy = operation.copy_phase(h);
  return operation.run(shrink, copy);
}

}  // namespace

Status ReferenceBackend::do_shrink_experts(const ShrinkExpertsArgs& args,
                                           const Workspace& workspace, Stream stream) {
  return StreamQueue::of(stream).enqueue<Call<ShrinkExpertsArgs>>(&run, {args, workspace});
}

}  // namespace reference
RANKFOLD_NAMESPACE_END
