// Runs the phases of an operation on several threads, without allocating after the first call.
#pragma once

#include <cstdint>
#include <span>

#include "rankfold/export.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace reference {

/// Independent items. What an item writes never depends on which lane runs it, nor on how many
/// there are: that makes results the same at any thread count.
class Phase {
 public:
  /// Always the same answer.
  virtual std::int64_t num_items() const noexcept = 0;
  /// `lane` is the caller's own number below max_lanes: an index of scratch memory.
  virtual void run(std::int64_t item, int lane) noexcept = 0;

 protected:
  ~Phase() = default;
};

inline constexpr int kMaxPhases = 6;

/// Lanes that this process may use: TBB's concurrency when first asked, at least 8 so that a later
/// tbb::global_control may raise it, at most 128.
int max_lanes() noexcept;

/// Threads that TBB would give the calling thread now.
int available_threads() noexcept;

/// Starts TBB's threads and fills its pools of small objects for the calling thread, so that later
/// calls of run_phases() find them. Costs nothing from the second call on a thread.
void prepare_thread();

/// Runs the phases one after the other; the items of a phase run on up to `lanes` threads (fewer
/// where TBB gives fewer), the caller among them.
void run_phases(std::span<Phase* const> phases, int lanes);

}  // namespace reference
RANKFOLD_NAMESPACE_END
