#include "linear.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

Status CudaBackend::do_shrink(const ShrinkArgs& args, const Workspace& workspace, Stream stream) {
  const DeviceScope scope(traits_.index);
  RANKFOLD_CUDA_TRY(scope.status());
  const Problem problem = tuned(make_problem(args));
  const Parts parts(problem, workspace);
  LinearCall call(problem, traits_, args.addressing, args.table, parts, native(stream));
  RANKFOLD_CUDA_TRY(call.begin());
  RANKFOLD_CUDA_TRY(call.shrink(args.x, hidden_of(args.h), {}));
  return call.finish_h(hidden_of(args.h));
}

}  // namespace cuda
RANKFOLD_NAMESPACE_END
