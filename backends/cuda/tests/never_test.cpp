// What no operation does: allocate, synchronise, use the default stream. The counters are proved
// first.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "calls.hpp"
#include "graph.hpp"
#include "runtime_calls.hpp"
#include "spin.hpp"

using namespace rankfold;
using namespace rankfold::cuda_test;

namespace {

constexpr std::int64_t kTokens[] = {1, 24, 96, 600};

// A flag that the device reads while it is set by the host; set when it goes.
class Gate {
 public:
  Gate() : memory_(Buffer::create(device(), sizeof(int), MemoryKind::pinned).value()) {
    *flag() = 0;
  }
  ~Gate() {
    open();
    (void)cudaDeviceSynchronize();
  }
  volatile int* flag() const { return memory_.as<int>(); }
  void open() { *flag() = 1; }

 private:
  Buffer memory_;
};

// Whether the stream has run everything before the time is over.
bool finishes(Stream stream) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  while (std::chrono::steady_clock::now() < end) {
    if (cudaStreamQuery(native(stream)) == cudaSuccess) return true;
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  return false;
}

}  // namespace

TEST_CASE("every counter sees what it is for") {
  const OwnedStream stream = make_stream();
  const auto counts = [](auto&& call) {
    const RuntimeCallScope scope;
    call();
    return scope.counts();
  };
  void* memory = nullptr;
  CHECK(counts([&] { (void)cudaMalloc(&memory, 256); }).allocations == 1);
  CHECK(counts([&] { (void)cudaMemset(memory, 0, 256); }).synchronisations == 1);
  CHECK(counts([&] { (void)cudaMemset(memory, 0, 256); }).default_stream == 1);
  CHECK(counts([&] { (void)cudaMemsetAsync(memory, 0, 256, cudaStreamLegacy); }).default_stream ==
        1);
  CHECK(counts([&] {
          (void)cudaMemsetAsync(memory, 0, 256, cudaStreamPerThread);
        }).default_stream == 1);
  CHECK(counts([&] { (void)cudaMemsetAsync(memory, 0, 256, native(stream)); }).default_stream == 0);
  CHECK(counts([&] { (void)cudaMemsetAsync(memory, 0, 256, native(stream)); }).others == 1);
  CHECK(counts([&] { launch_nothing(nullptr); }).default_stream == 1);
  CHECK(counts([&] { launch_nothing(nullptr); }).kernels == 1);
  CHECK(counts([&] { launch_nothing(native(stream)); }).default_stream == 0);
  CHECK(counts([&] { (void)cudaStreamSynchronize(native(stream)); }).synchronisations == 1);
  CHECK(counts([&] { (void)cudaDeviceSynchronize(); }).synchronisations == 1);
  CHECK(counts([&] { (void)cudaFree(memory); }).allocations == 1);
  CHECK(counts([&] { device().deallocate(device().allocate(64).value()); }).allocations == 2);
  cudaStream_t blocking = nullptr;
  CHECK(counts([&] { (void)cudaStreamCreate(&blocking); }).blocking_streams == 1);
  (void)cudaStreamDestroy(blocking);
  CHECK(counts([&] { const OwnedStream other = make_stream(); }).blocking_streams == 0);
  // And an operation of ours.
  const RoundCalls calls = make_calls(every_operation(8), stream);
  for (const auto& call : calls) CHECK(counts([&] { (void)call->run(stream); }).kernels > 0);
}

TEST_CASE("no operation allocates, synchronises or uses the default stream") {
  const OwnedStream stream = make_stream();
  for (const std::int64_t tokens : kTokens) {
    const RoundCalls calls = make_calls(every_operation(tokens), stream);
    for (int round = 0; round < 3; ++round) {
      for (const auto& call : calls) {
        CAPTURE(call->name());
        CAPTURE(tokens);
        const RuntimeCallScope scope;
        const Status status = call->run(stream);
        const RuntimeCalls counts = scope.counts();
        REQUIRE_MESSAGE(status.ok(), status.message());
        CHECK(counts.allocations == 0);
        CHECK(counts.synchronisations == 0);
        CHECK(counts.default_stream == 0);
        CHECK(counts.blocking_streams == 0);
      }
    }
  }
}

TEST_CASE("every operation finishes while a kernel occupies the legacy default stream") {
  const OwnedStream stream = make_stream();
  for (const std::int64_t tokens : kTokens) {
    const RoundCalls calls = make_calls(every_operation(tokens), stream);
    launch_nothing(cudaStreamLegacy);
    Gate gate;
    launch_spin(gate.flag(), cudaStreamLegacy);
    for (const auto& call : calls) {
      CAPTURE(call->name());
      CAPTURE(tokens);
      throw_if_error(call->run(stream));
      REQUIRE(finishes(stream));
    }
    CHECK(cudaStreamQuery(cudaStreamLegacy) == cudaErrorNotReady);  // it spins still
    gate.open();
    for (const auto& call : calls) {
      const conformance::Outcome judged =
          call->collect(stream, "beside the default stream, ", nullptr);
      CHECK_MESSAGE(judged.passed(), judged.message);
    }
  }
}

TEST_CASE("what uses the default stream does not finish while a kernel occupies it") {
  const OwnedStream stream = make_stream();
  const Buffer memory = Buffer::create(device(), 256).value();
  launch_nothing(cudaStreamLegacy);
  (void)cudaDeviceSynchronize();
  cudaEvent_t done = nullptr;
  (void)cudaEventCreateWithFlags(&done, cudaEventDisableTiming);
  {
    Gate gate;
    launch_spin(gate.flag(), cudaStreamLegacy);
    (void)cudaMemsetAsync(memory.data(), 0, 256, nullptr);
    (void)cudaEventRecord(done, nullptr);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    CHECK(cudaEventQuery(done) == cudaErrorNotReady);
  }
  CHECK(cudaEventQuery(done) == cudaSuccess);
  (void)cudaEventDestroy(done);
}

TEST_CASE("the time of a call on the host, without a graph (printed alone; wanted: at most 5 us)") {
  const OwnedStream stream = make_stream();
  for (const std::int64_t tokens : {std::int64_t{1}, std::int64_t{64}}) {
    for (const auto& call : make_calls(every_operation(tokens), stream)) {
      throw_if_error(call->run(stream));  // with its group_tokens, which is not of the call
      const conformance::CallArguments arguments = call->arguments(stream);
      LoraAddressing grouped;
      std::vector<double> microseconds;
      for (int i = 0; i < 64; ++i) {
        throw_if_error(device().synchronize(stream));
        const auto start = std::chrono::steady_clock::now();
        for (int k = 0; k < 8; ++k)
          throw_if_error(conformance::launch(device(), arguments, &grouped));
        const std::chrono::duration<double, std::micro> time =
            std::chrono::steady_clock::now() - start;
        microseconds.push_back(time.count() / 8);
      }
      std::sort(microseconds.begin(), microseconds.end());
      MESSAGE(call->name(), ", ", tokens, " tokens: median ", microseconds[32], " us, least ",
              microseconds[0], " us");
    }
  }
}
