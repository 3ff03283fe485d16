// The device fails: at every call of a load in turn. What was resident stays, or is told.
#include <doctest/doctest.h>

#include "fixture.hpp"

using namespace rankfold;
using namespace rankfold::testing;

namespace {

const AdapterSpec kOld{.id = 1}, kNew{.id = 2}, kOther{.id = 3};
const std::uint64_t kOne = arena_bytes_of(kOld);

struct Setup {
  Setup(std::int32_t num_slots, std::uint64_t arena_bytes)
      : pool(AdapterPool::create(backend, model_targets(), small_options(num_slots, arena_bytes))
                 .value()),
        upload(OwnedStream::create(backend, StreamMode::worker).value()),
        first(OwnedStream::create(backend, StreamMode::worker).value()),
        second(OwnedStream::create(backend, StreamMode::worker).value()) {}
  std::vector<Stream> streams() const { return {first, second}; }
  bool shows(AdapterHandle handle, const AdapterSpec* spec) {
    for (const Stream stream : streams()) {
      Step step(backend, pool, {handle.slot});
      REQUIRE(step.enqueue(stream).ok());
      REQUIRE(backend.synchronize(stream).ok());
      if (!step.row_is(0, spec)) return false;
    }
    return true;
  }
  AdapterHandle load(const AdapterSpec& spec) {
    const auto handle = pool.load(SyntheticAdapter(spec).view(), upload, streams());
    INFO(handle.status().message());
    REQUIRE(handle.ok());
    return *handle;
  }
  FakeBackend backend;
  AdapterPool pool;
  OwnedStream upload;
  OwnedStream first;
  OwnedStream second;
};

}  // namespace

TEST_CASE("failure: any call of the upload that fails leaves the pool as it was") {
  // Two chunks of the ring: two copies, a record each, and the record of the upload.
  const struct {
    FakeCall call;
    int skip;
  } calls[] = {{FakeCall::copy, 0},
               {FakeCall::copy, 1},
               {FakeCall::record, 0},
               {FakeCall::record, 1},
               {FakeCall::record, 2}};
  for (const auto& failing : calls) {
    const FakeCall call = failing.call;
    const int skip = failing.skip;
    CAPTURE(static_cast<int>(call));
    CAPTURE(skip);
    Setup setup(1, 3 * kOne);
    const auto old_handle = setup.load(kOld);
    setup.backend.fail(call, skip);
    const auto pending = setup.pool.prepare(SyntheticAdapter(kNew).view(), setup.upload);
    CHECK(pending.status().code() == StatusCode::device_error);
    REQUIRE(setup.upload.synchronize().ok());
    CHECK(setup.pool.stats().arena_in_use == kOne);
    CHECK(setup.pool.resident(old_handle));
    CHECK(setup.shows(old_handle, &kOld));
    const auto new_handle = setup.load(kNew);
    CHECK(setup.shows(new_handle, &kNew));
  }
}

TEST_CASE("failure: a switch that is not enqueued leaves the pool as it was, and is tried again") {
  // One join, the upload, the copy: calls of publish before the entries are written.
  const struct {
    FakeCall call;
    int skip;
  } before[] = {
      {FakeCall::record, 0}, {FakeCall::wait, 0}, {FakeCall::wait, 1}, {FakeCall::copy, 0}};
  for (const auto& failing : before) {
    const FakeCall call = failing.call;
    const int skip = failing.skip;
    CAPTURE(static_cast<int>(call));
    CAPTURE(skip);
    Setup setup(1, 3 * kOne);
    const auto old_handle = setup.load(kOld);
    auto pending = setup.pool.prepare(SyntheticAdapter(kNew).view(), setup.upload).value();
    setup.backend.fail(call, skip);
    const auto refused = setup.pool.publish(std::move(pending), setup.streams());
    CHECK(refused.status().code() == StatusCode::device_error);
    CHECK(setup.pool.resident(old_handle));
    CHECK(setup.shows(old_handle, &kOld));
    CHECK(setup.pool.stats().num_evictions == 0);
    const auto handle = setup.pool.publish(std::move(pending), setup.streams());
    REQUIRE(handle.ok());
    CHECK(setup.shows(*handle, &kNew));
    CHECK_FALSE(setup.pool.resident(old_handle));
  }
}

TEST_CASE("failure: a switch that was enqueued goes through by waiting on the host") {
  const struct {
    FakeCall call;
    int skip;
  } after[] = {{FakeCall::record, 1}, {FakeCall::wait, 2}};
  for (const auto& failing : after) {
    const FakeCall call = failing.call;
    const int skip = failing.skip;
    CAPTURE(static_cast<int>(call));
    Setup setup(1, 3 * kOne);
    setup.load(kOld);
    auto pending = setup.pool.prepare(SyntheticAdapter(kNew).view(), setup.upload).value();
    setup.backend.fail(call, skip);
    const auto handle = setup.pool.publish(std::move(pending), setup.streams());
    REQUIRE(handle.ok());
    CHECK(setup.shows(*handle, &kNew));
    CHECK(setup.pool.stats().arena_in_use == kOne);
  }
}

TEST_CASE("failure: where even that fails, the slot is out of use and no memory is given away") {
  Setup setup(2, 3 * kOne);
  const auto old_handle = setup.load(kOld);
  const auto other = setup.load(kOther);
  REQUIRE(setup.pool.pin(other).ok());
  auto pending = setup.pool.prepare(SyntheticAdapter(kNew).view(), setup.upload).value();
  setup.backend.fail(FakeCall::record, 1);
  setup.backend.fail(FakeCall::synchronize, 0);
  CHECK(setup.pool.publish(std::move(pending), setup.streams()).status().code() ==
        StatusCode::device_error);
  CHECK_FALSE(setup.pool.resident(old_handle));
  CHECK(setup.pool.pin(old_handle).code() == StatusCode::invalid_argument);
  CHECK(setup.pool.stats().arena_in_use == 3 * kOne);
  CHECK(setup.shows(other, &kOther));
  CHECK(setup.pool.prepare(SyntheticAdapter(kNew).view(), setup.upload).status().code() ==
        StatusCode::no_room);
}

TEST_CASE("failure: unload that is not enqueued leaves the adapter resident") {
  Setup setup(1, kOne);
  const auto handle = setup.load(kOld);
  setup.backend.fail(FakeCall::fill, 0);
  CHECK(setup.pool.unload(handle, setup.streams()).code() == StatusCode::device_error);
  CHECK(setup.shows(handle, &kOld));
  CHECK(setup.pool.unload(handle, setup.streams()).ok());
  CHECK(setup.shows(handle, nullptr));
  REQUIRE(setup.first.synchronize().ok());
  CHECK(setup.pool.stats().arena_in_use == 0);
}

TEST_CASE("failure: of two victims one cannot be cleared: it stays, the other is told gone") {
  const AdapterSpec large{.id = 9, .rank = 8};
  Setup setup(3, 2 * kOne);
  const auto a = setup.load(kOld);
  const auto b = setup.load(kOther);
  auto pending = setup.pool.prepare(SyntheticAdapter(large).view(), setup.upload).value();
  for (const int skip : {0, 1}) {
    setup.backend.fail(FakeCall::fill, skip);
    const auto refused = setup.pool.publish(std::move(pending), setup.streams());
    CHECK(refused.status().code() == StatusCode::device_error);
    CHECK(setup.pool.resident(a) == (skip == 0));
    CHECK(setup.pool.resident(b));
    CHECK(setup.shows(b, &kOther));
    CHECK(setup.shows(a, skip == 0 ? &kOld : nullptr));
  }
  CHECK(setup.pool.stats().arena_in_use == kOne);
  const auto handle = setup.pool.publish(std::move(pending), setup.streams());
  REQUIRE(handle.ok());
  CHECK(setup.shows(*handle, &large));
  CHECK(setup.pool.stats().arena_in_use == 2 * kOne);
}

TEST_CASE("failure: a deferred upload that fails returns its slot and its memory") {
  Setup setup(1, kOne);
  const auto a = setup.load(kOld);
  auto pending = setup.pool.prepare(SyntheticAdapter(kNew).view(), setup.upload).value();
  setup.backend.fail(FakeCall::copy, 0);
  CHECK(setup.pool.publish(std::move(pending), setup.streams()).status().code() ==
        StatusCode::device_error);
  CHECK(pending.poll().status().code() == StatusCode::invalid_argument);
  CHECK_FALSE(setup.pool.resident(a));
  CHECK(setup.shows(a, nullptr));
  REQUIRE(setup.upload.synchronize().ok());
  CHECK(setup.pool.stats().arena_in_use == 0);
  const auto handle = setup.load(kNew);
  CHECK(setup.shows(handle, &kNew));
}

TEST_CASE("failure: memory whose event cannot be asked is not given away") {
  Setup setup(1, 2 * kOne);
  setup.load(kOld);
  setup.load(kNew);
  REQUIRE(setup.first.synchronize().ok());
  setup.backend.fail(FakeCall::query, 0, 100);
  CHECK(setup.pool.stats().arena_in_use == 2 * kOne);
  setup.backend.fail(FakeCall::query, 0, 0);
  CHECK(setup.pool.stats().arena_in_use == kOne);
}
