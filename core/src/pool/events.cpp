#include "pool/events.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace detail {

PooledEvent::~PooledEvent() {
  if (pool_ != nullptr) pool_->give_back(event_);
}

void EventPool::clear() noexcept {
  const std::lock_guard lock(mutex_);
  for (const Event event : idle_) backend_->destroy_event(event);
  idle_.clear();
}

Status EventPool::reserve(std::size_t count) {
  std::vector<PooledEvent> loans;
  loans.reserve(count);
  while (loans.size() < count) {
    auto event = acquire();
    if (!event.ok()) return event.status();
    loans.push_back(std::move(*event));
  }
  return {};
}

Result<PooledEvent> EventPool::acquire() {
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      const Event event = idle_.back();
      idle_.pop_back();
      return PooledEvent(this, event);
    }
    // Room for every event that will ever come back, so that give_back() cannot fail.
    idle_.reserve(num_events_ + 1);
    ++num_events_;
  }
  const auto event = backend_->create_event();
  if (!event.ok()) {
    const std::lock_guard lock(mutex_);
    --num_events_;
    return event.status();
  }
  return PooledEvent(this, *event);
}

void EventPool::give_back(Event event) noexcept {
  const std::lock_guard lock(mutex_);
  idle_.push_back(event);
}

}  // namespace detail
RANKFOLD_NAMESPACE_END
