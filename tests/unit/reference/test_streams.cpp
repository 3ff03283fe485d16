// Streams and events of both modes.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "../../../reference/src/stream.hpp"
#include "batch.hpp"

using namespace rankfold;
using namespace rankfold::reference_test;
using rankfold::reference::StreamQueue;

namespace {

/// A door that work on a stream waits at; its destructor lets the work through and waits for it.
struct Gate {
  std::atomic<bool> open{false};
  std::atomic<bool> reached{false};
  std::atomic<bool> left{true};

  Gate() = default;
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;
  ~Gate() {
    open = true;
    while (!left) std::this_thread::yield();
  }

  void close_on(Stream stream) {
    left = false;
    REQUIRE(StreamQueue::of(stream)
                .enqueue<Gate*>(
                    [](Gate* const& gate) {
                      gate->reached = true;
                      while (!gate->open) std::this_thread::yield();
                      gate->left = true;
                      return Status();
                    },
                    this)
                .ok());
  }
};

OwnedStream worker() { return OwnedStream::create(device(), StreamMode::worker).value(); }

/// Appends a number to a log when it runs.
struct Append {
  std::vector<int>* log;
  int number;
};
Status append(const Append& task) {
  task.log->push_back(task.number);
  return {};
}
void enqueue_append(Stream stream, std::vector<int>& log, int number) {
  REQUIRE(StreamQueue::of(stream).enqueue<Append>(&append, {&log, number}).ok());
}

}  // namespace

TEST_CASE("worker: in order, later than the call, and more than the ring holds") {
  OwnedStream stream = worker();
  Gate gate;
  gate.close_on(stream);
  std::vector<int> log;
  log.reserve(2000);
  for (int i = 0; i < 100; ++i) enqueue_append(stream, log, i);
  CHECK(log.empty());  // the worker stands at the gate
  gate.open = true;
  for (int i = 100; i < 2000; ++i) enqueue_append(stream, log, i);
  REQUIRE(stream.synchronize().ok());
  REQUIRE(log.size() == 2000);
  for (int i = 0; i < 2000; ++i) CHECK(log[static_cast<std::size_t>(i)] == i);
}

TEST_CASE("worker: a full ring makes the caller wait") {
  OwnedStream stream = worker();
  Gate gate;
  gate.close_on(stream);
  std::vector<int> log;
  std::atomic<int> enqueued{0};
  std::thread producer([&] {
    for (int i = 0; i < 400; ++i) {
      enqueue_append(stream, log, i);
      ++enqueued;
    }
  });
  while (!gate.reached || enqueued < static_cast<int>(StreamQueue::kRingTasks) - 1) {
    std::this_thread::yield();
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(enqueued == static_cast<int>(StreamQueue::kRingTasks) - 1);  // the gate holds one place
  gate.open = true;
  producer.join();
  REQUIRE(stream.synchronize().ok());
  CHECK(log.size() == 400);
}

TEST_CASE("inline: done when the call returns") {
  OwnedStream stream = OwnedStream::create(device()).value();
  std::vector<int> log;
  enqueue_append(stream, log, 1);
  CHECK(log.size() == 1);
  Event event = device().create_event().value();
  REQUIRE(device().record(event, stream).ok());
  CHECK(device().query(event).value());
  device().destroy_event(event);
}

TEST_CASE("events: order across streams of both modes, without blocking the host") {
  OwnedStream first = worker();
  OwnedStream second = worker();
  Event event = device().create_event().value();
  CHECK(device().query(event).value());  // never recorded
  Gate gate;
  std::vector<int> log;
  gate.close_on(first);
  enqueue_append(first, log, 1);
  REQUIRE(device().record(event, first).ok());
  CHECK_FALSE(device().query(event).value());
  REQUIRE(device().wait(second, event).ok());
  enqueue_append(second, log, 2);
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  CHECK(log.empty());

  // A later record does not release who waits for the earlier one.
  OwnedStream third = worker();
  REQUIRE(device().record(event, third).ok());
  REQUIRE(device().synchronize(third).ok());
  CHECK(device().query(event).value());
  CHECK(log.empty());

  gate.open = true;
  REQUIRE(second.synchronize().ok());
  CHECK(log == std::vector<int>{1, 2});

  SUBCASE("an inline stream blocks its caller") {
    Gate again;
    again.close_on(first);
    enqueue_append(first, log, 3);
    REQUIRE(device().record(event, first).ok());
    OwnedStream inline_stream = OwnedStream::create(device(), StreamMode::inline_).value();
    std::thread opener([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      again.open = true;
    });
    REQUIRE(device().wait(inline_stream, event).ok());
    CHECK(again.open);
    enqueue_append(inline_stream, log, 4);
    opener.join();
    CHECK(log == std::vector<int>{1, 2, 3, 4});
  }
  device().destroy_event(event);
}

TEST_CASE("events outlive their stream") {
  Event event = device().create_event().value();
  for (int i = 0; i < 3; ++i) {
    std::vector<int> log;
    OwnedStream stream = worker();
    enqueue_append(stream, log, i);
    REQUIRE(device().record(event, stream).ok());
  }
  CHECK(device().query(event).value());
  OwnedStream other = worker();  // takes over what the destroyed ones left
  Gate gate;
  gate.close_on(other);
  CHECK(device().query(event).value());
  gate.open = true;
  CHECK(device().synchronize(event).ok());
  device().destroy_event(event);
}

TEST_CASE("destroying a stream runs what is enqueued") {
  std::vector<int> log;
  {
    OwnedStream stream = worker();
    for (int i = 0; i < 50; ++i) enqueue_append(stream, log, i);
  }
  CHECK(log.size() == 50);
}

TEST_CASE("worker: errors and exceptions surface in synchronize, the first one, once") {
  OwnedStream stream = worker();
  auto& queue = StreamQueue::of(stream);
  const auto fail = [](const int& number) {
    return Status::format(StatusCode::device_error, "task %d failed", number);
  };
  CHECK(queue.enqueue<int>(fail, 1).ok());
  CHECK(queue.enqueue<int>(fail, 2).ok());
  std::vector<int> log;
  enqueue_append(stream, log, 1);
  const Status status = stream.synchronize();
  CHECK(status.code() == StatusCode::device_error);
  CHECK(std::string(status.message()) == "task 1 failed");
  CHECK(log.size() == 1);
  CHECK(stream.synchronize().ok());
  CHECK(queue.enqueue<int>([](const int&) -> Status { throw std::bad_alloc(); }, 0).ok());
  CHECK(stream.synchronize().code() == StatusCode::out_of_memory);
}

TEST_CASE("inline: an error is the call's own") {
  OwnedStream stream = OwnedStream::create(device()).value();
  const auto fail = [](const int&) { return Status(StatusCode::device_error, "no"); };
  CHECK(StreamQueue::of(stream).enqueue<int>(fail, 0).code() == StatusCode::device_error);
  CHECK(stream.synchronize().ok());
}

TEST_CASE("copies and fills run in order on both modes") {
  for (const StreamMode mode : {StreamMode::inline_, StreamMode::worker}) {
    OwnedStream stream = OwnedStream::create(device(), mode).value();
    Buffer buffer = Buffer::create(device(), 1000).value();
    CHECK(reinterpret_cast<std::uintptr_t>(buffer.data()) % 256 == 0);
    std::vector<std::uint8_t> back(1000);
    REQUIRE(device().fill(buffer.data(), 7, 1000, stream).ok());
    REQUIRE(device().fill(buffer.as<std::uint8_t>() + 500, 9, 500, stream).ok());
    REQUIRE(device().copy(back.data(), buffer.data(), 1000, CopyKind::device_to_host, stream).ok());
    REQUIRE(stream.synchronize().ok());
    CHECK(back[499] == 7);
    CHECK(back[500] == 9);
  }
  CHECK(device().create_stream(static_cast<StreamMode>(9)).status().code() ==
        StatusCode::invalid_argument);
}

TEST_CASE("D10, D11: a step reads its ids when it runs, in the order of its stream") {
  Batch batch({.tokens = 32, .slots = 3});
  const std::vector<std::int32_t> first(32, 0);
  const std::vector<std::int32_t> second(32, -1);
  Batch other = batch;
  other.slots = first;
  const std::vector<double> wanted = other.oracle_y();
  OwnedStream stream = worker();
  Buffer slots = Buffer::create(device(), 32 * 4).value();
  Buffer pinned = Buffer::create(device(), 2 * 32 * 4, MemoryKind::pinned).value();
  std::memcpy(pinned.data(), first.data(), 128);
  std::memcpy(pinned.as<std::byte>() + 128, second.data(), 128);
  Elements got = batch.y;
  Elements base = batch.y;
  ApplyLinearArgs args = batch.linear(got);
  args.addressing.token_slots = slots.as<std::int32_t>();
  ApplyLinearArgs later = batch.linear(base);
  later.addressing.token_slots = slots.as<std::int32_t>();
  Buffer memory =
      Buffer::create(device(), workspace_bytes(device(), make_problem(args)).value()).value();
  Gate slow;
  slow.close_on(stream);
  const auto upload = [&](std::size_t at) {
    REQUIRE(
        device()
            .copy(slots.data(), pinned.as<std::byte>() + at, 128, CopyKind::host_to_device, stream)
            .ok());
  };
  upload(0);
  REQUIRE(apply_linear(device(), args, memory.workspace(), stream).ok());
  upload(128);
  REQUIRE(apply_linear(device(), later, memory.workspace(), stream).ok());
  slow.open = true;
  REQUIRE(stream.synchronize().ok());
  std::vector<double> before;
  for (std::int64_t i = 0; i < batch.y.size(); ++i) before.push_back(batch.y.get(i));
  CHECK(close(got, wanted, before));
  CHECK(base.bytes == batch.y.bytes);
}

TEST_CASE("D12: two streams at once, own workspaces, 200 rounds") {
  Batch left({.tokens = 24, .in = 96, .out = {64}, .slots = 2, .seed = 3});
  Batch right({.tokens = 40, .in = 80, .out = {48}, .slots = 3, .seed = 4});
  Elements left_wanted = left.y;
  Elements right_wanted = right.y;
  REQUIRE(run(left.linear(left_wanted)).ok());
  REQUIRE(run(right.linear(right_wanted)).ok());
  const auto rounds = [](Batch& batch, const Elements& wanted, StreamMode mode, int& good) {
    OwnedStream stream = OwnedStream::create(device(), mode).value();
    Elements got = batch.y;
    const ApplyLinearArgs args = batch.linear(got);
    Buffer memory =
        Buffer::create(device(), workspace_bytes(device(), make_problem(args)).value()).value();
    for (int i = 0; i < 200; ++i) {
      std::memcpy(got.bytes.data(), batch.y.bytes.data(), got.bytes.size());
      if (!apply_linear(device(), args, memory.workspace(), stream).ok()) return;
      if (!stream.synchronize().ok()) return;
      if (got.bytes == wanted.bytes) ++good;
    }
  };
  int left_good = 0;
  int right_good = 0;
  std::thread beside([&] { rounds(left, left_wanted, StreamMode::worker, left_good); });
  rounds(right, right_wanted, StreamMode::inline_, right_good);
  beside.join();
  CHECK(left_good == 200);
  CHECK(right_good == 200);
}

TEST_CASE("D14: an entry that is switched on the stream takes effect between two steps") {
  Batch batch({.tokens = 20, .slots = 2});
  batch.slots.assign(20, 0);
  OwnedStream stream = worker();
  AdapterTable table = AdapterTable::create(device(), batch.shape()).value();
  REQUIRE(table.set_entry(0, 0, 0, batch.entries[0], stream).ok());
  REQUIRE(stream.synchronize().ok());
  Elements first = batch.y;
  Elements second = batch.y;
  ApplyLinearArgs args = batch.linear(first);
  args.table = table.view();
  Buffer memory =
      Buffer::create(device(), workspace_bytes(device(), make_problem(args)).value()).value();
  Gate slow;
  slow.close_on(stream);
  REQUIRE(apply_linear(device(), args, memory.workspace(), stream).ok());
  REQUIRE(table.clear_slot(0, stream).ok());
  args.y = batch.linear(second).y;
  REQUIRE(apply_linear(device(), args, memory.workspace(), stream).ok());
  slow.open = true;
  REQUIRE(stream.synchronize().ok());
  CHECK(first.bytes != batch.y.bytes);
  CHECK(second.bytes == batch.y.bytes);
}
