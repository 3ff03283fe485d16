#include "operation.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

Status CudaBackend::do_group_tokens(const GroupTokensArgs& args, const LoraAddressing& grouped, void* scratch,
                                    Stream stream) {
  const DeviceScope scope(traits_.index);
  RANKFOLD_CUDA_TRY(scope.status());
  Rows rows;
  rows.num_slots = args.num_slots;
  rows.token_slots = args.token_slots;
  auto* const ends = static_cast<std::int32_t*>(scratch);
  auto* const order = const_cast<std::int32_t*>(grouped.token_order);
  RANKFOLD_CUDA_TRY(
      sort_by_slot(rows, args.num_tokens, ends + args.num_slots, order, ends, native(stream)));
  return make_segments(ends, args.num_slots, grouped, native(stream));
}

}  // namespace cuda
RANKFOLD_NAMESPACE_END
