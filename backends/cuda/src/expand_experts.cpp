#include "operation.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

Status CudaBackend::do_expand_experts(const ExpandExpertsArgs& args, const Workspace&,
                                      Stream stream) {
  const DeviceScope scope(traits_.index);
  RANKFOLD_CUDA_TRY(scope.status());
  return general_expand(hidden_of(args.h), args.table, make_rows(args.addressing, args.table),
                        window(args.addressing), args.y,
                        {.mode = args.options.y_mode, .with_bias = false}, native(stream));
}

}  // namespace cuda
RANKFOLD_NAMESPACE_END
