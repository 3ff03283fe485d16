#include "operation.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

Status CudaBackend::do_apply_experts(const ApplyExpertsArgs& args, const Workspace& workspace, Stream stream) {
  const DeviceScope scope(traits_.index);
  RANKFOLD_CUDA_TRY(scope.status());
  const Parts parts(make_problem(args), workspace);
  const Rows rows = make_rows(args.addressing, args.table);
  const RowRange range = window(args.addressing);
  const Hidden h = parts.h(range.first_row);
  RANKFOLD_CUDA_TRY(general_shrink(args.x, args.table, rows, range, h, {}, native(stream)));
  return general_expand(h, args.table, rows, range, args.y,
                        {.mode = args.options.y_mode, .with_bias = false, .made_h = true}, native(stream));
}

}  // namespace cuda
RANKFOLD_NAMESPACE_END
