// Swapping under load on the reference backend's worker streams.
#include <doctest/doctest.h>

#include "rankfold/reference.hpp"
#include "unit/pool/swap_scenario.hpp"
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

TEST_CASE("D8, D14: the reference backend's rows are those of the versions their handles name") {
  constexpr std::int64_t kNumPublishes = RANKFOLD_SWAP_PUBLISHES;
  LoraBackend* backend = nullptr;
  REQUIRE(reference::descriptor().create(0, &backend).ok());
  const std::unique_ptr<LoraBackend> owner(backend);
  check_swap(run_swap(*backend, kNumPublishes, 1, kHeapBytes), kNumPublishes);
}
