// Events of the pool: made once, lent for as long as somebody may look at them.
#pragma once

#include <mutex>
#include <utility>
#include <vector>

#include "rankfold/backend.hpp"
#include "rankfold/export.hpp"
#include "rankfold/status.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace detail {

class EventPool;

/// An event on loan; goes back with the object.
class PooledEvent {
 public:
  PooledEvent() = default;
  PooledEvent(EventPool* pool, Event event) noexcept : pool_(pool), event_(event) {}
  PooledEvent(PooledEvent&& other) noexcept { swap(other); }
  PooledEvent& operator=(PooledEvent&& other) noexcept {
    PooledEvent moved(std::move(other));
    swap(moved);
    return *this;
  }
  ~PooledEvent();
  Event get() const noexcept { return event_; }

 private:
  void swap(PooledEvent& other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(event_, other.event_);
  }
  EventPool* pool_ = nullptr;
  Event event_;
};

/// Thread-safe.
class EventPool {
 public:
  explicit EventPool(LoraBackend& backend) noexcept : backend_(&backend) {}
  ~EventPool() { clear(); }
  EventPool(const EventPool&) = delete;
  EventPool& operator=(const EventPool&) = delete;

  /// Makes events, so that so many can be lent without asking the device.
  Status reserve(std::size_t count);
  Result<PooledEvent> acquire();
  /// Destroys the events; every loan must have ended.
  void clear() noexcept;

 private:
  friend class PooledEvent;
  void give_back(Event event) noexcept;

  LoraBackend* backend_;
  std::mutex mutex_;
  std::vector<Event> idle_;
  std::size_t num_events_ = 0;
};

}  // namespace detail
RANKFOLD_NAMESPACE_END
