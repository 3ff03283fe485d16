#include "backend.hpp"

#include <cstdlib>
#include <cstring>
#include <new>

#include "parallel.hpp"

#if defined(__linux__)
#include <sys/mman.h>
#endif

RANKFOLD_NAMESPACE_BEGIN
namespace reference {

namespace {

constexpr std::size_t kAlignment = 256;
// Large blocks start at a huge page, and ask for such pages: weights are read once a step, and with
// 4 KB pages the address translation would cost as much as the data.
constexpr std::size_t kHugePage = std::size_t{2} << 20;

struct CopyTask {
  void* destination;
  const void* source;
  std::size_t bytes;
};
struct FillTask {
  void* destination;
  std::size_t bytes;
  std::uint8_t value;
};

struct NoArguments {};

EventState& state_of(Event event) noexcept { return *static_cast<EventState*>(event.handle); }

}  // namespace

ReferenceBackend::ReferenceBackend() : LoraBackend("reference", Device{DeviceType::cpu, 0}) {}

Result<void*> ReferenceBackend::do_allocate(std::size_t bytes, MemoryKind) {
  const std::size_t alignment = bytes >= 2 * kHugePage ? kHugePage : kAlignment;
  if (bytes > SIZE_MAX - alignment) {
    return Status::format(StatusCode::out_of_memory, "allocate: %zu bytes are not to be had",
                          bytes);
  }
  void* const memory =
      std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (memory == nullptr) {
    return Status::format(StatusCode::out_of_memory, "allocate: %zu bytes are not to be had",
                          bytes);
  }
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  if (alignment == kHugePage) {
    madvise(memory, bytes / kHugePage * kHugePage, MADV_HUGEPAGE);  // a wish; no matter if refused
  }
#endif
  return memory;
}

void ReferenceBackend::do_deallocate(void* pointer, MemoryKind) noexcept { std::free(pointer); }

Status ReferenceBackend::do_copy(void* destination, const void* source, std::size_t bytes, CopyKind,
                                 Stream stream) {
  return StreamQueue::of(stream).enqueue<CopyTask>(
      [](const CopyTask& task) {
        std::memmove(task.destination, task.source, task.bytes);
        return Status();
      },
      {destination, source, bytes});
}

Status ReferenceBackend::do_fill(void* destination, std::uint8_t value, std::size_t bytes,
                                 Stream stream) {
  return StreamQueue::of(stream).enqueue<FillTask>(
      [](const FillTask& task) {
        std::memset(task.destination, task.value, task.bytes);
        return Status();
      },
      {destination, bytes, value});
}

Result<Stream> ReferenceBackend::do_create_stream(StreamMode mode) {
  if (mode == StreamMode::automatic) mode = StreamMode::inline_;
  if (mode != StreamMode::inline_ && mode != StreamMode::worker) {
    return Status::format(StatusCode::invalid_argument,
                          "create_stream: mode is %d; it should be automatic, inline_ or worker",
                          static_cast<int>(mode));
  }
  auto stream = streams_.create(mode);
  if (!stream.ok()) return stream;
  // The thread that will run the operations takes what it needs for TBB now.
  const Status status = StreamQueue::of(*stream).enqueue<NoArguments>(
      [](const NoArguments&) {
        prepare_thread();
        return Status();
      },
      {});
  if (status.ok()) return stream;
  streams_.destroy(*stream);
  return status;
}

void ReferenceBackend::do_destroy_stream(Stream stream) noexcept { streams_.destroy(stream); }

Status ReferenceBackend::do_synchronize(Stream stream) {
  return StreamQueue::of(stream).synchronize();
}

Result<Event> ReferenceBackend::do_create_event() { return Event{new EventState}; }

void ReferenceBackend::do_destroy_event(Event event) noexcept { delete &state_of(event); }

Status ReferenceBackend::do_record(Event event, Stream stream) {
  state_of(event).set(StreamQueue::of(stream).ticket());
  return {};
}

Status ReferenceBackend::do_wait(Stream stream, Event event) {
  return StreamQueue::of(stream).wait(state_of(event).get());
}

Result<bool> ReferenceBackend::do_query(Event event) { return state_of(event).get().complete(); }

Status ReferenceBackend::do_synchronize(Event event) {
  state_of(event).get().wait();
  return {};
}

}  // namespace reference
RANKFOLD_NAMESPACE_END
