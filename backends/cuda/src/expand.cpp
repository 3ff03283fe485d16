#include "linear.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

Status CudaBackend::do_expand(const ExpandArgs& args, const Workspace& workspace, Stream stream) {
  const DeviceScope scope(traits_.index);
  RANKFOLD_CUDA_TRY(scope.status());
  const Problem problem = tuned(make_problem(args));
  const Parts parts(problem, workspace);
  LinearCall call(problem, traits_, args.addressing, args.table, parts, native(stream));
  RANKFOLD_CUDA_TRY(call.begin());
  return call.expand(hidden_of(args.h), args.y, false, true, false);
}

}  // namespace cuda
RANKFOLD_NAMESPACE_END
