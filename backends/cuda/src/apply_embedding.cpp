#include "linear.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

Status CudaBackend::do_apply_embedding(const ApplyEmbeddingArgs& args, const Workspace& workspace,
                                       Stream stream) {
  const DeviceScope scope(traits_.index);
  RANKFOLD_CUDA_TRY(scope.status());
  const Problem problem = tuned(make_problem(args));
  const Parts parts(problem, workspace);
  LinearCall call(problem, traits_, args.addressing, args.table, parts, native(stream));
  RANKFOLD_CUDA_TRY(call.begin());
  RANKFOLD_CUDA_TRY(call.gather(args.ids, call.own_h()));
  return call.expand(call.own_h(), args.y, true, false, false);
}

}  // namespace cuda
RANKFOLD_NAMESPACE_END
