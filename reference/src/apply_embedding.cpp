#include "operation.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace reference {

namespace {

Status run(const Call<ApplyEmbeddingArgs>& call) {
  Operation operation(call);
  const HiddenRows h = hidden_rows(operation.parts, call.args.table.shape);
  GatherPhase gather(call.args.ids, call.args.table, operation.routing, h);
  ExpandPhase expand(h, call.args.table, call.args.addressing, operation.routing, call.args.y,
                     call.args.options.y_mode, false, operation.threads, operation.parts);
  return operation.run(gather, expand);
}

}  // namespace

Status ReferenceBackend::do_apply_embedding(const ApplyEmbeddingArgs& args,
                                            const Workspace& workspace, Stream stream) {
  return StreamQueue::of(stream).enqueue<Call<ApplyEmbeddingArgs>>(&run, {args, workspace});
}

}  // namespace reference
RANKFOLD_NAMESPACE_END
