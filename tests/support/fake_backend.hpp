// A small backend for tests: no Eigen, no TBB, plain serial loops that accumulate in float64. Its
// streams hold, slow down and fail on demand; its allocations, copies and launches are counted.
// Everything synchronises by std::mutex, so a thread sanitizer can judge core and pool on it.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>

#include "rankfold/backend.hpp"
#include "rankfold/registry.hpp"

namespace rankfold::testing {

/// What the backend did so far.
struct FakeCounters {
  std::int64_t device_allocations = 0;
  std::int64_t device_frees = 0;
  std::int64_t pinned_allocations = 0;
  std::int64_t pinned_frees = 0;
  std::int64_t device_bytes = 0;  ///< live
  std::int64_t pinned_bytes = 0;  ///< live
  std::int64_t copies = 0;
  std::int64_t copied_bytes = 0;
  std::int64_t fills = 0;
  std::int64_t launches = 0;  ///< operations that reached the backend
  std::int64_t streams = 0;   ///< live
  std::int64_t events = 0;    ///< live
};

/// Which calls can be made to fail.
enum class FakeCall { allocate, copy, fill, record, wait, query, synchronize, create_event };

class FakeBackend final : public LoraBackend {
 public:
  explicit FakeBackend(std::int32_t device_index = 0);
  /// All streams, events and memory must be gone: counters() tells a test beforehand.
  ~FakeBackend() override;

  FakeCounters counters() const;

  /// After `skip` more calls, the next `count` fail: allocate with out_of_memory, the others with
  /// device_error. They fail at the call, before anything is enqueued. A
  /// count of 0 ends it.
  void fail(FakeCall call, int skip, int count = 1);
  /// Allocations beyond this sum of live device bytes fail; 0: no limit.
  void limit_device_bytes(std::int64_t bytes);
  /// Asked first by supports(): nothing leaves it to the backend, ok claims support.
  void set_supports(std::function<std::optional<Status>(const Problem&)> answer);

  /// Worker streams only: nothing further of the stream starts until release().
  void hold(Stream stream);
  void release(Stream stream);
  void set_delay(Stream stream, std::chrono::microseconds delay);
  /// Enqueues a function of the test.
  void enqueue(Stream stream, std::function<void()> task);

 protected:
  Result<void*> do_allocate(std::size_t bytes, MemoryKind kind) override;
  void do_deallocate(void* pointer, MemoryKind kind) noexcept override;
  Status do_copy(void* destination, const void* source, std::size_t bytes, CopyKind kind,
                 Stream stream) override;
  Status do_fill(void* destination, std::uint8_t value, std::size_t bytes, Stream stream) override;
  /// automatic is inline_, as in the reference.
  Result<Stream> do_create_stream(StreamMode mode) override;
  void do_destroy_stream(Stream stream) noexcept override;
  Status do_synchronize(Stream stream) override;
  Result<Event> do_create_event() override;
  void do_destroy_event(Event event) noexcept override;
  Status do_record(Event event, Stream stream) override;
  Status do_wait(Stream stream, Event event) override;
  Result<bool> do_query(Event event) override;
  Status do_synchronize(Event event) override;

  int do_list_strategies(StrategyInfo* out, int capacity) const override;
  Result<Strategy> do_supports(const Problem& problem) const override;
  Result<std::uint64_t> do_workspace_bytes(const Problem& problem) const override;

  Status do_group_tokens(const GroupTokensArgs& args, const LoraAddressing& grouped, void* scratch,
                         Stream stream) override;
  Status do_shrink(const ShrinkArgs& args, const Workspace& workspace, Stream stream) override;
  Status do_expand(const ExpandArgs& args, const Workspace& workspace, Stream stream) override;
  Status do_apply_linear(const ApplyLinearArgs& args, const Workspace& workspace,
                         Stream stream) override;
  Status do_gather_shrink(const GatherShrinkArgs& args, const Workspace& workspace,
                          Stream stream) override;
  Status do_apply_embedding(const ApplyEmbeddingArgs& args, const Workspace& workspace,
                            Stream stream) override;

 private:
  struct Failure {
    int skip = 0;
    int count = 0;
  };
  bool fails(FakeCall call);
  Status launch(Stream stream, std::function<void()> task);

  mutable std::mutex mutex_;
  FakeCounters counters_;
  std::map<FakeCall, Failure> failures_;
  std::map<void*, std::size_t> sizes_;
  std::int64_t device_limit_ = 0;
  std::function<std::optional<Status>(const Problem&)> supports_;
};

/// Name "fake", two devices, usable, no accelerator, priority 0.
const BackendDescriptor& fake_descriptor() noexcept;

}  // namespace rankfold::testing
