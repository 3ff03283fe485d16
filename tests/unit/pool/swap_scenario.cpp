#include "swap_scenario.hpp"

#include <doctest/doctest.h>

#include <sstream>
#include <thread>

namespace rankfold::testing {

namespace {

constexpr std::int32_t kNumSlots = 5;
constexpr int kNumStreams = 2;  // of steps, and of uploads
// A thread's first deque block, a table that doubles: bounded, whatever the number of loads.
constexpr std::int64_t kMostHeapGrowth = 8192;

}  // namespace

SwapReport run_swap(LoraBackend& backend, std::int64_t num_publishes, unsigned seed,
                    std::int64_t (*heap_bytes)() noexcept) {
  PoolOptions options;
  options.num_slots = kNumSlots;
  options.max_rank = kSwapMaxRank;
  options.arena_bytes = 3 * largest_swap_adapter();
  options.staging_bytes = 4096;
  options.x_dtype = DType::bf16;
  options.y_dtype = DType::f32;
  auto pool = AdapterPool::create(backend, swap_targets(), options).value();
  const StreamMode mode =
      backend.device().type == DeviceType::cpu ? StreamMode::worker : StreamMode::automatic;
  std::vector<OwnedStream> owned;
  std::vector<Stream> streams, uploads;
  for (int i = 0; i < kNumStreams; ++i) {
    for (auto* const list : {&streams, &uploads}) {
      owned.push_back(OwnedStream::create(backend, mode).value());
      list->push_back(owned.back());
    }
  }

  SwapFailures failures;
  SwapBoard board;
  SwapSteps steps(backend, pool, streams, board, failures, seed);
  SwapLoads loads(pool, backend, uploads, streams, board, failures, seed + 1, heap_bytes);
  std::thread stepping([&] { steps.run(); });
  loads.run(num_publishes);
  board.stop();
  stepping.join();

  SwapReport report;
  report.steps = steps.counts();
  report.loads = loads.counts();
  report.num_failures = failures.count();
  for (const std::string& text : failures.texts()) report.failures += text + "\n";
  std::ostringstream summary;
  summary << "published " << report.loads.published << ", seen " << report.steps.versions_seen
          << ", evicted " << report.loads.evicted << " (several at once " << report.loads.made_room
          << " times), unloaded " << report.loads.unloaded << ", cancelled "
          << report.loads.cancelled << ", no room " << report.loads.no_room
          << ", published again after it " << report.loads.republished << ", refused "
          << report.loads.invalid << "; steps " << report.steps.steps << " (grouped "
          << report.steps.grouped_steps << "), rows " << report.steps.rows << " and bare "
          << report.steps.bare_rows << ", wrong " << report.steps.wrong_rows << ", stale handles "
          << report.steps.stale_handles << "; heap growth " << report.loads.heap_growth << " bytes";
  report.summary = summary.str();
  return report;
}

void check_swap(const SwapReport& report, std::int64_t num_publishes) {
  MESSAGE(report.summary);
  INFO("the first failures:\n" << report.failures);
  CHECK(report.num_failures == 0);
  CHECK(report.steps.wrong_rows == 0);
  CHECK(report.loads.published >= num_publishes);
  CHECK(report.steps.versions_seen == report.loads.published);
  CHECK(report.loads.heap_growth < kMostHeapGrowth);
  // Everything that should have happened did.
  CHECK(report.loads.evicted > num_publishes / 2);
  CHECK(report.loads.made_room > num_publishes / 100);
  CHECK(report.loads.unloaded > num_publishes / 100);
  CHECK(report.loads.cancelled > num_publishes / 100);
  CHECK(report.loads.no_room > 0);
  CHECK(report.loads.republished > 0);
  CHECK(report.loads.invalid > 0);
  CHECK(report.loads.checkpoints >= 10);
  CHECK(report.steps.steps > num_publishes / 2);
  CHECK(report.steps.grouped_steps > report.steps.steps / 4);
  CHECK(report.steps.grouped_steps < report.steps.steps * 3 / 4);
  CHECK(report.steps.rows > num_publishes);
  CHECK(report.steps.bare_rows > 0);
  CHECK(report.steps.stale_handles > 0);
}

}  // namespace rankfold::testing
