#include "operation.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace reference {

namespace {

Status run(const Call<GatherShrinkArgs>& call) {
  Operation operation(call);
  GatherPhase gather(call.args.ids, call.args.table, operation.routing, hidden_rows(call.args.h));
  return operation.run(gather);
}

}  // namespace

Status ReferenceBackend::do_gather_shrink(const GatherShrinkArgs& args, const Workspace& workspace,
                                          Stream stream) {
  return StreamQueue::of(stream).enqueue<Call<GatherShrinkArgs>>(&run, {args, workspace});
}

}  // namespace reference
RANKFOLD_NAMESPACE_END
