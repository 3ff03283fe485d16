#include "configurations.hpp"
#include "kernels/experts.hpp"
#include "kernels/pairs.hpp"
#include "operation.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

Status CudaBackend::do_apply_experts(const ApplyExpertsArgs& args, const Workspace& workspace,
                                     Stream stream) {
  const DeviceScope scope(traits_.index);
  RANKFOLD_CUDA_TRY(scope.status());
  const Problem problem = tuned(make_problem(args));
  const Rows rows = make_rows(args.addressing, args.table);
  const RowRange range = window(args.addressing);
  const Result<Strategy> strategy = do_supports(problem);
  if (!strategy.ok()) return strategy.status();
  if (*strategy != Strategy::general) {
    if (args.options.y_mode == YMode::overwrite) {
      RANKFOLD_CUDA_TRY(clear_rows_without_delta(args, rows, range, native(stream)));
    }
    const ExpertsConfiguration chosen = experts_configuration(problem);
    if (chosen.size == kRowBlocks || (chosen.size < 0 && prefers_pairs(problem))) {
      const Parts parts(problem, workspace);
      return apply_pairs(args, problem, parts.pairs(args.table.shape.num_experts),
                         prefill_device(traits_), chosen.parts, native(stream));
    }
    return fused_experts(args, problem, traits_.major >= 9 && args.options.overlap == Overlap::on,
                         native(stream));
  }
  const Parts parts(problem, workspace);
  const Hidden h = parts.h(range.first_row);
  RANKFOLD_CUDA_TRY(general_shrink(args.x, args.table, rows, range, h, {}, native(stream)));
  return general_expand(h, args.table, rows, range, args.y,
                        {.mode = args.options.y_mode, .with_bias = false, .made_h = true},
                        native(stream));
}

}  // namespace cuda
RANKFOLD_NAMESPACE_END
