#include "experts_operation.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace reference {

namespace {

Status run(const Call<ExpandExpertsArgs>& call) {
  ExpertsOperation operation(call);
  const ConstTensorView given = operation.h();
  const HiddenRows h{const_cast<float*>(static_cast<const float*>(given.data)), given.strides[0],
                     true, false, false};  // only read
  const TensorView y = operation.y();
  ExpandPhase expand(h, call.args.table, operation.strengths(), operation.routing.expand, y,
                     call.args.options.y_mode, false, operation.threads, operation.parts);
  return operation.run(expand);
}

}  // namespace

Status ReferenceBackend::do_expand_experts(const ExpandExpertsArgs& args,
                                           const Workspace& workspace, Stream stream) {
  return StreamQueue::of(stream).enqueue<Call<ExpandExpertsArgs>>(&run, {args, workspace});
}

}  // namespace reference
RANKFOLD_NAMESPACE_END
