#include "fake_stream.hpp"

#include <utility>

namespace rankfold::testing {

void Completion::complete() {
  const std::lock_guard lock(mutex_);
  done_ = true;
  // Under the lock: who waits may destroy this object as soon as it sees done_.
  changed_.notify_all();
}

bool Completion::done() const {
  const std::lock_guard lock(mutex_);
  return done_;
}

void Completion::wait() const {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return done_; });
}

std::shared_ptr<Completion> FakeEvent::record() {
  auto completion = std::make_shared<Completion>();
  const std::lock_guard lock(mutex_);
  last_ = completion;
  return completion;
}

std::shared_ptr<Completion> FakeEvent::last() const {
  const std::lock_guard lock(mutex_);
  return last_;
}

FakeStream::FakeStream(StreamMode mode) : mode_(mode) {
  if (mode_ == StreamMode::worker) thread_ = std::thread([this] { run(); });
}

FakeStream::~FakeStream() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    held_ = false;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

void FakeStream::enqueue(Task task) {
  if (mode_ != StreamMode::worker) {
    const std::lock_guard order(order_);
    execute(task);
    return;
  }
  const std::lock_guard lock(mutex_);
  tasks_.push_back(std::move(task));
  changed_.notify_all();
}

Status FakeStream::synchronize() {
  const std::lock_guard order(order_);
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return tasks_.empty() && !running_; });
  return first_error_;
}

void FakeStream::hold() {
  const std::lock_guard lock(mutex_);
  held_ = true;
}

void FakeStream::release() {
  const std::lock_guard lock(mutex_);
  held_ = false;
  changed_.notify_all();
}

void FakeStream::set_delay(std::chrono::microseconds delay) {
  const std::lock_guard lock(mutex_);
  delay_ = delay;
}

void FakeStream::execute(Task& task) {
  const Status status = task();
  if (status.ok()) return;
  const std::lock_guard lock(mutex_);
  if (first_error_.ok()) first_error_ = status;
}

void FakeStream::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return (!tasks_.empty() && !held_) || stopping_; });
    if (tasks_.empty()) return;
    Task task = std::move(tasks_.front());
    tasks_.pop_front();
    running_ = true;
    const auto delay = delay_;
    lock.unlock();
    if (delay.count() > 0) std::this_thread::sleep_for(delay);
    execute(task);
    task = nullptr;
    lock.lock();
    running_ = false;
    changed_.notify_all();
  }
}

}  // namespace rankfold::testing
