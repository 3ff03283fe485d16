// apply_embedding whose h is the caller's.
#include "operation.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace reference {

namespace {

Status run(const Call<ForwardEmbeddingArgs>& call) {
  Operation operation(call);
  const HiddenRows h = hidden_rows(call.args.h);
  GatherPhase gather(call.args.ids, call.args.table, operation.routing, h);
  ExpandPhase expand(h, call.args.table, call.args.addressing, operation.routing, call.args.y,
                     call.args.options.y_mode, false, operation.threads, operation.parts);
  return operation.run(gather, expand);
}

}  // namespace

Status ReferenceBackend::do_forward_embedding(const ForwardEmbeddingArgs& args,
                                              const Workspace& workspace, Stream stream) {
  return StreamQueue::of(stream).enqueue<Call<ForwardEmbeddingArgs>>(&run, {args, workspace});
}

}  // namespace reference
RANKFOLD_NAMESPACE_END
