#include "naive_backend.hpp"

#include <algorithm>
#include <cstring>
#include <new>

namespace rankfold::conformance {

namespace {

struct NaiveStream {
  bool deferred = false;
  std::vector<std::function<void()>> work;
};

NaiveStream& queue(Stream stream) { return *static_cast<NaiveStream*>(stream.handle); }

void drain(NaiveStream& stream) {
  for (const auto& work : stream.work) work();
  stream.work.clear();
}

}  // namespace

Result<void*> NaiveBackend::do_allocate(std::size_t bytes, MemoryKind) {
  return ::operator new (bytes, std::align_val_t{256});
}
void NaiveBackend::do_deallocate(void* pointer, MemoryKind) noexcept {
  ::operator delete (pointer, std::align_val_t{256});
}

Status NaiveBackend::enqueue(Stream stream, std::function<void()> work, bool is_operation) {
  NaiveStream& target = queue(stream);
  if (!target.deferred || (is_operation && is(Mutation::runs_at_once))) {
    work();
  } else {
    target.work.push_back(std::move(work));
  }
  return {};
}

Status NaiveBackend::do_copy(void* destination, const void* source, std::size_t bytes, CopyKind,
                             Stream stream) {
  return enqueue(
      stream, [=] { std::memcpy(destination, source, bytes); }, false);
}
Status NaiveBackend::do_fill(void* destination, std::uint8_t value, std::size_t bytes,
                             Stream stream) {
  return enqueue(
      stream, [=] { std::memset(destination, value, bytes); }, false);
}

Result<Stream> NaiveBackend::do_create_stream(StreamMode mode) {
  return Stream{new NaiveStream{mode == StreamMode::worker, {}}};
}
void NaiveBackend::do_destroy_stream(Stream stream) noexcept {
  drain(queue(stream));
  delete static_cast<NaiveStream*>(stream.handle);
}
Status NaiveBackend::do_synchronize(Stream stream) {
  drain(queue(stream));
  return {};
}

// Every stream is drained in order by whoever waits, so an event has nothing to hold.
Result<Event> NaiveBackend::do_create_event() { return Event{this}; }
void NaiveBackend::do_destroy_event(Event) noexcept {}
Status NaiveBackend::do_record(Event, Stream stream) { return do_synchronize(stream); }
Status NaiveBackend::do_wait(Stream, Event) { return {}; }
Result<bool> NaiveBackend::do_query(Event) { return true; }
Status NaiveBackend::do_synchronize(Event) { return {}; }

int NaiveBackend::do_list_strategies(StrategyInfo* out, int capacity) const {
  constexpr Op kOps[] = {
      Op::shrink,          Op::expand,         Op::apply_linear,      Op::gather_shrink,
      Op::apply_embedding, Op::shrink_experts, Op::expand_experts,    Op::apply_experts,
      Op::forward,         Op::backward,       Op::forward_embedding, Op::backward_embedding};
  int count = 0;
  for (const Op op : kOps) {
    if (count < capacity) out[count] = {op, Strategy::general, "every problem", "loops"};
    ++count;
  }
  return count;
}

Result<Strategy> NaiveBackend::do_supports(const Problem& problem) const {
  if (problem.op > Op::backward_embedding) {
    return Status(StatusCode::unsupported, "naive does not have this operation");
  }
  const Strategy strategy = problem.options.strategy;
  if (strategy == Strategy::automatic || strategy == Strategy::general) return Strategy::general;
  if (is(Mutation::writes_before_refusing)) return Strategy::general;
  return Status(StatusCode::unsupported, "naive has general loops alone");
}

Result<std::uint64_t> NaiveBackend::do_workspace_bytes(const Problem& problem) const {
  const auto rank = static_cast<std::uint64_t>(problem.shape.max_rank);
  const auto rows = static_cast<std::uint64_t>(problem.bounds.rows);
  const std::uint64_t bytes =
      4 * rows * rank * static_cast<std::uint64_t>(problem.shape.num_slices) + 16;
  return is(Mutation::workspace_falls) && rows > 64 ? bytes / 8 : bytes;
}

Status NaiveBackend::do_group_tokens(const GroupTokensArgs& args, const LoraAddressing& grouped,
                                     void*, Stream stream) {
  return enqueue(stream, [this, args, grouped] {
    auto* const order = const_cast<std::int32_t*>(grouped.token_order);
    auto* const offsets = const_cast<std::int32_t*>(grouped.segment_offsets);
    auto* const slots = const_cast<std::int32_t*>(grouped.segment_slots);
    std::int32_t rows = 0, segments = 0;
    if (is(Mutation::groups_every_row)) {
      for (std::int64_t row = 0; row < args.num_tokens; ++row) {
        if (args.token_slots[row] < 0) order[rows++] = static_cast<std::int32_t>(row);
      }
    }
    for (std::int32_t slot = 0; slot < args.num_slots; ++slot) {
      const std::int32_t first = rows;
      for (std::int64_t row = 0; row < args.num_tokens; ++row) {
        if (args.token_slots[row] == slot) order[rows++] = static_cast<std::int32_t>(row);
      }
      if (rows == first) continue;
      if (is(Mutation::unstable_grouping)) std::reverse(order + first, order + rows);
      offsets[segments] = first;
      slots[segments++] = slot;
    }
    offsets[segments] = rows;
    *const_cast<std::int32_t*>(grouped.num_segments) = segments;
  });
}

}  // namespace rankfold::conformance
