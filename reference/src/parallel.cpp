#include "parallel.hpp"

#include <oneapi/tbb/global_control.h>
#include <oneapi/tbb/info.h>
#include <oneapi/tbb/task_arena.h>
#include <oneapi/tbb/task_group.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <thread>

RANKFOLD_NAMESPACE_BEGIN
namespace reference {

namespace {

constexpr int kMinLanes = 8;
constexpr int kMaxLanes = 128;

inline void relax() noexcept {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#endif
}

/// The items of one phase: claimed by whoever comes, done when all have been run.
struct alignas(64) Counter {
  std::atomic<std::int64_t> next{0};
  alignas(64) std::atomic<std::int64_t> done{0};
};

struct Work {
  std::span<Phase* const> phases;
  std::array<Counter, kMaxPhases> counters;

  // Nobody waits for a thread that has not come: only for items that somebody runs at this moment.
  void run(int lane) noexcept {
    for (std::size_t p = 0; p < phases.size(); ++p) {
      Phase& phase = *phases[p];
      Counter& counter = counters[p];
      const std::int64_t count = phase.num_items();
      std::int64_t finished = 0;
      for (;;) {
        const std::int64_t item = counter.next.fetch_add(1, std::memory_order_relaxed);
        if (item >= count) break;
        phase.run(item, lane);
        ++finished;
      }
      if (finished > 0) counter.done.fetch_add(finished, std::memory_order_acq_rel);
      for (int spins = 0; counter.done.load(std::memory_order_acquire) < count; ++spins) {
        if (spins < 4096) {
          relax();
        } else {
          std::this_thread::yield();
        }
      }
    }
  }
};

/// Waits until as many threads as TBB gives have run a task, once in the process: the memory of a
/// thread that starts is then taken here, and not in the middle of an operation. TBB promises no
/// thread, so the wait ends after a while.
void start_threads(int threads) {
  static std::atomic<int> started{1};
  if (started.load() >= threads) return;
  std::atomic<int> arrived{0};
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(200);
  const auto arrive = [&] {
    arrived.fetch_add(1);
    while (arrived.load() < threads && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::yield();
    }
  };
  tbb::task_group group;
  for (int i = 1; i < threads; ++i) group.run(arrive);
  arrive();
  group.wait();
  started = threads;
}

/// A task's memory comes from a pool of the spawning thread that only grows. Holding more tasks at
/// once than a call can ever have in flight (its own, and one per thread that has not yet given
/// back its last) makes it large enough for good.
void fill_task_pool(int threads) {
  tbb::task_group group;
  std::array<tbb::task_handle, std::size_t{2} * kMaxLanes> held;
  const auto count = std::min(held.size(), static_cast<std::size_t>(2 * threads));
  for (std::size_t i = 0; i < count; ++i) held[i] = group.defer([] {});
  for (std::size_t i = 0; i < count; ++i) group.run(std::move(held[i]));
  group.wait();
}

}  // namespace

int max_lanes() noexcept {
  static const int lanes = std::clamp(tbb::info::default_concurrency(), kMinLanes, kMaxLanes);
  return lanes;
}

int available_threads() noexcept {
  const auto allowed = static_cast<int>(
      tbb::global_control::active_value(tbb::global_control::max_allowed_parallelism));
  return std::min(allowed, tbb::this_task_arena::max_concurrency());
}

void prepare_thread() {
  thread_local int prepared = 0;
  const int threads = available_threads();
  if (threads <= prepared) return;
  tbb::this_task_arena::isolate([threads] {
    start_threads(threads);
    fill_task_pool(threads);
  });
  prepared = threads;
}

void run_phases(std::span<Phase* const> phases, int lanes) {
  Work work{phases, {}};
  std::int64_t most = 0;  // items of one phase: more threads than that have nothing to do
  for (const Phase* phase : phases) most = std::max(most, phase->num_items());
  const int threads = static_cast<int>(
      std::min<std::int64_t>(std::min({lanes, max_lanes(), available_threads()}), most));
  if (threads <= 1) {
    work.run(0);
    return;
  }
  prepare_thread();
  // Isolated: a thread that waits here must not pick up foreign work, which might enqueue on the
  // stream whose mutex it holds.
  tbb::this_task_arena::isolate([&] {
    tbb::task_group group;
    for (int lane = 1; lane < threads; ++lane) {
      group.run([&work, lane] { work.run(lane); });
    }
    work.run(0);
    group.wait();
  });
}

}  // namespace reference
RANKFOLD_NAMESPACE_END
