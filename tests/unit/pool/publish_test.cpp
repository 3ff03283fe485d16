// Publishing: what steps see, on inline and worker streams, and when memory comes back.
#include <doctest/doctest.h>

#include <cstring>
#include <string>
#include <thread>

#include "fixture.hpp"

using namespace rankfold;
using namespace rankfold::testing;

namespace {

struct Setup {
  explicit Setup(std::int32_t num_slots = 2, std::uint64_t arena_bytes = 1 << 16,
                 StreamMode mode = StreamMode::worker)
      : pool(AdapterPool::create(backend, model_targets(), small_options(num_slots, arena_bytes))
                 .value()),
        upload(OwnedStream::create(backend, mode).value()),
        step(OwnedStream::create(backend, mode).value()) {}
  FakeBackend backend;
  AdapterPool pool;
  OwnedStream upload;
  OwnedStream step;
};

bool runs(Setup& setup, std::vector<std::int32_t> slots, std::vector<const AdapterSpec*> adapters) {
  Step step(setup.backend, setup.pool, slots);
  REQUIRE(step.enqueue(setup.step).ok());
  REQUIRE(setup.step.synchronize().ok());
  for (std::size_t row = 0; row < adapters.size(); ++row) {
    if (!step.row_is(row, adapters[row])) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("publish: base, two adapters of different ranks and the empty slot in one batch") {
  for (const StreamMode mode : {StreamMode::inline_, StreamMode::worker}) {
    Setup setup(3, 1 << 16, mode);
    const AdapterSpec x{.id = 1, .rank = 3, .bias = true};
    const AdapterSpec y{.id = 2, .rank = 8, .scaling = 2.0f, .vocabulary = 10};
    const auto hx = load_ok(setup.pool, x, setup.upload, setup.step);
    const auto hy = load_ok(setup.pool, y, setup.upload, setup.step);
    CHECK(hx.slot != hy.slot);
    CHECK(hx.version != hy.version);
    const std::int32_t empty = 3 - hx.slot - hy.slot;
    CHECK(runs(setup, {-1, hx.slot, hy.slot, empty, hx.slot, 17},
               {nullptr, &x, &y, nullptr, &x, nullptr}));
  }
}

TEST_CASE("publish: the adapter's bytes may go as soon as prepare returns") {
  Setup setup;
  const AdapterSpec spec{.id = 5};
  SyntheticAdapter adapter(spec);
  setup.backend.hold(setup.upload);
  auto pending = setup.pool.prepare(adapter.view(), setup.upload);
  REQUIRE(pending.ok());
  CHECK_FALSE(pending->poll().value());
  adapter.scramble();
  setup.backend.release(setup.upload);
  const Stream step = setup.step;
  const auto handle = setup.pool.publish(std::move(*pending), {&step, 1});
  REQUIRE(handle.ok());
  CHECK(runs(setup, {handle->slot}, {&spec}));
}

TEST_CASE("publish: a step enqueued before the upload has arrived waits for it") {
  Setup setup;
  const AdapterSpec spec{.id = 6};
  const SyntheticAdapter adapter(spec);
  setup.backend.hold(setup.upload);
  auto pending = setup.pool.prepare(adapter.view(), setup.upload);
  const Stream stream = setup.step;
  const auto handle = setup.pool.publish(std::move(*pending), {&stream, 1});
  REQUIRE(handle.ok());
  Step step(setup.backend, setup.pool, {handle->slot});
  REQUIRE(step.enqueue(setup.step).ok());
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(step.row_is(0, nullptr));
  setup.backend.release(setup.upload);
  REQUIRE(setup.step.synchronize().ok());
  CHECK(step.row_is(0, &spec));
}

TEST_CASE("publish: every stream named finishes its steps before, and starts none before") {
  Setup setup(1);
  auto second = OwnedStream::create(setup.backend, StreamMode::worker).value();
  const AdapterSpec old_spec{.id = 1}, new_spec{.id = 2};
  const auto old_handle = load_ok(setup.pool, old_spec, setup.upload, setup.step);
  // One slow stream at a time: its step is enqueued, then switched behind, then follows another.
  for (const bool first_is_slow : {true, false}) {
    const auto& from = first_is_slow ? old_spec : new_spec;
    const auto& to = first_is_slow ? new_spec : old_spec;
    const Stream slow = first_is_slow ? setup.step.get() : second.get();
    const Stream fast = first_is_slow ? second.get() : setup.step.get();
    Step before(setup.backend, setup.pool, {old_handle.slot});
    Step after(setup.backend, setup.pool, {old_handle.slot});
    setup.backend.hold(slow);
    REQUIRE(before.enqueue(slow).ok());
    const SyntheticAdapter adapter(to);
    auto pending = setup.pool.prepare(adapter.view(), setup.upload);
    REQUIRE(pending.ok());
    REQUIRE(setup.upload.synchronize().ok());
    const Stream streams[] = {setup.step, second};
    REQUIRE(setup.pool.publish(std::move(*pending), streams).ok());
    REQUIRE(after.enqueue(fast).ok());
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    CHECK(after.row_is(0, nullptr));  // waits for the slow stream's step
    setup.backend.release(slow);
    REQUIRE(setup.step.synchronize().ok());
    REQUIRE(second.synchronize().ok());
    CHECK(before.row_is(0, &from));
    CHECK(after.row_is(0, &to));
  }
}

TEST_CASE("D14: memory of an evicted adapter returns only after the steps that may read it") {
  const AdapterSpec x{.id = 1}, y{.id = 2};
  const std::uint64_t one = arena_bytes_of(x);
  Setup setup(1, 3 * one);
  const auto handle = load_ok(setup.pool, x, setup.upload, setup.step);
  REQUIRE(setup.step.synchronize().ok());
  setup.backend.hold(setup.step);
  Step in_flight(setup.backend, setup.pool, {handle.slot});
  REQUIRE(setup.pool.pin(handle).ok());
  REQUIRE(in_flight.enqueue(setup.step).ok());
  REQUIRE(setup.pool.unpin(handle).ok());
  load_ok(setup.pool, y, setup.upload, setup.step);
  CHECK(setup.pool.stats().arena_in_use == 2 * one);  // x is still read
  CHECK(setup.pool.stats().num_resident == 1);
  // A further load finds the third part of the arena, never x's.
  const SyntheticAdapter z({.id = 3});
  auto pending = setup.pool.prepare(z.view(), setup.upload);
  REQUIRE(pending.ok());
  REQUIRE(setup.upload.synchronize().ok());
  setup.backend.release(setup.step);
  REQUIRE(setup.step.synchronize().ok());
  CHECK(in_flight.row_is(0, &x));
  CHECK(setup.pool.stats().arena_in_use == 2 * one);  // y and the pending z
  pending->cancel();
  CHECK(setup.pool.stats().arena_in_use == one);
}

TEST_CASE("D4: a slot used again serves the new adapter to the same ids") {
  for (const StreamMode mode : {StreamMode::inline_, StreamMode::worker}) {
    Setup setup(1, 1 << 16, mode);
    const AdapterSpec x{.id = 1}, y{.id = 2};
    const auto hx = load_ok(setup.pool, x, setup.upload, setup.step);
    CHECK(runs(setup, {0, -1}, {&x, nullptr}));
    const Stream step = setup.step;
    REQUIRE(setup.pool.unload(hx, {&step, 1}).ok());
    CHECK(runs(setup, {0, -1}, {nullptr, nullptr}));
    const auto hy = load_ok(setup.pool, y, setup.upload, setup.step);
    CHECK(hy.slot == hx.slot);
    CHECK(hy.version > hx.version);
    CHECK(runs(setup, {0, -1}, {&y, nullptr}));
  }
}

TEST_CASE("D5: targets that a new adapter lacks become rank 0 in its slot") {
  Setup setup(1);
  const AdapterSpec all{.id = 1, .targets = kAll};
  const AdapterSpec part{.id = 2, .targets = kDown};
  load_ok(setup.pool, all, setup.upload, setup.step);
  load_ok(setup.pool, part, setup.upload, setup.step);
  CHECK(runs(setup, {0}, {&part}));
  // A missing slice of a target likewise.
  SyntheticAdapter q_only({.id = 3, .targets = kQkv});
  q_only.bindings().resize(1);
  const Stream step = setup.step;
  const auto handle = setup.pool.load(q_only.view(), setup.upload, {&step, 1});
  REQUIRE(handle.ok());
  REQUIRE(setup.step.synchronize().ok());
  const auto table = setup.pool.table("qkv").value();
  for (std::int32_t slice = 0; slice < 3; ++slice) {
    CHECK(table.entries[entry_index(table, 0, 0, slice)].rank == (slice == 0 ? 4 : 0));
  }
}

TEST_CASE("C1: a batch without adapters after one with them leaves every row alone") {
  Setup setup(2);
  const AdapterSpec x{.id = 1}, y{.id = 2};
  load_ok(setup.pool, x, setup.upload, setup.step);
  load_ok(setup.pool, y, setup.upload, setup.step);
  CHECK(runs(setup, {0, 0, 1}, {&x, &x, &y}));
  CHECK(runs(setup, {-1, -1}, {nullptr, nullptr}));
}

TEST_CASE("D8: two slots alternate for a thousand steps with loads in between") {
  Setup setup(2);
  AdapterSpec specs[2] = {{.id = 0}, {.id = 1}};
  AdapterHandle handles[2];
  for (int i = 0; i < 2; ++i) {
    handles[i] = load_ok(setup.pool, specs[i], setup.upload, setup.step);
  }
  int wrong = 0;
  for (int round = 0; round < 1000; ++round) {
    const int used = round % 2;
    if (round % 5 == 4) {
      const int other = 1 - used;
      REQUIRE(setup.pool.pin(handles[used]).ok());
      specs[other] = {.id = round, .rank = 1 + round % 8};
      handles[other] = load_ok(setup.pool, specs[other], setup.upload, setup.step);
      REQUIRE(setup.pool.unpin(handles[used]).ok());
    }
    wrong += runs(setup, {handles[used].slot}, {&specs[used]}) ? 0 : 1;
  }
  CHECK(wrong == 0);
  CHECK(setup.pool.stats().num_loads == 202);
}

TEST_CASE("H6: the scaling stays float32 beside bf16 weights") {
  Setup setup(1);
  const AdapterSpec spec{.id = 1, .scaling = 1.0f / 3.0f};
  load_ok(setup.pool, spec, setup.upload, setup.step);
  REQUIRE(setup.step.synchronize().ok());
  const auto table = setup.pool.table("down").value();
  REQUIRE(table.entries[0].scaling == 1.0f / 3.0f);
  std::uint16_t first = 0;
  std::memcpy(&first, table.entries[0].b, sizeof(first));
  const SyntheticAdapter adapter(spec);
  std::uint16_t given = 0;
  std::memcpy(&given, adapter.view()[3].b.data, sizeof(given));
  CHECK(first == given);
}

TEST_CASE("publish: streams that are missing or null are refused") {
  Setup setup;
  const SyntheticAdapter adapter({.id = 1});
  auto pending = setup.pool.prepare(adapter.view(), setup.upload);
  REQUIRE(pending.ok());
  const auto none = setup.pool.publish(std::move(*pending), {});
  CHECK(none.status().code() == StatusCode::invalid_argument);
  CHECK(std::string(none.status().message()).find("step_streams is empty") != std::string::npos);
  const Stream streams[] = {setup.step, Stream{}};
  const auto null = setup.pool.publish(std::move(*pending), streams);
  CHECK(std::string(null.status().message()).find("step_streams[1] is null") != std::string::npos);
  const Stream step = setup.step;
  CHECK(setup.pool.publish(std::move(*pending), {&step, 1}).ok());
  CHECK(setup.pool.publish(std::move(*pending), {&step, 1}).status().code() ==
        StatusCode::invalid_argument);
}

TEST_CASE("publish: a pending load of another pool is refused") {
  Setup setup;
  auto other =
      AdapterPool::create(setup.backend, model_targets(), small_options(1, 1 << 16)).value();
  const SyntheticAdapter adapter({.id = 1});
  auto pending = other.prepare(adapter.view(), setup.upload);
  const Stream step = setup.step;
  CHECK(setup.pool.publish(std::move(*pending), {&step, 1}).status().code() ==
        StatusCode::invalid_argument);
  CHECK(other.publish(std::move(*pending), {&step, 1}).ok());
}
