#include "operation.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

Status CudaBackend::do_forward_embedding(const ForwardEmbeddingArgs& args, const Workspace& workspace,
                                         Stream stream) {
  const DeviceScope scope(traits_.index);
  RANKFOLD_CUDA_TRY(scope.status());
  const Parts parts(make_problem(args), workspace);
  Rows rows;
  RANKFOLD_CUDA_TRY(make_rows(args.addressing, args.table, parts, native(stream), &rows));
  const RowRange range = all_rows(args.addressing);
  const Hidden h = hidden_of(args.h);
  RANKFOLD_CUDA_TRY(general_gather(args.ids, args.table, rows, range, h, native(stream)));
  return general_expand(h, args.table, rows, range, args.y,
                        {.mode = args.options.y_mode, .with_bias = false, .made_h = true}, native(stream));
}

}  // namespace cuda
RANKFOLD_NAMESPACE_END
