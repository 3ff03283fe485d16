#include "fake_backend.hpp"

#include <cstdio>
#include <cstring>
#include <memory>
#include <new>
#include <utility>

#include "fake_operations.hpp"
#include "fake_stream.hpp"

namespace rankfold::testing {

namespace {

constexpr std::align_val_t kAlignment{256};
constexpr std::int32_t kNumDevices = 2;

FakeStream& stream_of(Stream stream) { return *static_cast<FakeStream*>(stream.handle); }
FakeEvent& event_of(Event event) { return *static_cast<FakeEvent*>(event.handle); }

Status injected(const char* call) {
  return Status::format(StatusCode::device_error, "fake: %s was made to fail", call);
}

TensorView workspace_h(const AdapterTableView& table, std::int64_t rows,
                       const Workspace& workspace) {
  return matrix(workspace.data, DType::f32, rows,
                std::int64_t{table.shape.num_slices} * table.shape.max_rank);
}

}  // namespace

FakeBackend::FakeBackend(std::int32_t device_index)
    : LoraBackend("fake", Device{DeviceType::cpu, device_index}) {}

FakeBackend::~FakeBackend() = default;

FakeCounters FakeBackend::counters() const {
  const std::lock_guard lock(mutex_);
  return counters_;
}

void FakeBackend::fail(FakeCall call, int skip, int count) {
  const std::lock_guard lock(mutex_);
  if (count > 0) {
    failures_[call] = {skip, count};
  } else {
    failures_.erase(call);
  }
}

void FakeBackend::limit_device_bytes(std::int64_t bytes) {
  const std::lock_guard lock(mutex_);
  device_limit_ = bytes;
}

void FakeBackend::set_supports(std::function<std::optional<Status>(const Problem&)> answer) {
  const std::lock_guard lock(mutex_);
  supports_ = std::move(answer);
}

void FakeBackend::hold(Stream stream) { stream_of(stream).hold(); }
void FakeBackend::release(Stream stream) { stream_of(stream).release(); }
void FakeBackend::set_delay(Stream stream, std::chrono::microseconds delay) {
  stream_of(stream).set_delay(delay);
}
void FakeBackend::enqueue(Stream stream, std::function<void()> task) {
  stream_of(stream).enqueue([task = std::move(task)]() -> Status {
    task();
    return {};
  });
}

bool FakeBackend::fails(FakeCall call) {
  const std::lock_guard lock(mutex_);
  const auto found = failures_.find(call);
  if (found == failures_.end()) return false;
  if (found->second.skip-- > 0) return false;
  if (--found->second.count <= 0)
    failures_.erase(found);
  else
    found->second.skip = 0;
  return true;
}

Result<void*> FakeBackend::do_allocate(std::size_t bytes, MemoryKind kind) {
  const bool made_to_fail = fails(FakeCall::allocate);
  const std::lock_guard lock(mutex_);
  const auto signed_bytes = static_cast<std::int64_t>(bytes);
  const bool device = kind == MemoryKind::device;
  if (made_to_fail ||
      (device && device_limit_ > 0 && counters_.device_bytes + signed_bytes > device_limit_)) {
    return Status::format(StatusCode::out_of_memory, "fake: no memory for %zu bytes", bytes);
  }
  void* const pointer = ::operator new(bytes, kAlignment);
  // What nobody wrote is not a number in any dtype.
  std::memset(pointer, 0xff, bytes);
  sizes_[pointer] = bytes;
  (device ? counters_.device_allocations : counters_.pinned_allocations) += 1;
  (device ? counters_.device_bytes : counters_.pinned_bytes) += signed_bytes;
  return pointer;
}

void FakeBackend::do_deallocate(void* pointer, MemoryKind kind) noexcept {
  {
    const std::lock_guard lock(mutex_);
    const auto found = sizes_.find(pointer);
    const auto bytes = static_cast<std::int64_t>(found->second);
    sizes_.erase(found);
    const bool device = kind == MemoryKind::device;
    (device ? counters_.device_frees : counters_.pinned_frees) += 1;
    (device ? counters_.device_bytes : counters_.pinned_bytes) -= bytes;
  }
  ::operator delete(pointer, kAlignment);
}

Status FakeBackend::do_copy(void* destination, const void* source, std::size_t bytes, CopyKind,
                            Stream stream) {
  if (fails(FakeCall::copy)) return injected("copy");
  {
    const std::lock_guard lock(mutex_);
    ++counters_.copies;
    counters_.copied_bytes += static_cast<std::int64_t>(bytes);
  }
  stream_of(stream).enqueue([=]() -> Status {
    std::memcpy(destination, source, bytes);
    return {};
  });
  return {};
}

Status FakeBackend::do_fill(void* destination, std::uint8_t value, std::size_t bytes,
                            Stream stream) {
  if (fails(FakeCall::fill)) return injected("fill");
  {
    const std::lock_guard lock(mutex_);
    ++counters_.fills;
  }
  stream_of(stream).enqueue([=]() -> Status {
    std::memset(destination, value, bytes);
    return {};
  });
  return {};
}

Result<Stream> FakeBackend::do_create_stream(StreamMode mode) {
  auto stream =
      std::make_unique<FakeStream>(mode == StreamMode::automatic ? StreamMode::inline_ : mode);
  const std::lock_guard lock(mutex_);
  ++counters_.streams;
  return Stream{stream.release()};
}

void FakeBackend::do_destroy_stream(Stream stream) noexcept {
  delete &stream_of(stream);
  const std::lock_guard lock(mutex_);
  --counters_.streams;
}

Status FakeBackend::do_synchronize(Stream stream) {
  if (fails(FakeCall::synchronize)) return injected("synchronize");
  return stream_of(stream).synchronize();
}

Result<Event> FakeBackend::do_create_event() {
  if (fails(FakeCall::create_event)) return injected("create_event");
  auto event = std::make_unique<FakeEvent>();
  const std::lock_guard lock(mutex_);
  ++counters_.events;
  return Event{event.release()};
}

void FakeBackend::do_destroy_event(Event event) noexcept {
  // Streams that still have to complete a record hold the completion, not the event.
  delete &event_of(event);
  const std::lock_guard lock(mutex_);
  --counters_.events;
}

Status FakeBackend::do_record(Event event, Stream stream) {
  if (fails(FakeCall::record)) return injected("record");
  stream_of(stream).enqueue([completion = event_of(event).record()]() -> Status {
    completion->complete();
    return {};
  });
  return {};
}

Status FakeBackend::do_wait(Stream stream, Event event) {
  if (fails(FakeCall::wait)) return injected("wait");
  const auto completion = event_of(event).last();
  if (completion == nullptr) return {};
  stream_of(stream).enqueue([completion]() -> Status {
    completion->wait();
    return {};
  });
  return {};
}

Result<bool> FakeBackend::do_query(Event event) {
  if (fails(FakeCall::query)) return injected("query");
  const auto completion = event_of(event).last();
  return completion == nullptr || completion->done();
}

Status FakeBackend::do_synchronize(Event event) {
  if (fails(FakeCall::synchronize)) return injected("synchronize");
  if (const auto completion = event_of(event).last(); completion != nullptr) completion->wait();
  return {};
}

int FakeBackend::do_list_strategies(StrategyInfo* out, int capacity) const {
  static constexpr Op kSupported[] = {Op::shrink, Op::expand, Op::apply_linear, Op::gather_shrink,
                                      Op::apply_embedding};
  int count = 0;
  for (const Op op : kSupported) {
    if (count < capacity) out[count] = {op, Strategy::general, "every problem", "serial"};
    ++count;
  }
  return count;
}

Result<Strategy> FakeBackend::do_supports(const Problem& problem) const {
  std::function<std::optional<Status>(const Problem&)> answer;
  {
    const std::lock_guard lock(mutex_);
    answer = supports_;
  }
  if (answer) {
    if (const auto status = answer(problem)) {
      if (status->ok()) return Strategy::general;
      return *status;
    }
  }
  switch (problem.op) {
    case Op::group_tokens:
    case Op::shrink:
    case Op::expand:
    case Op::apply_linear:
    case Op::gather_shrink:
    case Op::apply_embedding:
      break;
    default:
      return Status::format(StatusCode::unsupported, "%s: the fake backend has no such operation",
                            to_string(problem.op));
  }
  if (problem.options.strategy != Strategy::automatic &&
      problem.options.strategy != Strategy::general) {
    return Status::format(StatusCode::unsupported,
                          "%s: strategy is %s; the fake backend has only general",
                          to_string(problem.op), to_string(problem.options.strategy));
  }
  return Strategy::general;
}

Result<std::uint64_t> FakeBackend::do_workspace_bytes(const Problem& problem) const {
  if (problem.op != Op::apply_linear && problem.op != Op::apply_embedding) return std::uint64_t{0};
  return static_cast<std::uint64_t>(problem.bounds.rows * problem.shape.num_slices *
                                    problem.shape.max_rank) *
         sizeof(float);
}

Status FakeBackend::launch(Stream stream, std::function<void()> task) {
  {
    const std::lock_guard lock(mutex_);
    ++counters_.launches;
  }
  enqueue(stream, std::move(task));
  return {};
}

Status FakeBackend::do_group_tokens(const GroupTokensArgs& args, const LoraAddressing& grouped,
                                    void* scratch, Stream stream) {
  return launch(stream, [=] { run_group_tokens(args, grouped, scratch); });
}

Status FakeBackend::do_shrink(const ShrinkArgs& args, const Workspace&, Stream stream) {
  return launch(stream, [=] { run_shrink(args.x, args.table, args.addressing, args.h); });
}

Status FakeBackend::do_expand(const ExpandArgs& args, const Workspace&, Stream stream) {
  return launch(stream, [=] {
    run_expand(args.h, args.table, args.addressing, args.y, args.options.y_mode);
  });
}

Status FakeBackend::do_apply_linear(const ApplyLinearArgs& args, const Workspace& workspace,
                                    Stream stream) {
  const TensorView h = workspace_h(args.table, args.addressing.num_tokens, workspace);
  return launch(stream, [=] {
    run_shrink(args.x, args.table, args.addressing, h);
    run_expand(h, args.table, args.addressing, args.y, args.options.y_mode);
  });
}

Status FakeBackend::do_gather_shrink(const GatherShrinkArgs& args, const Workspace&,
                                     Stream stream) {
  return launch(stream, [=] { run_gather_shrink(args.ids, args.table, args.addressing, args.h); });
}

Status FakeBackend::do_apply_embedding(const ApplyEmbeddingArgs& args, const Workspace& workspace,
                                       Stream stream) {
  const TensorView h = workspace_h(args.table, args.addressing.num_tokens, workspace);
  return launch(stream, [=] {
    run_gather_shrink(args.ids, args.table, args.addressing, h);
    run_expand(h, args.table, args.addressing, args.y, args.options.y_mode);
  });
}

const BackendDescriptor& fake_descriptor() noexcept {
  static const BackendDescriptor descriptor{
      "fake", kBackendInterfaceVersion, 0,
      [](BackendDescription* description) {
        description->usable = 1;
        description->num_devices = kNumDevices;
        for (std::int32_t i = 0; i < kNumDevices; ++i) {
          description->devices[i].index = i;
          std::snprintf(description->devices[i].name, sizeof(description->devices[i].name),
                        "fake device %d", i);
        }
        std::snprintf(description->detail, sizeof(description->detail), "serial loops for tests");
      },
      [](std::int32_t device_index, LoraBackend** backend) -> Status {
        if (device_index < 0 || device_index >= kNumDevices) {
          return Status::format(StatusCode::unavailable,
                                "fake: device index is %d; it should be 0 to %d", device_index,
                                kNumDevices - 1);
        }
        *backend = new FakeBackend(device_index);
        return {};
      }};
  return descriptor;
}

}  // namespace rankfold::testing
