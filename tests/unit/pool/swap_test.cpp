// Swapping under load on the fake backend, which every sanitizer can judge.
#include <doctest/doctest.h>

#include "fake_backend.hpp"
#include "swap_scenario.hpp"
#ifdef RANKFOLD_COUNT_HEAP
#include "allocation_counter.hpp"
#endif

using namespace rankfold;
using namespace rankfold::testing;

#ifdef RANKFOLD_COUNT_HEAP
constexpr auto kHeapBytes = &heap_bytes_in_use;
#else
constexpr std::int64_t (*kHeapBytes)() noexcept = nullptr;
#endif

TEST_CASE(
    "D8, D14: every row is that of the version its handle names, while adapters come and go") {
  constexpr std::int64_t kNumPublishes = RANKFOLD_SWAP_PUBLISHES;
  FakeBackend backend;
  check_swap(run_swap(backend, kNumPublishes, 1, kHeapBytes), kNumPublishes);
  const FakeCounters after = backend.counters();
  CHECK(after.device_bytes == 0);
  CHECK(after.pinned_bytes == 0);
  CHECK(after.events == 0);
  CHECK(after.streams == 0);
  // All of the pool's memory is made with it: arena and tables; images and staging ring. The rest
  // is the steps' own.
  CHECK(after.device_allocations == 2 + kSwapTargets + 3 * 6);
  CHECK(after.pinned_allocations == 2 + 6);
}
