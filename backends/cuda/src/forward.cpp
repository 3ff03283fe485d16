#include "linear.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

Status CudaBackend::do_forward(const ForwardArgs& args, const Workspace& workspace, Stream stream) {
  const DeviceScope scope(traits_.index);
  RANKFOLD_CUDA_TRY(scope.status());
  const Problem problem = tuned(make_problem(args));
  const Parts parts(problem, workspace);
  LinearCall call(problem, traits_, args.addressing, args.table, parts, native(stream));
  RANKFOLD_CUDA_TRY(call.begin());
  const Hidden h = hidden_of(args.h);
  RANKFOLD_CUDA_TRY(call.shrink(args.x, h, DropoutMask(args.dropout)));
  return call.expand(h, args.y, true, true, true);
}

}  // namespace cuda
RANKFOLD_NAMESPACE_END
