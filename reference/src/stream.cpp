#include "stream.hpp"

#include <exception>
#include <system_error>
#include <utility>

RANKFOLD_NAMESPACE_BEGIN
namespace reference {

namespace {

Status run_guarded(Task::Function function, const void* payload) noexcept {
  try {
    return function(payload);
  } catch (const std::bad_alloc&) {
    return Status(StatusCode::out_of_memory, "host memory is exhausted");
  } catch (const std::exception& error) {
    return Status(StatusCode::internal, error.what());
  } catch (...) {
    return Status(StatusCode::internal, "an exception of an unknown type was thrown");
  }
}

}  // namespace

void Progress::advance() noexcept {
  {
    const std::lock_guard lock(mutex_);
    done_.fetch_add(1, std::memory_order_release);
  }
  changed_.notify_all();
}

void Progress::wait_for(std::uint64_t number) noexcept {
  if (done() >= number) return;
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return done() >= number; });
}

StreamQueue::StreamQueue(StreamMode mode, Progress* progress)
    : mode_(mode), progress_(progress), base_(progress->done()) {
  if (mode_ == StreamMode::worker) {
    ring_ = std::make_unique<Task[]>(kRingTasks);
    thread_ = std::thread([this] { work(); });
  }
}

StreamQueue::~StreamQueue() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  not_empty_.notify_all();
  thread_.join();
}

Status StreamQueue::run_now(Task::Function function, const void* payload) {
  const std::lock_guard lock(mutex_);
  return run_guarded(function, payload);
}

void StreamQueue::push(Task::Function function, const void* payload, std::size_t bytes) {
  {
    std::unique_lock lock(mutex_);
    not_full_.wait(lock, [&] { return pushed_ - popped_ < kRingTasks; });
    Task& task = ring_[pushed_ % kRingTasks];
    task.function = function;
    std::memcpy(task.payload, payload, bytes);
    ++pushed_;
  }
  not_empty_.notify_one();
}

void StreamQueue::work() noexcept {
  for (;;) {
    const Task* task = nullptr;
    {
      std::unique_lock lock(mutex_);
      not_empty_.wait(lock, [&] { return closing_ || pushed_ != popped_; });
      if (pushed_ == popped_) return;
      task = &ring_[popped_ % kRingTasks];
    }
    // The slot is given back only after the run: the payload is read in place.
    const Status status = run_guarded(task->function, task->payload);
    if (!status.ok()) keep_error(status);
    {
      const std::lock_guard lock(mutex_);
      ++popped_;
    }
    not_full_.notify_one();
    progress_->advance();
  }
}

void StreamQueue::keep_error(const Status& status) noexcept {
  const std::lock_guard lock(error_mutex_);
  if (first_error_.ok()) first_error_ = status;
}

Ticket StreamQueue::ticket() noexcept {
  const std::lock_guard lock(mutex_);
  return {progress_, base_ + pushed_};
}

Status StreamQueue::wait(const Ticket& ticket) {
  if (ticket.complete()) return {};
  return enqueue<Ticket>(
      [](const Ticket& awaited) {
        awaited.wait();
        return Status();
      },
      ticket);
}

Status StreamQueue::synchronize() noexcept {
  ticket().wait();
  const std::lock_guard lock(error_mutex_);
  return std::exchange(first_error_, Status());
}

Result<Stream> StreamPool::create(StreamMode mode) {
  const std::lock_guard lock(mutex_);
  Node* node = free_;
  if (node == nullptr) {
    node = new Node;
    node->next = all_;
    all_ = node;
  } else {
    free_ = node->next_free;
  }
  try {
    return Stream{new StreamQueue(mode, &node->progress)};
  } catch (const std::system_error& error) {  // no thread to be had
    node->next_free = free_;
    free_ = node;
    return Status::format(StatusCode::out_of_memory, "create_stream: no thread: %s", error.what());
  } catch (...) {
    node->next_free = free_;
    free_ = node;
    throw;
  }
}

void StreamPool::destroy(Stream stream) noexcept {
  StreamQueue* const queue = &StreamQueue::of(stream);
  Progress* const progress = queue->progress();
  delete queue;
  const std::lock_guard lock(mutex_);
  for (Node* node = all_; node != nullptr; node = node->next) {
    if (&node->progress != progress) continue;
    node->next_free = free_;
    free_ = node;
    return;
  }
}

StreamPool::~StreamPool() {
  while (all_ != nullptr) delete std::exchange(all_, all_->next);
}

}  // namespace reference
RANKFOLD_NAMESPACE_END
