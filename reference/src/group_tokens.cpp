#include "backend.hpp"
#include "routing.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace reference {

namespace {

struct GroupTask {
  GroupTokensArgs args;
  LoraAddressing grouped;
  std::int32_t* ends;  // [num_slots]
};

Status run(const GroupTask& task) {
  const auto writable = [](const std::int32_t* p) { return const_cast<std::int32_t*>(p); };
  std::int32_t* const offsets = writable(task.grouped.segment_offsets);
  std::int32_t* const slots = writable(task.grouped.segment_slots);
  sort_by_slot(task.args.token_slots, task.args.num_tokens, task.args.num_slots, task.ends,
               writable(task.grouped.token_order));
  std::int32_t num_segments = 0;
  std::int32_t begin = 0;
  for (std::int32_t slot = 0; slot < task.args.num_slots; ++slot) {
    const std::int32_t end = task.ends[slot];
    if (end == begin) continue;
    offsets[num_segments] = begin;
    slots[num_segments++] = slot;
    begin = end;
  }
  offsets[num_segments] = begin;
  *writable(task.grouped.num_segments) = num_segments;
  return {};
}

}  // namespace

Status ReferenceBackend::do_group_tokens(const GroupTokensArgs& args, const LoraAddressing& grouped,
                                         void* scratch, Stream stream) {
  return StreamQueue::of(stream).enqueue<GroupTask>(
      &run, {args, grouped, static_cast<std::int32_t*>(scratch)});
}

}  // namespace reference
RANKFOLD_NAMESPACE_END
