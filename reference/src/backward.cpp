// Gradients of a linear target: one pass over dy, one over x and dx.
#include "backward_operation.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace reference {

namespace {

Status run(const Call<BackwardArgs>& call) {
  const BackwardArgs& args = call.args;
  BackwardOperation operation(call);
  const Routing for_h = operation.rows_for_h();
  ShrinkPhase shrink(args.x, args.table, for_h, operation.made_h, operation.threads,
                     operation.workspace, &args.dropout);
  OutputPhase output(operation.backward);
  SettlePhase settle(operation.backward, args.dx, args.options.y_mode);
  InputPhase input(operation.backward, args.x, args.dx, args.options.y_mode, args.dropout);
  InputPartsPhase input_parts(operation.backward);
  return operation.run(shrink, output, settle, input, input_parts);
}

}  // namespace

Status ReferenceBackend::do_backward(const BackwardArgs& args, const Workspace& workspace,
                                     Stream stream) {
  return StreamQueue::of(stream).enqueue<Call<BackwardArgs>>(&run, {args, workspace});
}

}  // namespace reference
RANKFOLD_NAMESPACE_END
