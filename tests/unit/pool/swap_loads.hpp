// Swapping under load, the loading thread: it loads, publishes, cancels, unloads and is refused,
// and knows after every call what the pool must hold, since nobody else changes that.
#pragma once

#include <random>
#include <span>
#include <vector>

#include "swap_board.hpp"

namespace rankfold::testing {

struct SwapLoadCounts {
  std::int64_t published = 0;
  std::int64_t evicted = 0;
  std::int64_t made_room = 0;  ///< publishes that evicted several: for memory, not for a slot
  std::int64_t unloaded = 0;
  std::int64_t cancelled = 0;
  std::int64_t no_room = 0;
  std::int64_t republished = 0;  ///< by the same Pending, after no_room
  std::int64_t invalid = 0;
  std::int64_t checkpoints = 0;
  std::int64_t heap_growth = 0;  ///< bytes, from the first checkpoint to the last
};

class SwapLoads {
 public:
  /// `heap_bytes`: what the process has allocated and not freed; null: nobody counts.
  SwapLoads(AdapterPool& pool, LoraBackend& backend, std::span<const Stream> uploads,
            std::span<const Stream> steps, SwapBoard& board, SwapFailures& failures, unsigned seed,
            std::int64_t (*heap_bytes)() noexcept);

  /// Until so many were published, with ten checkpoints on the way; the board is paused on return,
  /// and the pool is empty.
  void run(std::int64_t num_publishes);
  const SwapLoadCounts& counts() const { return counts_; }

 private:
  void round();
  void load(SwapAdapter& adapter);
  void prepare_and_publish(SwapAdapter& adapter);
  void prepare_two(SwapAdapter& first);
  void cancel(SwapAdapter& adapter);
  void unload_one();
  void refuse_rank();
  void refuse_while_pinned(SwapAdapter& adapter);
  void checkpoint();

  /// Success: it is resident, what left was counted; failure: nothing changed.
  void settle(const char* call, const Result<AdapterHandle>& handle, const SwapVersionPtr& version);
  void unchanged(const char* call, const Status& status);
  /// What the pool counts is what it should.
  void compare(const char* call);
  /// Any of them: loads one after the other are not ordered by their stream.
  Stream upload() { return uploads_[random_() % uploads_.size()]; }
  void check(bool good, const char* call, const std::string& what);
  bool is_resident(const SwapVersionPtr& version) const { return pool_.resident(version->handle); }

  AdapterPool& pool_;
  LoraBackend& backend_;
  std::span<const Stream> uploads_;
  std::span<const Stream> steps_;
  SwapBoard& board_;
  SwapFailures& failures_;
  std::mt19937 random_;
  std::int64_t (*heap_bytes_)() noexcept;
  std::vector<SwapVersionPtr> residents_;
  std::uint64_t last_version_ = 0;
  int next_id_ = 1;
  std::int64_t first_heap_bytes_ = 0;
  SwapLoadCounts counts_;
};

}  // namespace rankfold::testing
