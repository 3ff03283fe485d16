#include "operation.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace reference {

namespace {

Status run(const Call<ApplyLinearArgs>& call) {
  Operation operation(call);
  const HiddenRows h = hidden_rows(operation.parts, call.args.table.shape);
  ShrinkPhase shrink(call.args.x, call.args.table, operation.routing, h, operation.threads,
                     operation.parts);
  ExpandPhase expand(h, call.args.table, call.args.addressing, operation.routing, call.args.y,
                     call.args.options.y_mode, true, operation.threads, operation.parts);
  return operation.run(shrink, expand);
}

}  // namespace

Status ReferenceBackend::do_apply_linear(const ApplyLinearArgs& args, const Workspace& workspace,
                                         Stream stream) {
  return StreamQueue::of(stream).enqueue<Call<ApplyLinearArgs>>(&run, {args, workspace});
}

}  // namespace reference
RANKFOLD_NAMESPACE_END
