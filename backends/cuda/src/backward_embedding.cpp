#include "operation.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

Status CudaBackend::do_backward_embedding(const BackwardEmbeddingArgs& args,
                                          const Workspace& workspace, Stream stream) {
  const DeviceScope scope(traits_.index);
  RANKFOLD_CUDA_TRY(scope.status());
  const Problem problem = make_problem(args);
  const Parts parts(problem, workspace);
  Rows rows;
  RANKFOLD_CUDA_TRY(make_rows(args.addressing, args.table, parts, native(stream), &rows));
  const std::int64_t num_rows = args.addressing.num_tokens;
  const Hidden ds = (problem.outputs & kOutputDs) != 0 ? hidden_of(args.ds) : parts.ds();
  const Hidden h = (problem.outputs & kRecomputesH) != 0 ? parts.h() : hidden_of(args.h);
  const SlotRows slot_rows{parts.order(), parts.ends()};
  if ((problem.outputs & (kOutputDa | kOutputDb | kOutputDbias)) != 0) {
    RANKFOLD_CUDA_TRY(
        sort_by_slot(rows, num_rows, parts.counts(), parts.order(), parts.ends(), native(stream)));
  }
  if ((problem.outputs & kRecomputesH) != 0) {
    RANKFOLD_CUDA_TRY(general_gather(args.ids, args.table, rows, {0, num_rows}, h, native(stream)));
  }
  if ((problem.outputs & (kOutputDs | kOutputDa)) != 0) {
    RANKFOLD_CUDA_TRY(general_ds(args.dy, args.table, rows, num_rows, ds, native(stream)));
  }
  if ((problem.outputs & (kOutputDb | kOutputDbias)) != 0) {
    RANKFOLD_CUDA_TRY(
        general_db(h, args.dy, args.table, rows, slot_rows, args.grads, native(stream)));
  }
  if ((problem.outputs & kOutputDa) == 0) return {};
  return general_da_columns(ds, args.ids, args.table, slot_rows, args.grads, native(stream));
}

}  // namespace cuda
RANKFOLD_NAMESPACE_END
