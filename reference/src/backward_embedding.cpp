// Gradients of an embedding: one pass over dy, then columns of da by id.
#include "backward_operation.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace reference {

namespace {

Status run(const Call<BackwardEmbeddingArgs>& call) {
  const BackwardEmbeddingArgs& args = call.args;
  BackwardOperation operation(call);
  const Routing for_h = operation.rows_for_h();
  const TensorView no_dx;
  GatherPhase gather(args.ids, args.table, for_h, operation.made_h);
  OutputPhase output(operation.backward);
  SettlePhase settle(operation.backward, no_dx, YMode::accumulate);
  SortIdsPhase sort(operation.backward, args.ids);
  ColumnsPhase columns(operation.backward, args.ids);
  return operation.run(gather, output, settle, sort, columns);
}

}  // namespace

Status ReferenceBackend::do_backward_embedding(const BackwardEmbeddingArgs& args,
                                               const Workspace& workspace, Stream stream) {
  return StreamQueue::of(stream).enqueue<Call<BackwardEmbeddingArgs>>(&run, {args, workspace});
}

}  // namespace reference
RANKFOLD_NAMESPACE_END
