#include "operation.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace reference {

namespace {

Status run(const Call<ExpandArgs>& call) {
  Operation operation(call);
  HiddenRows h{const_cast<float*>(static_cast<const float*>(call.args.h.data)),
               call.args.h.strides[0], true, false, false};  // only read
  ExpandPhase expand(h, call.args.table, call.args.addressing, operation.routing, call.args.y,
                     call.args.options.y_mode, true, operation.threads, operation.parts);
  return operation.run(expand);
}

}  // namespace

Status ReferenceBackend::do_expand(const ExpandArgs& args, const Workspace& workspace,
                                   Stream stream) {
  return StreamQueue::of(stream).enqueue<Call<ExpandArgs>>(&run, {args, workspace});
}

}  // namespace reference
RANKFOLD_NAMESPACE_END
