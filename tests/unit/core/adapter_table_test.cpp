// AdapterTable on a backend whose copies run late.
#include <doctest/doctest.h>

#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "fake_backend.hpp"
#include "rankfold/memory.hpp"

using namespace rankfold;
using testing::FakeBackend;
using testing::FakeCall;

namespace {

TableShape shape(std::int32_t num_slots = 3, std::int32_t num_experts = 1) {
  TableShape shape;
  shape.num_slots = num_slots;
  shape.num_experts = num_experts;
  shape.num_slices = 2;
  shape.max_rank = 4;
  shape.in = 8;
  shape.out[0] = 5;
  shape.out[1] = 3;
  return shape;
}

float weights[4096];

AdapterEntry entry(std::int32_t rank, float scaling = 1.0f) {
  AdapterEntry entry;
  entry.a = weights;
  entry.b = weights + 64;
  entry.rank = rank;
  entry.scaling = scaling;
  return entry;
}

// The fake's device memory is the host's.
const AdapterEntry& at(const AdapterTable& table, std::int64_t slot, std::int64_t expert,
                       std::int64_t slice) {
  const AdapterTableView view = table.view();
  return view.entries[entry_index(view, slot, expert, slice)];
}

void check_text(const Status& status, const char* text) {
  CAPTURE(std::string(status.message()));
  CHECK(status.code() == StatusCode::invalid_argument);
  CHECK(std::string(status.message()).find(text) != std::string::npos);
}

}  // namespace

TEST_CASE("a new table is all rank 0, and gives everything back") {
  FakeBackend backend(1);
  {
    AdapterTable table = AdapterTable::create(backend, shape(3, 5)).value();
    const AdapterTableView view = table.view();
    CHECK(view.slot_stride == 10);
    CHECK(view.device == backend.device());
    static const AdapterEntry kZero;
    for (int slot = 0; slot < 3; ++slot) {
      for (int expert = 0; expert < 5; ++expert) {
        for (int slice = 0; slice < 2; ++slice) {
          CHECK(std::memcmp(&at(table, slot, expert, slice), &kZero, sizeof(kZero)) == 0);
        }
      }
    }
    CHECK(backend.counters().device_bytes == 3 * 5 * 2 * 64);
  }
  const auto counters = backend.counters();
  CHECK(counters.device_bytes == 0);
  CHECK(counters.pinned_bytes == 0);
  CHECK(counters.events == 0);
  CHECK(counters.streams == 0);
}

TEST_CASE("set_entry fills in what dense means, and clear_slot empties") {
  FakeBackend backend;
  AdapterTable table = AdapterTable::create(backend, shape(3, 2)).value();
  OwnedStream stream = OwnedStream::create(backend, StreamMode::worker).value();
  REQUIRE(table.set_entry(1, 1, 0, entry(3, 0.5f), stream).ok());
  AdapterEntry narrow = entry(2);
  narrow.in_limit = 6;
  narrow.b_row_stride = 9;
  REQUIRE(table.set_entry(2, 0, 1, narrow, stream).ok());
  REQUIRE(stream.synchronize().ok());
  const AdapterEntry& dense = at(table, 1, 1, 0);
  CHECK(dense.rank == 3);
  CHECK(dense.scaling == 0.5f);
  CHECK(dense.a == weights);
  CHECK(dense.in_limit == 8);
  CHECK(dense.a_row_stride == 8);
  CHECK(dense.b_row_stride == 3);
  CHECK(at(table, 2, 0, 1).in_limit == 6);
  CHECK(at(table, 2, 0, 1).a_row_stride == 6);
  CHECK(at(table, 2, 0, 1).b_row_stride == 9);
  CHECK(at(table, 1, 0, 0).rank == 0);
  REQUIRE(table.clear_slot(1, stream).ok());
  REQUIRE(stream.synchronize().ok());
  CHECK(at(table, 1, 1, 0).a == nullptr);
  CHECK(at(table, 2, 0, 1).rank == 2);
}

TEST_CASE("D10: staging is not written again while a copy that reads it may still run") {
  FakeBackend backend;
  AdapterTable table = AdapterTable::create(backend, shape(64)).value();
  OwnedStream stream = OwnedStream::create(backend, StreamMode::worker).value();
  // One entry changes thirty times behind a long kernel; each step in between must see its own.
  std::vector<float> seen;
  backend.set_delay(stream, std::chrono::microseconds(500));
  for (int step = 1; step <= 30; ++step) {
    REQUIRE(table.set_entry(7, 0, 1, entry(2, static_cast<float>(step)), stream).ok());
    backend.enqueue(stream, [&] { seen.push_back(at(table, 7, 0, 1).scaling); });
  }
  REQUIRE(stream.synchronize().ok());
  REQUIRE(seen.size() == 30);
  for (int step = 1; step <= 30; ++step) CHECK(seen[static_cast<std::size_t>(step - 1)] == step);
}

TEST_CASE("D10: several slots written at once behind a held stream") {
  FakeBackend backend;
  AdapterTable table = AdapterTable::create(backend, shape(64)).value();
  OwnedStream stream = OwnedStream::create(backend, StreamMode::worker).value();
  backend.hold(stream);
  std::thread releaser([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    backend.release(stream);
  });
  for (int slot = 0; slot < 64; ++slot) {
    REQUIRE(table.set_entry(slot, 0, 0, entry(1, static_cast<float>(slot)), stream).ok());
  }
  releaser.join();
  REQUIRE(stream.synchronize().ok());
  for (int slot = 0; slot < 64; ++slot) CHECK(at(table, slot, 0, 0).scaling == float(slot));
}

TEST_CASE("D10: a table that goes waits for copies that still read its staging") {
  FakeBackend backend;
  OwnedStream stream = OwnedStream::create(backend, StreamMode::worker).value();
  backend.set_delay(stream, std::chrono::microseconds(5000));
  AdapterTable table = AdapterTable::create(backend, shape()).value();
  REQUIRE(table.set_entry(0, 0, 0, entry(1), stream).ok());
  table = AdapterTable();
  CHECK(backend.counters().pinned_bytes == 0);
  CHECK(stream.synchronize().ok());
}

TEST_CASE("set_entry refuses before anything is written") {
  FakeBackend backend;
  AdapterTable table = AdapterTable::create(backend, shape()).value();
  OwnedStream stream = OwnedStream::create(backend).value();
  const auto copies = backend.counters().copies;
  check_text(table.set_entry(3, 0, 0, entry(1), stream),
             "set_entry: slot is 3; it should be 0 to 2");
  check_text(table.set_entry(-1, 0, 0, entry(1), stream), "slot is -1");
  check_text(table.set_entry(0, 1, 0, entry(1), stream), "expert is 1; it should be 0 to 0");
  check_text(table.set_entry(0, 0, 2, entry(1), stream), "slice is 2; it should be 0 to 1");
  check_text(table.set_entry(0, 0, 0, entry(5), stream), "rank is 5; it should be 0 to 4");
  check_text(table.set_entry(0, 0, 0, entry(1), Stream{}), "set_entry: stream is null");
  check_text(table.clear_slot(3, stream), "clear_slot: slot is 3");
  check_text(AdapterTable().set_entry(0, 0, 0, entry(1), stream), "the table is empty");
  check_text(AdapterTable().clear_slot(0, stream), "the table is empty");
  CHECK(backend.counters().copies == copies);
  CHECK(at(table, 0, 0, 0).rank == 0);
}

TEST_CASE("create: bad shapes and failures of the backend leave nothing behind") {
  FakeBackend backend;
  TableShape bad = shape();
  bad.in = 0;
  check_text(AdapterTable::create(backend, bad).status(), "AdapterTable::create: shape.in is 0");
  for (int skip = 0; skip < 2; ++skip) {
    backend.fail(FakeCall::allocate, skip);
    CHECK(AdapterTable::create(backend, shape()).status().code() == StatusCode::out_of_memory);
  }
  backend.fail(FakeCall::create_event, 3);
  CHECK(AdapterTable::create(backend, shape()).status().code() == StatusCode::device_error);
  CHECK(backend.counters().device_bytes == 0);
  CHECK(backend.counters().pinned_bytes == 0);
  CHECK(backend.counters().events == 0);
  CHECK(AdapterTable::create(backend, shape(0)).ok());
}

TEST_CASE("a copy or an event that fails is reported, and the table stays usable") {
  FakeBackend backend;
  AdapterTable table = AdapterTable::create(backend, shape()).value();
  OwnedStream stream = OwnedStream::create(backend, StreamMode::worker).value();
  backend.fail(FakeCall::copy, 0);
  CHECK(table.set_entry(0, 0, 0, entry(1), stream).code() == StatusCode::device_error);
  backend.fail(FakeCall::record, 0);
  CHECK(table.set_entry(0, 0, 0, entry(1), stream).code() == StatusCode::device_error);
  for (int i = 0; i < 20; ++i) REQUIRE(table.set_entry(0, 0, 0, entry(2), stream).ok());
  REQUIRE(stream.synchronize().ok());
  CHECK(at(table, 0, 0, 0).rank == 2);
}

TEST_CASE("an entry of rank 0 is all zero, whatever else it says") {
  FakeBackend backend;
  AdapterTable table = AdapterTable::create(backend, shape()).value();
  OwnedStream stream = OwnedStream::create(backend, StreamMode::worker).value();
  REQUIRE(table.set_entry(1, 0, 1, entry(2), stream).ok());
  REQUIRE(table.set_entry(1, 0, 1, entry(0, 3.0f), stream).ok());
  REQUIRE(stream.synchronize().ok());
  static const AdapterEntry kZero;
  CHECK(std::memcmp(&at(table, 1, 0, 1), &kZero, sizeof(kZero)) == 0);
}

TEST_CASE("bind_stacked: each slice of B begins after all that stand before it") {
  FakeBackend backend;
  TableShape wide = shape(2);
  wide.num_slices = 3;
  wide.out[2] = 7;  // behind 5 and 3
  AdapterTable table = AdapterTable::create(backend, wide).value();
  OwnedStream stream = OwnedStream::create(backend, StreamMode::worker).value();
  const Device device = backend.device();
  const ConstTensorView a{weights, DType::f32, 3, {2, 12, 8, 0}, {96, 8, 1, 0}, device};
  const ConstTensorView b{weights + 1000, DType::f32, 3, {2, 15, 4, 0}, {60, 4, 1, 0}, device};
  const std::vector<std::int32_t> ranks(6, 4);
  const std::vector<float> scalings(6, 1.0f);
  REQUIRE(table.bind_stacked(a, b, ranks.data(), scalings.data(), stream).ok());
  REQUIRE(stream.synchronize().ok());
  for (int slot = 0; slot < 2; ++slot) {
    CHECK(at(table, slot, 0, 0).b == weights + 1000 + slot * 60);
    CHECK(at(table, slot, 0, 1).b == weights + 1000 + slot * 60 + 5 * 4);
    CHECK(at(table, slot, 0, 2).b == weights + 1000 + slot * 60 + 8 * 4);
    CHECK(at(table, slot, 0, 2).a == weights + slot * 96 + 2 * 4 * 8);
  }
}

TEST_CASE("bind_stacked binds every slot and slice") {
  FakeBackend backend;
  AdapterTable table = AdapterTable::create(backend, shape()).value();
  OwnedStream stream = OwnedStream::create(backend, StreamMode::worker).value();
  const Device device = backend.device();
  // a [3, 2 * 4, 8] with padded slots, b [3, 8, 4] with padded rows.
  ConstTensorView a{weights, DType::f32, 3, {3, 8, 8, 0}, {100, 8, 1, 0}, device};
  ConstTensorView b{weights + 1000, DType::f32, 3, {3, 8, 4, 0}, {80, 10, 1, 0}, device};
  std::vector<std::int32_t> ranks = {4, 1, 0, 3, 2, 2};
  std::vector<float> scalings = {1, 2, 3, 4, 5, 6};
  const auto bind = [&] { return table.bind_stacked(a, b, ranks.data(), scalings.data(), stream); };
  REQUIRE(bind().ok());
  REQUIRE(stream.synchronize().ok());
  CHECK(at(table, 2, 0, 1).rank == 2);
  CHECK(at(table, 2, 0, 1).scaling == 6.0f);
  CHECK(at(table, 2, 0, 1).a == weights + 2 * 100 + 4 * 8);
  CHECK(at(table, 2, 0, 1).b == weights + 1000 + 2 * 80 + 5 * 10);
  CHECK(at(table, 2, 0, 1).a_row_stride == 8);
  CHECK(at(table, 2, 0, 1).b_row_stride == 10);
  CHECK(at(table, 1, 0, 0).rank == 0);
  CHECK(at(table, 1, 0, 0).a == nullptr);
  CHECK(at(table, 1, 0, 1).in_limit == 8);

  // The last entry is bad: nothing of the call may be written.
  REQUIRE(table.clear_slot(0, stream).ok());
  ranks[5] = 5;
  check_text(bind(), "bind_stacked: slot 2, slice 1: entry: rank is 5; it should be 0 to 4");
  REQUIRE(stream.synchronize().ok());
  CHECK(at(table, 0, 0, 0).rank == 0);
  ranks[5] = 2;

  const auto refused = [&](ConstTensorView& view, auto change, const char* text) {
    const ConstTensorView good = view;
    change(view);
    check_text(bind(), text);
    view = good;
  };
  using V = ConstTensorView;
  refused(
      a, [](V& v) { v.num_dims = 2; }, "a has 2 dimensions; it should have 3");
  refused(
      a, [](V& v) { v.dtype = DType::f16; }, "a has dtype f16; it should be f32, the table's");
  refused(
      a, [](V& v) { v.sizes[0] = 2; }, "a has size 2 in dimension 0; it should have 3");
  refused(
      a, [](V& v) { v.sizes[1] = 4; }, "a has size 4 in dimension 1; it should have 8");
  refused(
      a, [](V& v) { v.sizes[2] = 9; }, "a has size 9 in dimension 2; it should have 8 (in)");
  refused(
      b, [](V& v) { v.sizes[1] = 5; }, "b has size 5 in dimension 1; it should have 8");
  refused(
      b, [](V& v) { v.strides[2] = 2; }, "b has element stride 2; it should be 1");
  refused(
      b, [](V& v) { v.strides[1] = 3; }, "b has row stride 3; it should be at least 4");
  refused(
      b, [](V& v) { v.strides[0] = -1; }, "b has slot stride -1; it should be at least 0");
  refused(
      b, [](V& v) { v.strides[0] = std::int64_t{1} << 62; }, "b has strides");
  refused(
      b, [](V& v) { v.data = nullptr; }, "b is null");
  refused(
      b, [](V& v) { v.device.index = 3; }, "b is on cpu:3; it should be on cpu:0");
  check_text(table.bind_stacked(a, b, nullptr, scalings.data(), stream), "ranks is null");
  check_text(table.bind_stacked(a, b, ranks.data(), nullptr, stream), "scalings is null");
  AdapterTable bank = AdapterTable::create(backend, shape(3, 2)).value();
  check_text(bank.bind_stacked(a, b, ranks.data(), scalings.data(), stream),
             "the table has 2 experts; it should have 1");
}
