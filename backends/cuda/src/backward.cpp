#include "kernels/backward_tensor.hpp"
#include "operation.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

Status CudaBackend::do_backward(const BackwardArgs& args, const Workspace& workspace,
                                Stream stream) {
  const DeviceScope scope(traits_.index);
  RANKFOLD_CUDA_TRY(scope.status());
  const Problem problem = tuned(make_problem(args));
  const Parts parts(problem, workspace);
  Rows rows;
  RANKFOLD_CUDA_TRY(make_rows(args.addressing, args.table, parts, native(stream), &rows));
  const std::int64_t num_rows = args.addressing.num_tokens;
  const Hidden ds = (problem.outputs & kOutputDs) != 0 ? hidden_of(args.ds) : parts.ds();
  const Hidden h = (problem.outputs & kRecomputesH) != 0 ? parts.h() : hidden_of(args.h);
  const SlotRows slot_rows{parts.order(), parts.ends()};
  const Result<Strategy> strategy = do_supports(problem);
  RANKFOLD_CUDA_TRY(strategy.status());
  const bool by_tiles = strategy.value() == Strategy::tensor_core;
  const bool uniform = args.addressing.mode == AddressingMode::uniform;
  const bool sums = (problem.outputs & (kOutputDa | kOutputDb | kOutputDbias)) != 0;
  if (by_tiles ? !uniform : sums) {
    RANKFOLD_CUDA_TRY(
        sort_by_slot(rows, num_rows, parts.counts(), parts.order(), parts.ends(), native(stream)));
  }
  const DropoutMask dropout(args.dropout);
  if ((problem.outputs & kRecomputesH) != 0) {
    RANKFOLD_CUDA_TRY(
        general_shrink(args.x, args.table, rows, {0, num_rows}, h, dropout, native(stream)));
  }
  const bool has_dx = (problem.outputs & kOutputDx) != 0;
  if (by_tiles) {
    TensorBackward call;
    call.args = &args;
    call.tiling = tile_backward(problem);
    call.partials = parts.backward_partials();
    call.runs = {uniform ? nullptr : parts.order(), uniform ? nullptr : parts.ends(),
                 args.table.shape.num_slots, args.addressing.uniform_slot,
                 static_cast<int>(num_rows)};
    call.rows = rows;
    call.h = h;
    call.ds = ds;
    call.outputs = problem.outputs;
    // dx is rounded once, after all slices: only where one launch has them all does the second pass
    // make it.
    call.makes_dx = has_dx && args.dx.dtype == args.table.shape.a_dtype &&
                    args.table.shape.num_slices * args.table.shape.max_rank <= kDxMaxRanks;
    // The kernel that makes dx else reads ds of every row, whether the caller asked for it or not.
    if (has_dx && !call.makes_dx) call.outputs |= kOutputDs;
    RANKFOLD_CUDA_TRY(tensor_backward(call, native(stream)));
    if (!has_dx || call.makes_dx) return {};
    return general_dx(ds, args.table, rows, num_rows, args.dx, args.options.y_mode, dropout,
                      native(stream));
  }
  if ((problem.outputs & (kOutputDs | kOutputDx | kOutputDa)) != 0) {
    RANKFOLD_CUDA_TRY(general_ds(args.dy, args.table, rows, num_rows, ds, native(stream)));
  }
  if ((problem.outputs & (kOutputDb | kOutputDbias)) != 0) {
    RANKFOLD_CUDA_TRY(
        general_db(h, args.dy, args.table, rows, slot_rows, args.grads, native(stream)));
  }
  if ((problem.outputs & kOutputDa) != 0) {
    RANKFOLD_CUDA_TRY(
        general_da(ds, args.x, args.table, slot_rows, args.grads, dropout, native(stream)));
  }
  if (!has_dx) return {};
  return general_dx(ds, args.table, rows, num_rows, args.dx, args.options.y_mode, dropout,
                    native(stream));
}

}  // namespace cuda
RANKFOLD_NAMESPACE_END
