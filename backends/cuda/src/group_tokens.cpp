#include "kernels/group_rows.hpp"
#include "operation.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

Status CudaBackend::do_group_tokens(const GroupTokensArgs& args, const LoraAddressing& grouped,
                                    void* scratch, Stream stream) {
  const DeviceScope scope(traits_.index);
  RANKFOLD_CUDA_TRY(scope.status());
  if (groups_in_one_launch(args.num_tokens, args.num_slots) &&
      group_rows_bytes(args.num_slots) <= traits_.shared_bytes) {
    const auto writable = [](const std::int32_t* p) { return const_cast<std::int32_t*>(p); };
    return group_rows_of_slots(
        args.token_slots, args.num_tokens, args.num_slots,
        {writable(grouped.token_order), writable(grouped.segment_offsets),
         writable(grouped.segment_slots), writable(grouped.num_segments), grouped.max_segments},
        traits_.major >= 9, native(stream));
  }
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
