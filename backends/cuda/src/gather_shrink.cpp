#include "linear.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

Status CudaBackend::do_gather_shrink(const GatherShrinkArgs& args, const Workspace& workspace,
                                     Stream stream) {
  const DeviceScope scope(traits_.index);
  RANKFOLD_CUDA_TRY(scope.status());
  const Problem problem = make_problem(args);
  const Parts parts(problem, workspace);
  LinearCall call(problem, traits_, args.addressing, args.table, parts, native(stream));
  RANKFOLD_CUDA_TRY(call.begin());
  return call.gather(args.ids, hidden_of(args.h));
}

}  // namespace cuda
RANKFOLD_NAMESPACE_END
