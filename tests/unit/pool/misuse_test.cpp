// Calls that a host makes in the wrong order, twice, or with what is gone.
#include <doctest/doctest.h>

#include <optional>
#include <string>

#include "fixture.hpp"

using namespace rankfold;
using namespace rankfold::testing;

namespace {

bool contains(const Status& status, const char* part) {
  return std::string(status.message()).find(part) != std::string::npos;
}

struct Setup {
  explicit Setup(std::int32_t num_slots)
      : pool(AdapterPool::create(backend, model_targets(), small_options(num_slots, 1 << 16))
                 .value()),
        upload(OwnedStream::create(backend, StreamMode::worker).value()),
        step(OwnedStream::create(backend, StreamMode::worker).value()) {}
  AdapterHandle load(int id) { return load_ok(pool, {.id = id}, upload, step); }
  FakeBackend backend;
  AdapterPool pool;
  OwnedStream upload;
  OwnedStream step;
};

}  // namespace

TEST_CASE("misuse: a pending load that was published is empty, and nothing else happens") {
  Setup setup(2);
  const Stream stream = setup.step;
  auto pending = setup.pool.prepare(SyntheticAdapter({.id = 1}).view(), setup.upload).value();
  const auto handle = setup.pool.publish(std::move(pending), {&stream, 1}).value();
  const PoolStats before = setup.pool.stats();
  // NOLINTNEXTLINE(bugprone-use-after-move): publish leaves an empty one, which answers
  const auto again = setup.pool.publish(std::move(pending), {&stream, 1});
  CHECK(again.status().code() == StatusCode::invalid_argument);
  // NOLINTNEXTLINE(bugprone-use-after-move)
  CHECK(pending.poll().status().code() == StatusCode::invalid_argument);
  pending.cancel();
  CHECK(setup.pool.resident(handle));
  CHECK(setup.pool.stats().num_loads == before.num_loads);
  CHECK(setup.pool.stats().arena_in_use == before.arena_in_use);
}

TEST_CASE("misuse: an unpin too many is refused and frees nobody else's pin") {
  Setup setup(1);
  const auto a = setup.load(1);
  REQUIRE(setup.pool.pin(a).ok());
  REQUIRE(setup.pool.unpin(a).ok());
  const Status twice = setup.pool.unpin(a);
  CHECK(twice.code() == StatusCode::invalid_argument);
  CHECK(contains(twice, "not pinned"));
  // The pin that follows counts for itself.
  REQUIRE(setup.pool.pin(a).ok());
  CHECK(setup.pool.stats().num_pinned == 1);
  const Stream stream = setup.step;
  CHECK(setup.pool.unload(a, {&stream, 1}).code() == StatusCode::no_room);
  CHECK(setup.pool.unpin(a).ok());
}

TEST_CASE("misuse: the handle of an old version unpins nothing of the new one") {
  Setup setup(1);
  const auto old = setup.load(1);
  const auto now = setup.load(2);
  REQUIRE(old.slot == now.slot);
  REQUIRE(setup.pool.pin(now).ok());
  for (const Status& status : {setup.pool.unpin(old), setup.pool.pin(old)}) {
    CHECK(status.code() == StatusCode::invalid_argument);
    CHECK(contains(status, std::to_string(old.version).c_str()));
    CHECK(contains(status, std::to_string(now.version).c_str()));
  }
  CHECK(setup.pool.stats().num_pinned == 1);
  const Stream stream = setup.step;
  CHECK(setup.pool.unload(old, {&stream, 1}).code() == StatusCode::invalid_argument);
  for (const std::int32_t slot : {-1, 1, INT32_MIN, INT32_MAX}) {
    CHECK(setup.pool.pin({slot, 0, now.version}).code() == StatusCode::invalid_argument);
    CHECK(setup.pool.unpin({slot, 0, now.version}).code() == StatusCode::invalid_argument);
    CHECK_FALSE(setup.pool.resident({slot, 0, now.version}));
  }
  CHECK(setup.pool.unpin(now).ok());
}

TEST_CASE("misuse: a pending load dropped in the midst of its upload gives its memory back once") {
  Setup setup(1);
  {
    setup.backend.hold(setup.upload);
    auto pending = setup.pool.prepare(SyntheticAdapter({.id = 1}).view(), setup.upload);
    REQUIRE(pending.ok());
    CHECK(setup.pool.stats().arena_in_use > 0);
  }
  CHECK(setup.pool.stats().arena_in_use > 0);  // the copy still writes there
  setup.backend.release(setup.upload);
  REQUIRE(setup.upload.synchronize().ok());
  CHECK(setup.pool.stats().arena_in_use == 0);
  CHECK(setup.pool.resident(setup.load(2)));
}

TEST_CASE("misuse: upload stream, pool and pending load end in any order") {
  FakeBackend backend;
  for (int order = 0; order < 6; ++order) {
    std::optional<OwnedStream> upload = OwnedStream::create(backend, StreamMode::worker).value();
    std::optional<AdapterPool> pool =
        AdapterPool::create(backend, model_targets(), small_options(1, 1 << 16)).value();
    std::optional<Pending> pending =
        pool->prepare(SyntheticAdapter({.id = 1}).view(), *upload).value();
    constexpr int kOrders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                   {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    for (const int what : kOrders[order]) {
      if (what == 0) upload.reset();
      if (what == 1) pool.reset();
      if (what == 2) pending.reset();
    }
    const FakeCounters counters = backend.counters();
    CAPTURE(order);
    CHECK(counters.device_bytes == 0);
    CHECK(counters.pinned_bytes == 0);
    CHECK(counters.streams == 0);
    CHECK(counters.events == 0);
  }
}
