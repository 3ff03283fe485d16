// One thread loads, publishes, cancels, unloads and evicts; others pin, run steps on worker streams
// and check every row of every step against the version that its handle names.
#include <doctest/doctest.h>

#include <atomic>
#include <mutex>
#include <random>
#include <thread>

#include "fixture.hpp"

using namespace rankfold;
using namespace rankfold::testing;

namespace {

constexpr int kNumLoads = 5000;
constexpr int kNumSlots = 6;
constexpr int kNumStepThreads = 2;
constexpr int kRowsPerStep = 4;

struct Published {
  AdapterHandle handle;
  AdapterSpec spec;
};

// The last adapters that were published, some of them evicted since.
class Board {
 public:
  void add(const Published& published) {
    const std::lock_guard lock(mutex_);
    entries_[next_++ % kSize] = published;
  }
  Published pick(unsigned random) const {
    const std::lock_guard lock(mutex_);
    return entries_[random % kSize];
  }

 private:
  static constexpr std::size_t kSize = 8;
  mutable std::mutex mutex_;
  Published entries_[kSize];
  std::size_t next_ = 0;
};

struct Counts {
  std::atomic<std::int64_t> steps = 0, rows = 0, stale = 0, wrong = 0, errors = 0;
};

void run_steps(FakeBackend& backend, AdapterPool& pool, Stream stream, const Board& board,
               const std::atomic<bool>& stop, unsigned seed, Counts& counts) {
  std::mt19937 random(seed);
  while (!stop) {
    std::vector<std::int32_t> slots;
    std::vector<Published> used;
    for (int row = 0; row < kRowsPerStep; ++row) {
      const Published candidate = board.pick(static_cast<unsigned>(random()));
      const bool pinned = candidate.handle.version != 0 && pool.pin(candidate.handle).ok();
      if (!pinned) ++counts.stale;
      slots.push_back(pinned ? candidate.handle.slot : -1);
      used.push_back(pinned ? candidate : Published{});
    }
    Step step(backend, pool, slots, static_cast<int>(random() % 100));
    if (!step.enqueue(stream).ok()) ++counts.errors;
    for (const auto& published : used) {
      if (published.handle.version != 0 && !pool.unpin(published.handle).ok()) ++counts.errors;
    }
    if (!backend.synchronize(stream).ok()) ++counts.errors;
    for (std::size_t row = 0; row < used.size(); ++row) {
      const AdapterSpec* const spec = used[row].handle.version != 0 ? &used[row].spec : nullptr;
      if (!step.row_is(row, spec)) ++counts.wrong;
      if (spec != nullptr) ++counts.rows;
    }
    ++counts.steps;
  }
}

}  // namespace

TEST_CASE("D8, D14: every row of every step is that of the version its handle names") {
  FakeBackend backend;
  // Room for about four adapters of six slots: both kinds of eviction happen.
  const std::uint64_t arena = 4 * arena_bytes_of({.rank = 6, .bias = true});
  auto pool =
      AdapterPool::create(backend, model_targets(), small_options(kNumSlots, arena)).value();
  auto upload = OwnedStream::create(backend, StreamMode::worker).value();
  std::vector<OwnedStream> owned;
  std::vector<Stream> streams;
  for (int i = 0; i < kNumStepThreads; ++i) {
    owned.push_back(OwnedStream::create(backend, StreamMode::worker).value());
    streams.push_back(owned.back());
  }
  Board board;
  Counts counts;
  std::atomic<bool> stop = false;
  std::vector<std::thread> threads;
  for (int i = 0; i < kNumStepThreads; ++i) {
    threads.emplace_back([&, i] {
      run_steps(backend, pool, streams[static_cast<std::size_t>(i)], board, stop,
                static_cast<unsigned>(i) + 1, counts);
    });
  }

  std::mt19937 random(7);
  int num_published = 0, num_cancelled = 0, num_unloaded = 0, num_no_room = 0, num_errors = 0;
  std::int64_t events_warm = 0;
  for (int round = 1; round <= kNumLoads; ++round) {
    if (round == kNumLoads / 4) events_warm = backend.counters().events;
    const AdapterSpec spec{.id = round,
                           .rank = static_cast<std::int32_t>(1 + random() % 8),
                           .targets = 1 + static_cast<unsigned>(random() % 7),
                           .scaling = random() % 2 == 0 ? 0.5f : 2.0f,
                           .bias = random() % 2 == 0};
    SyntheticAdapter adapter(spec);
    const auto refused = [&](const Status& status) {
      if (status.code() == StatusCode::no_room) {
        ++num_no_room;
      } else {
        ++num_errors;
        MESSAGE(status.message());
      }
    };
    AdapterHandle handle;
    if (random() % 3 == 0) {
      const auto loaded = pool.load(adapter.view(), upload, streams);
      if (!loaded.ok()) {
        refused(loaded.status());
        continue;
      }
      handle = *loaded;
    } else {
      auto pending = pool.prepare(adapter.view(), upload);
      if (!pending.ok()) {
        refused(pending.status());
        continue;
      }
      adapter.scramble();
      if (random() % 8 == 0) {
        pending->cancel();
        ++num_cancelled;
        continue;
      }
      const auto published = pool.publish(std::move(*pending), streams);
      if (!published.ok()) {
        refused(published.status());
        continue;
      }
      handle = *published;
    }
    ++num_published;
    board.add({handle, spec});
    if (random() % 16 == 0 && pool.unload(handle, streams).ok()) ++num_unloaded;
  }
  stop = true;
  for (auto& thread : threads) thread.join();
  for (auto& stream : owned) REQUIRE(stream.synchronize().ok());
  REQUIRE(upload.synchronize().ok());

  CHECK(counts.wrong == 0);
  CHECK(counts.errors == 0);
  CHECK(num_errors == 0);
  // Everything that should have happened did.
  CHECK(num_published > kNumLoads / 2);
  CHECK(num_cancelled > 0);
  CHECK(num_unloaded > 0);
  CHECK(counts.rows > 1000);
  CHECK(counts.stale > 0);
  const PoolStats stats = pool.stats();
  CHECK(stats.num_evictions > static_cast<std::uint64_t>(kNumLoads) / 4);
  CHECK(stats.num_loads == static_cast<std::uint64_t>(num_published));
  CHECK(stats.num_pinned == 0);
  CHECK(stats.arena_in_use <= arena);
  const FakeCounters now = backend.counters();
  CHECK(now.device_allocations == 2);
  CHECK(now.pinned_allocations == 2);
  CHECK(now.events <= events_warm + 16);
  MESSAGE("published " << num_published << ", evicted " << stats.num_evictions << ", cancelled "
                       << num_cancelled << ", unloaded " << num_unloaded << ", no room "
                       << num_no_room << ", steps " << counts.steps.load() << ", rows "
                       << counts.rows.load() << ", stale handles refused " << counts.stale.load());
}
