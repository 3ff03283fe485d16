// apply_linear whose h is the caller's, with dropout on x.
#include "operation.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace reference {

namespace {

Status run(const Call<ForwardArgs>& call) {
  Operation operation(call);
  const HiddenRows h = hidden_rows(call.args.h);
  ShrinkPhase shrink(call.args.x, call.args.table, operation.routing, h, operation.threads,
                     operation.parts, &call.args.dropout);
  ExpandPhase expand(h, call.args.table, call.args.addressing, operation.routing, call.args.y,
                     call.args.options.y_mode, true, operation.threads, operation.parts);
  return operation.run(shrink, expand);
}

}  // namespace

Status ReferenceBackend::do_forward(const ForwardArgs& args, const Workspace& workspace,
                                    Stream stream) {
  return StreamQueue::of(stream).enqueue<Call<ForwardArgs>>(&run, {args, workspace});
}

}  // namespace reference
RANKFOLD_NAMESPACE_END
