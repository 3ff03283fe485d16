#include "operation.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace reference {

namespace {

Status run(const Call<ShrinkArgs>& call) {
  Operation operation(call);
  ShrinkPhase shrink(call.args.x, call.args.table, operation.routing, hidden_rows(call.args.h),
                     operation.threads, operation.parts);
  return operation.run(shrink);
}

}  // namespace

Status ReferenceBackend::do_shrink(const ShrinkArgs& args, const Workspace& workspace,
                                   Stream stream) {
  return StreamQueue::of(stream).enqueue<Call<ShrinkArgs>>(&run, {args, workspace});
}

}  // namespace reference
RANKFOLD_NAMESPACE_END
