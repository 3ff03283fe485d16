#include "operation.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

Status CudaBackend::do_expand(const ExpandArgs& args, const Workspace& workspace, Stream stream) {
  const DeviceScope scope(traits_.index);
  RANKFOLD_CUDA_TRY(scope.status());
  const Parts parts(make_problem(args), workspace);
  Rows rows;
  RANKFOLD_CUDA_TRY(make_rows(args.addressing, args.table, parts, native(stream), &rows));
  return general_expand(hidden_of(args.h), args.table, rows, all_rows(args.addressing), args.y,
                        {.mode = args.options.y_mode}, native(stream));
}

}  // namespace cuda
RANKFOLD_NAMESPACE_END
