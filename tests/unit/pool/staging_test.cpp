// The pinned ring: a chunk is written again only when its copy has run.
#include "pool/staging.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "fixture.hpp"

using namespace rankfold;
using namespace rankfold::testing;

TEST_CASE("D10: a chunk in flight is not lent before its copy has run") {
  FakeBackend backend;
  auto stream = OwnedStream::create(backend, StreamMode::worker).value();
  std::vector<std::byte> destination(16 * 512);
  {
    detail::StagingRing ring(backend);
    REQUIRE(ring.create(4096).ok());
    CHECK(ring.chunk_bytes() == 512);
    backend.hold(stream);
    std::atomic<int> num_written = 0;
    std::thread writer([&] {
      for (int i = 0; i < 16; ++i) {
        const auto chunk = ring.claim().value();
        std::memset(ring.data(chunk), i + 1, 512);
        REQUIRE(ring.submit(chunk, destination.data() + i * 512, 512, stream).ok());
        ++num_written;
      }
    });
    while (num_written < 8) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    CHECK(num_written == 8);  // the ninth waits
    backend.release(stream);
    writer.join();
    REQUIRE(stream.synchronize().ok());
  }
  int wrong = 0;
  for (int i = 0; i < 16 * 512; ++i) wrong += destination[i] != std::byte(i / 512 + 1);
  CHECK(wrong == 0);
  CHECK(backend.counters().events == 0);
}

TEST_CASE("D10: two loads behind each other on one slow stream keep their own weights") {
  FakeBackend backend;
  auto pool = AdapterPool::create(backend, model_targets(), small_options(2, 1 << 16)).value();
  auto upload = OwnedStream::create(backend, StreamMode::worker).value();
  auto step_stream = OwnedStream::create(backend, StreamMode::worker).value();
  // Together more than the ring, so that the second must wait for chunks of the first.
  const AdapterSpec x{.id = 1, .rank = 8, .bias = true}, y{.id = 2, .rank = 8, .bias = true};
  REQUIRE(2 * arena_bytes_of(x) > 3 * 512);
  backend.set_delay(upload, std::chrono::microseconds(500));
  const SyntheticAdapter ax(x), ay(y);
  auto px = pool.prepare(ax.view(), upload);
  auto py = pool.prepare(ay.view(), upload);
  REQUIRE(px.ok());
  REQUIRE(py.ok());
  const Stream stream = step_stream;
  const auto hx = pool.publish(std::move(*px), {&stream, 1}).value();
  const auto hy = pool.publish(std::move(*py), {&stream, 1}).value();
  Step step(backend, pool, {hx.slot, hy.slot});
  REQUIRE(step.enqueue(stream).ok());
  REQUIRE(step_stream.synchronize().ok());
  CHECK(step.row_is(0, &x));
  CHECK(step.row_is(1, &y));
}

TEST_CASE("staging: writers on several threads share the ring") {
  FakeBackend backend;
  constexpr int kThreads = 4, kRounds = 100;
  std::vector<std::byte> destination(kThreads * kRounds * 64);
  {
    detail::StagingRing ring(backend);
    REQUIRE(ring.create(4096).ok());
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        auto stream = OwnedStream::create(backend, StreamMode::worker).value();
        for (int i = 0; i < kRounds; ++i) {
          const auto chunk = ring.claim().value();
          std::memset(ring.data(chunk), (t * kRounds + i) % 251, 64);
          std::byte* const to = destination.data() + (t * kRounds + i) * 64;
          REQUIRE(ring.submit(chunk, to, 64, stream).ok());
        }
        REQUIRE(stream.synchronize().ok());
      });
    }
    for (auto& thread : threads) thread.join();
  }
  int wrong = 0;
  for (std::size_t i = 0; i < destination.size(); ++i) {
    wrong += destination[i] != std::byte((i / 64) % 251);
  }
  CHECK(wrong == 0);
}

TEST_CASE("staging: a failed copy leaves its chunk usable") {
  FakeBackend backend;
  auto stream = OwnedStream::create(backend).value();
  std::byte to[64];
  detail::StagingRing ring(backend);
  REQUIRE(ring.create(4096).ok());
  for (int i = 0; i < 20; ++i) {
    const auto chunk = ring.claim();
    REQUIRE(chunk.ok());
    backend.fail(i % 2 == 0 ? FakeCall::copy : FakeCall::record, 0);
    CHECK(ring.submit(*chunk, to, 64, stream).code() == StatusCode::device_error);
  }
}
