// Streams and events of the fake backend: in-order queues that a thread (worker) or the caller
// (inline) runs. Plain mutexes and condition variables, so that a thread sanitizer sees it all.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "rankfold/status.hpp"
#include "rankfold/stream.hpp"

namespace rankfold::testing {

/// One record of an event. A later record of the same event makes a new one, so that who waited
/// for the earlier record still waits for that.
class Completion {
 public:
  void complete();
  bool done() const;
  void wait() const;

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool done_ = false;
};

class FakeEvent {
 public:
  /// The completion of a new record.
  std::shared_ptr<Completion> record();
  /// The last record's; null when never recorded.
  std::shared_ptr<Completion> last() const;

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<Completion> last_;
};

class FakeStream {
 public:
  using Task = std::function<Status()>;

  explicit FakeStream(StreamMode mode);
  /// Releases a held stream and runs what is enqueued.
  ~FakeStream();
  FakeStream(const FakeStream&) = delete;
  FakeStream& operator=(const FakeStream&) = delete;

  /// Worker: returns at once. Inline: returns when the task has run.
  void enqueue(Task task);
  /// Waits for what is enqueued; the first error of the tasks so far.
  Status synchronize();

  /// Worker only: nothing further starts until release(). What runs already goes on.
  void hold();
  void release();
  /// Worker only: a pause before each task.
  void set_delay(std::chrono::microseconds delay);

 private:
  void run();
  void execute(Task& task);

  const StreamMode mode_;
  std::mutex order_;  // inline: operations run in the caller, one after the other
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> tasks_;
  bool running_ = false;
  bool held_ = false;
  bool stopping_ = false;
  std::chrono::microseconds delay_{0};
  Status first_error_;
  std::thread thread_;
};

}  // namespace rankfold::testing
