// Slots and arena room: eviction, no_room, cancelled and deferred loads.
#include <doctest/doctest.h>

#include <string>
#include <thread>

#include "fixture.hpp"

using namespace rankfold;
using namespace rankfold::testing;

namespace {

struct Setup {
  Setup(std::int32_t num_slots, std::uint64_t arena_bytes)
      : pool(AdapterPool::create(backend, model_targets(), small_options(num_slots, arena_bytes))
                 .value()),
        upload(OwnedStream::create(backend, StreamMode::worker).value()),
        step(OwnedStream::create(backend, StreamMode::worker).value()) {}
  AdapterHandle load(const AdapterSpec& spec) { return load_ok(pool, spec, upload, step); }
  Result<Pending> prepare(const AdapterSpec& spec) {
    return pool.prepare(SyntheticAdapter(spec).view(), upload);
  }
  Result<AdapterHandle> publish(Pending& pending) {
    const Stream stream = step;
    return pool.publish(std::move(pending), {&stream, 1});
  }
  bool shows(AdapterHandle handle, const AdapterSpec& spec) {
    Step one(backend, pool, {handle.slot});
    REQUIRE(one.enqueue(step).ok());
    REQUIRE(step.synchronize().ok());
    return one.row_is(0, &spec);
  }
  FakeBackend backend;
  AdapterPool pool;
  OwnedStream upload;
  OwnedStream step;
};

const AdapterSpec kSpecs[] = {{.id = 10}, {.id = 11}, {.id = 12}, {.id = 13}, {.id = 14}};
const std::uint64_t kOne = arena_bytes_of(kSpecs[0]);

}  // namespace

TEST_CASE("evict: the least recently pinned or published adapter goes first") {
  Setup setup(3, 1 << 16);
  const auto a = setup.load(kSpecs[0]);
  const auto b = setup.load(kSpecs[1]);
  const auto c = setup.load(kSpecs[2]);
  REQUIRE(setup.pool.pin(a).ok());
  REQUIRE(setup.pool.unpin(a).ok());  // b is now the oldest
  const auto d = setup.load(kSpecs[3]);
  CHECK(d.slot == b.slot);
  CHECK_FALSE(setup.pool.resident(b));
  CHECK(setup.pool.resident(a));
  const auto e = setup.load(kSpecs[4]);
  CHECK(e.slot == c.slot);
  CHECK(setup.shows(a, kSpecs[0]));
  CHECK(setup.shows(d, kSpecs[3]));
  CHECK(setup.shows(e, kSpecs[4]));
  CHECK(setup.pool.stats().num_evictions == 2);
}

TEST_CASE("evict: a handle of an evicted adapter is recognised") {
  Setup setup(1, 1 << 16);
  const auto old_handle = setup.load(kSpecs[0]);
  const auto new_handle = setup.load(kSpecs[1]);
  const Status status = setup.pool.pin(old_handle);
  CHECK(status.code() == StatusCode::invalid_argument);
  CHECK(std::string(status.message()) ==
        "pin: handle is slot 0 version 1, which is no longer resident; the slot holds version 2");
  CHECK(setup.pool.unpin(old_handle).code() == StatusCode::invalid_argument);
  CHECK(setup.pool.unpin(new_handle).code() == StatusCode::invalid_argument);
  CHECK(setup.pool.pin({-1, 0, 1}).code() == StatusCode::invalid_argument);
  CHECK(setup.pool.pin({1, 0, 2}).code() == StatusCode::invalid_argument);
  const Stream stream = setup.step;
  REQUIRE(setup.pool.unload(new_handle, {&stream, 1}).ok());
  CHECK(setup.pool.pin(new_handle).code() == StatusCode::invalid_argument);
  CHECK(setup.pool.unload(new_handle, {&stream, 1}).code() == StatusCode::invalid_argument);
  CHECK(setup.load(kSpecs[2]).version == 3);
}

TEST_CASE("I9: a full pool with everything pinned answers no_room and changes nothing") {
  Setup setup(2, 1 << 16);
  const auto a = setup.load(kSpecs[0]);
  const auto b = setup.load(kSpecs[1]);
  REQUIRE(setup.pool.pin(a).ok());
  REQUIRE(setup.pool.pin(b).ok());
  REQUIRE(setup.pool.pin(b).ok());
  const auto before = setup.pool.stats();
  const auto refused = setup.prepare(kSpecs[2]);
  CHECK(refused.status().code() == StatusCode::no_room);
  CHECK(std::string(refused.status().message()).find("of 2 slots 2 are pinned") !=
        std::string::npos);
  CHECK(setup.pool.stats().arena_in_use == before.arena_in_use);
  CHECK(setup.shows(a, kSpecs[0]));
  CHECK(setup.shows(b, kSpecs[1]));
  const Stream stream = setup.step;
  CHECK(setup.pool.unload(a, {&stream, 1}).code() == StatusCode::no_room);
  REQUIRE(setup.pool.unpin(b).ok());
  CHECK(setup.prepare(kSpecs[2]).status().code() == StatusCode::no_room);  // pinned once more
  REQUIRE(setup.pool.unpin(b).ok());
  const auto c = setup.load(kSpecs[2]);
  CHECK(c.slot == b.slot);
  CHECK(setup.shows(a, kSpecs[0]));
  CHECK(setup.shows(c, kSpecs[2]));
}

TEST_CASE("cancel: a prepared load that is dropped leaves the pool as it was") {
  Setup setup(1, 2 * kOne);
  const auto a = setup.load(kSpecs[0]);
  for (const bool explicitly : {true, false}) {
    auto pending = setup.prepare(kSpecs[1]);
    REQUIRE(pending.ok());
    CHECK(setup.pool.resident(a));
    CHECK(setup.pool.stats().arena_in_use == 2 * kOne);
    if (explicitly) {
      pending->cancel();
      CHECK(pending->poll().status().code() == StatusCode::cancelled);
      CHECK(setup.publish(*pending).status().code() == StatusCode::cancelled);
      pending->cancel();
    } else {
      *pending = Pending();
      CHECK(pending->poll().status().code() == StatusCode::invalid_argument);
    }
    REQUIRE(setup.upload.synchronize().ok());
    CHECK(setup.pool.stats().arena_in_use == kOne);
    CHECK(setup.shows(a, kSpecs[0]));
  }
  CHECK(setup.pool.stats().num_evictions == 0);
}

TEST_CASE("cancel: memory returns only after the upload has run") {
  Setup setup(1, 2 * kOne);
  setup.backend.hold(setup.upload);
  auto pending = setup.prepare(kSpecs[0]);
  REQUIRE(pending.ok());
  pending->cancel();
  CHECK(setup.pool.stats().arena_in_use == kOne);
  setup.backend.release(setup.upload);
  REQUIRE(setup.upload.synchronize().ok());
  CHECK(setup.pool.stats().arena_in_use == 0);
}

TEST_CASE("pending: a pin beats a pending load; publish answers no_room and may be tried again") {
  Setup setup(1, 2 * kOne);
  const auto a = setup.load(kSpecs[0]);
  auto pending = setup.prepare(kSpecs[1]);
  REQUIRE(pending.ok());
  REQUIRE(setup.pool.pin(a).ok());
  CHECK(setup.publish(*pending).status().code() == StatusCode::no_room);
  CHECK(setup.shows(a, kSpecs[0]));
  REQUIRE(setup.pool.unpin(a).ok());
  const auto b = setup.publish(*pending);
  REQUIRE(b.ok());
  CHECK(setup.shows(*b, kSpecs[1]));
}

TEST_CASE("pending: as many loads at once as slots that could serve them") {
  Setup setup(2, 1 << 16);
  const auto a = setup.load(kSpecs[0]);
  REQUIRE(setup.pool.pin(a).ok());
  auto first = setup.prepare(kSpecs[1]);
  REQUIRE(first.ok());
  CHECK(setup.prepare(kSpecs[2]).status().code() == StatusCode::no_room);
  const auto b = setup.publish(*first);
  REQUIRE(b.ok());
  auto second = setup.prepare(kSpecs[2]);
  REQUIRE(second.ok());
  REQUIRE(setup.publish(*second).ok());
  CHECK_FALSE(setup.pool.resident(*b));
}

TEST_CASE("arena: too full evicts as a full pool does, and only at publish") {
  Setup setup(4, 2 * kOne + 64);
  const auto a = setup.load(kSpecs[0]);
  const auto b = setup.load(kSpecs[1]);
  auto pending = setup.prepare(kSpecs[2]);
  REQUIRE(pending.ok());
  CHECK(pending->poll().value());
  CHECK(setup.pool.resident(a));
  CHECK(setup.shows(a, kSpecs[0]));
  pending->cancel();
  CHECK(setup.shows(a, kSpecs[0]));
  CHECK(setup.pool.stats().arena_in_use == 2 * kOne);

  auto again = setup.prepare(kSpecs[2]);
  REQUIRE(again.ok());
  const auto c = setup.publish(*again);
  REQUIRE(c.ok());
  CHECK_FALSE(setup.pool.resident(a));
  CHECK(setup.pool.resident(b));
  CHECK(setup.shows(*c, kSpecs[2]));
  CHECK(setup.shows(b, kSpecs[1]));
  CHECK(setup.pool.stats().arena_in_use == 2 * kOne);
  CHECK(setup.pool.stats().num_evictions == 1);
}

TEST_CASE("arena: a larger adapter evicts as many as it takes, in order of use") {
  const AdapterSpec large{.id = 20, .rank = 8};  // twice the bytes
  Setup setup(4, 3 * kOne);
  const auto a = setup.load(kSpecs[0]);
  const auto b = setup.load(kSpecs[1]);
  const auto c = setup.load(kSpecs[2]);
  REQUIRE(setup.pool.pin(a).ok());
  REQUIRE(setup.pool.unpin(a).ok());
  const auto d = setup.load(large);
  CHECK(setup.pool.resident(a));
  CHECK_FALSE(setup.pool.resident(b));
  CHECK_FALSE(setup.pool.resident(c));
  CHECK(setup.shows(a, kSpecs[0]));
  CHECK(setup.shows(d, large));
  CHECK(setup.pool.stats().num_evictions == 2);
  // The slots of the evicted are rank 0, but for the one used again.
  const auto table = setup.pool.table("down").value();
  for (std::int32_t slot = 0; slot < 4; ++slot) {
    const auto rank = table.entries[entry_index(table, slot, 0, 0)].rank;
    CHECK(rank == (slot == a.slot ? 4 : (slot == d.slot ? 8 : 0)));
  }
}

TEST_CASE("arena: pinned adapters are not evicted for memory; no_room names the bytes") {
  Setup setup(4, 2 * kOne);
  const auto a = setup.load(kSpecs[0]);
  const auto b = setup.load(kSpecs[1]);
  REQUIRE(setup.pool.pin(a).ok());
  REQUIRE(setup.pool.pin(b).ok());
  const auto refused = setup.prepare(kSpecs[2]);
  CHECK(refused.status().code() == StatusCode::no_room);
  CHECK(std::string(refused.status().message()).find(std::to_string(kOne)) != std::string::npos);
  // A deferred load whose victims are pinned meanwhile may be tried again.
  REQUIRE(setup.pool.unpin(b).ok());
  auto pending = setup.prepare(kSpecs[2]);
  REQUIRE(pending.ok());
  REQUIRE(setup.pool.pin(b).ok());
  CHECK(setup.publish(*pending).status().code() == StatusCode::no_room);
  CHECK(setup.pool.resident(b));
  REQUIRE(setup.pool.unpin(b).ok());
  const auto c = setup.publish(*pending);
  REQUIRE(c.ok());
  CHECK(setup.shows(*c, kSpecs[2]));
  CHECK(setup.shows(a, kSpecs[0]));
}

TEST_CASE("arena: an adapter larger than the arena is refused with both sizes") {
  Setup setup(2, kOne);
  const AdapterSpec large{.id = 20, .rank = 8};
  const auto refused = setup.prepare(large);
  CHECK(refused.status().code() == StatusCode::no_room);
  const std::string text = refused.status().message();
  CHECK(text.find("needs " + std::to_string(arena_bytes_of(large)) + " bytes") !=
        std::string::npos);
  CHECK(text.find("has " + std::to_string(kOne) + " in all") != std::string::npos);
}

TEST_CASE("arena: a deferred load's upload waits for steps that read the victim") {
  Setup setup(2, kOne);
  const auto a = setup.load(kSpecs[0]);
  setup.backend.hold(setup.step);
  Step in_flight(setup.backend, setup.pool, {a.slot});
  REQUIRE(in_flight.enqueue(setup.step).ok());
  auto pending = setup.prepare(kSpecs[1]);
  REQUIRE(pending.ok());
  const auto b = setup.publish(*pending);
  REQUIRE(b.ok());
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  setup.backend.release(setup.step);
  CHECK(setup.shows(*b, kSpecs[1]));
  CHECK(in_flight.row_is(0, &kSpecs[0]));
}

TEST_CASE("arena: what a victim leaves over is not given away before its steps have run") {
  const AdapterSpec large{.id = 20, .rank = 8}, little{.id = 21, .rank = 2};
  Setup setup(2, arena_bytes_of(large));
  const auto a = setup.load(large);
  REQUIRE(setup.step.synchronize().ok());
  setup.backend.hold(setup.step);
  Step in_flight(setup.backend, setup.pool, {a.slot});
  REQUIRE(in_flight.enqueue(setup.step).ok());
  auto pending = setup.prepare(little);
  REQUIRE(pending.ok());
  const auto b = setup.publish(*pending);
  REQUIRE(b.ok());
  CHECK(setup.pool.stats().arena_in_use == arena_bytes_of(large));
  setup.backend.release(setup.step);
  CHECK(setup.shows(*b, little));
  CHECK(in_flight.row_is(0, &large));
  CHECK(setup.pool.stats().arena_in_use == arena_bytes_of(little));
}

TEST_CASE("arena: memory of the evicted that is on its way back is waited for, not evicted twice") {
  Setup setup(3, 2 * kOne);
  const auto a = setup.load(kSpecs[0]);
  const auto b = setup.load(kSpecs[1]);
  const Stream stream = setup.step;
  setup.backend.hold(setup.step);
  REQUIRE(setup.pool.unload(a, {&stream, 1}).ok());
  std::thread releaser([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    setup.backend.release(setup.step);
  });
  auto pending = setup.prepare(kSpecs[2]);
  releaser.join();
  REQUIRE(pending.ok());
  CHECK(setup.pool.resident(b));
  REQUIRE(setup.publish(*pending).ok());
  CHECK(setup.pool.resident(b));
  CHECK(setup.pool.stats().num_evictions == 0);
}

TEST_CASE("arena: fragments serve an adapter that fits in none of them whole") {
  Setup setup(8, 5 * kOne);
  AdapterHandle handles[5];
  for (int i = 0; i < 5; ++i) handles[i] = setup.load({.id = 30 + i});
  const Stream stream = setup.step;
  REQUIRE(setup.pool.unload(handles[0], {&stream, 1}).ok());
  REQUIRE(setup.pool.unload(handles[2], {&stream, 1}).ok());
  REQUIRE(setup.step.synchronize().ok());
  const AdapterSpec two{.id = 40, .rank = 7};  // between one and two holes
  const auto handle = setup.load(two);
  CHECK(setup.pool.stats().num_evictions == 0);
  CHECK(setup.shows(handle, two));
  for (const int i : {1, 3, 4}) CHECK(setup.shows(handles[i], {.id = 30 + i}));
}

TEST_CASE("pool: a pending load that outlives its pool is cancelled") {
  FakeBackend backend;
  auto upload = OwnedStream::create(backend, StreamMode::worker).value();
  Pending pending;
  {
    auto pool = AdapterPool::create(backend, model_targets(), small_options(1, 1 << 16)).value();
    pending = pool.prepare(SyntheticAdapter({.id = 1}).view(), upload).value();
  }
  CHECK(pending.poll().status().code() == StatusCode::cancelled);
  CHECK(backend.counters().device_bytes == 0);
  CHECK(backend.counters().pinned_bytes == 0);
  CHECK(backend.counters().events == 0);
}

TEST_CASE("pool: an empty one answers, and one that is moved over is closed") {
  FakeBackend backend;
  auto a = AdapterPool::create(backend, model_targets(), small_options(1, 1 << 12)).value();
  auto b = AdapterPool::create(backend, model_targets(), small_options(1, 1 << 12)).value();
  const auto both = backend.counters().device_bytes;
  a = std::move(b);
  CHECK(backend.counters().device_bytes == both / 2);
  CHECK(a.table(0).ok());
  CHECK(b.table(0).status().code() == StatusCode::invalid_argument);
  CHECK(b.pin({0, 0, 1}).code() == StatusCode::invalid_argument);
}
