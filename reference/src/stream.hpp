// Streams and events of the reference backend: in-order queues, run in the caller or on a thread.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <type_traits>

#include "rankfold/status.hpp"
#include "rankfold/stream.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace reference {

/// How far a stream has come. Outlives its stream (StreamPool recycles it and its numbers only
/// grow), so an event may point to it whatever was destroyed meanwhile.
class Progress {
 public:
  std::uint64_t done() const noexcept { return done_.load(std::memory_order_acquire); }
  void advance() noexcept;
  /// Blocks until done() >= number.
  void wait_for(std::uint64_t number) noexcept;

 private:
  std::atomic<std::uint64_t> done_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
};

/// A point in a stream: task `number` of `progress`. Plain data.
struct Ticket {
  Progress* progress = nullptr;  ///< null: never recorded, thus complete
  std::uint64_t number = 0;

  bool complete() const noexcept { return progress == nullptr || progress->done() >= number; }
  void wait() const noexcept {
    if (progress != nullptr) progress->wait_for(number);
  }
};

class EventState {
 public:
  void set(const Ticket& ticket) noexcept {
    const std::lock_guard lock(mutex_);
    ticket_ = ticket;
  }
  Ticket get() const noexcept {
    const std::lock_guard lock(mutex_);
    return ticket_;
  }

 private:
  mutable std::mutex mutex_;
  Ticket ticket_;
};

/// One unit of work: a function and a copy of its arguments.
struct Task {
  static constexpr std::size_t kPayloadBytes = 1008;
  using Function = Status (*)(const void* payload);

  Function function = nullptr;
  alignas(16) std::byte payload[kPayloadBytes];
};

/// An in-order queue. Enqueueing never allocates: a worker's tasks stand in a ring that is made
/// with the stream, and a full ring makes the caller wait.
class StreamQueue {
 public:
  static constexpr std::uint64_t kRingTasks = 256;

  StreamQueue(StreamMode mode, Progress* progress);
  /// Runs what is enqueued, then ends the thread.
  ~StreamQueue();
  StreamQueue(const StreamQueue&) = delete;
  StreamQueue& operator=(const StreamQueue&) = delete;

  static StreamQueue& of(Stream stream) noexcept {
    return *static_cast<StreamQueue*>(stream.handle);
  }

  /// `payload` is copied; `run(payload)` is called later on the thread, or at once in the caller.
  /// An inline stream returns the task's own status.
  template <class Payload>
  Status enqueue(Status (*run)(const Payload&), const Payload& payload) {
    static_assert(std::is_trivially_copyable_v<Payload> &&
                  sizeof(Call<Payload>) <= Task::kPayloadBytes);
    const Call<Payload> call{run, payload};
    if (mode_ == StreamMode::inline_) return run_now(&Call<Payload>::invoke, &call);
    push(&Call<Payload>::invoke, &call, sizeof(call));
    return {};
  }

  /// The point after everything enqueued so far.
  Ticket ticket() noexcept;
  /// Later work waits for the ticket; an inline stream blocks the caller.
  Status wait(const Ticket& ticket);
  /// Waits for everything enqueued so far; returns and forgets the first error since the last call.
  Status synchronize() noexcept;
  Progress* progress() const noexcept { return progress_; }

 private:
  template <class Payload>
  struct Call {
    Status (*run)(const Payload&);
    Payload payload;
    static Status invoke(const void* self) {
      const auto* call = static_cast<const Call*>(self);
      return call->run(call->payload);
    }
  };

  Status run_now(Task::Function function, const void* payload);
  void push(Task::Function function, const void* payload, std::size_t bytes);
  void work() noexcept;
  void keep_error(const Status& status) noexcept;

  const StreamMode mode_;
  Progress* const progress_;
  std::mutex mutex_;  // the queue; an inline stream runs its work under it
  std::condition_variable not_empty_;
  std::condition_variable not_full_;
  std::unique_ptr<Task[]> ring_;
  const std::uint64_t base_;  // number of tasks that this progress had seen before
  std::uint64_t pushed_ = 0;
  std::uint64_t popped_ = 0;
  bool closing_ = false;
  std::mutex error_mutex_;
  Status first_error_;
  std::thread thread_;
};

/// Keeps the progress of destroyed streams for new ones.
class StreamPool {
 public:
  Result<Stream> create(StreamMode mode);
  void destroy(Stream stream) noexcept;
  ~StreamPool();

 private:
  struct Node {
    Progress progress;
    Node* next = nullptr;       // all nodes
    Node* next_free = nullptr;  // those without a stream
  };
  std::mutex mutex_;
  Node* all_ = nullptr;
  Node* free_ = nullptr;
};

}  // namespace reference
RANKFOLD_NAMESPACE_END
