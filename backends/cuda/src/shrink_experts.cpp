#include "operation.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

Status CudaBackend::do_shrink_experts(const ShrinkExpertsArgs& args, const Workspace&,
                                      Stream stream) {
  const DeviceScope scope(traits_.index);
  RANKFOLD_CUDA_TRY(scope.status());
  return general_shrink(args.x, args.table, make_rows(args.addressing, args.table),
                        window(args.addressing), hidden_of(args.h), {}, native(stream));
}

}  // namespace cuda
RANKFOLD_NAMESPACE_END
