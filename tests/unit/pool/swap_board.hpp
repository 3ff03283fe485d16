// What the two threads of swapping under load tell each other.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <string>
#include <vector>

#include "swap_model.hpp"

namespace rankfold::testing {

/// The first failures in words, and how many there were. Thread-safe.
class SwapFailures {
 public:
  void add(const std::string& text) {
    const std::lock_guard lock(mutex_);
    if (texts_.size() < kMost) texts_.push_back(text);
    ++count_;
  }
  std::int64_t count() const {
    const std::lock_guard lock(mutex_);
    return count_;
  }
  std::vector<std::string> texts() const {
    const std::lock_guard lock(mutex_);
    return texts_;
  }

 private:
  static constexpr std::size_t kMost = 8;
  mutable std::mutex mutex_;
  std::vector<std::string> texts_;
  std::int64_t count_ = 0;
};

/// Published versions on their way from the loading thread to the stepping thread.
class SwapBoard {
 public:
  /// A version that the caller has pinned; a step must use and unpin it. Waits while many wait.
  void hand_over(const SwapVersionPtr& version) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return waiting_.size() < kMostWaiting; });
    waiting_.push_back(version);
    recent_[next_++ % kRecent] = version;
  }
  /// The next one handed over; null: none.
  SwapVersionPtr take() {
    const std::lock_guard lock(mutex_);
    if (waiting_.empty()) return nullptr;
    SwapVersionPtr version = std::move(waiting_.front());
    waiting_.pop_front();
    changed_.notify_all();
    return version;
  }
  /// One of the last few, perhaps evicted since; null where there is none.
  SwapVersionPtr pick(unsigned random) const {
    const std::lock_guard lock(mutex_);
    return recent_[random % kRecent];
  }
  /// Who computed such a row, among the last few; null: nobody.
  SwapVersionPtr who(std::int32_t target, std::size_t row, const float* y) const {
    const std::lock_guard lock(mutex_);
    for (const auto& version : recent_) {
      if (version != nullptr && version->matches(target, row, y)) return version;
    }
    return nullptr;
  }

  /// Returns when every version handed over has been used, every step has run and been checked, and
  /// the stepping thread waits for resume().
  void pause() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return waiting_.empty(); });
    pausing_ = true;
    changed_.wait(lock, [this] { return idle_; });
  }
  /// While paused: the board forgets what was published.
  void forget() {
    const std::lock_guard lock(mutex_);
    for (auto& version : recent_) version = nullptr;
  }
  void resume() {
    const std::lock_guard lock(mutex_);
    pausing_ = false;
    changed_.notify_all();
  }
  void stop() {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    changed_.notify_all();
  }

  // The stepping thread's side.
  bool pausing() const {
    const std::lock_guard lock(mutex_);
    return pausing_;
  }
  bool stopped() const {
    const std::lock_guard lock(mutex_);
    return stopped_;
  }
  void wait_for_resume() {
    std::unique_lock lock(mutex_);
    idle_ = true;
    changed_.notify_all();
    changed_.wait(lock, [this] { return !pausing_ || stopped_; });
    idle_ = false;
  }

 private:
  // Few, since they are pinned: the rest of the slots is free to change.
  static constexpr std::size_t kMostWaiting = 2;
  static constexpr std::size_t kRecent = 8;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<SwapVersionPtr> waiting_;
  SwapVersionPtr recent_[kRecent];
  std::size_t next_ = 0;
  bool pausing_ = false, idle_ = false, stopped_ = false;
};

}  // namespace rankfold::testing
