#include "linear.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

namespace {

// The general products into a delta of float32, then a scaled add.
Status apply_unfused(const ApplyLinearArgs& args, const Parts& parts, cudaStream_t stream) {
  Rows rows;
  RANKFOLD_CUDA_TRY(make_rows(args.addressing, args.table, parts, stream, &rows));
  const RowRange range = all_rows(args.addressing);
  const std::int64_t columns = total_out(args.table.shape);
  const TensorView delta =
      matrix(parts.delta(), DType::f32, range.num_rows, columns, args.y.device);
  RANKFOLD_CUDA_TRY(general_shrink(args.x, args.table, rows, range, parts.h(), {}, stream));
  RANKFOLD_CUDA_TRY(general_expand(parts.h(), args.table, rows, range, delta,
                                   {.mode = YMode::overwrite, .made_h = true, .unscaled = true},
                                   stream));
  return add_delta(parts.delta(), args.table, rows, range, args.y, args.options.y_mode, stream);
}

}  // namespace

Status CudaBackend::do_apply_linear(const ApplyLinearArgs& args, const Workspace& workspace,
                                    Stream stream) {
  const DeviceScope scope(traits_.index);
  RANKFOLD_CUDA_TRY(scope.status());
  const Problem problem = tuned(make_problem(args));
  const Parts parts(problem, workspace);
  if (is_unfused(problem)) return apply_unfused(args, parts, native(stream));
  LinearCall call(problem, traits_, args.addressing, args.table, parts, native(stream));
  RANKFOLD_CUDA_TRY(call.begin());
  RANKFOLD_CUDA_TRY(call.shrink(args.x, call.own_h(), {}));
  return call.expand(call.own_h(), args.y, true, true, false);
}

}  // namespace cuda
RANKFOLD_NAMESPACE_END
