// A step captured in a CUDA graph: what may change between replays changes, and every replay equals
// the same step run eagerly, to the bit.
#include <doctest/doctest.h>

#include <random>
#include <string>

#include "calls.hpp"
#include "graph.hpp"

using namespace rankfold;
using namespace rankfold::cuda_test;

namespace {

// Other users of the device between two replays: memory comes and goes, so that what a graph kept
// of memory that is not its own would hold something else.
void disturb(Stream stream, int round) {
  std::mt19937 random(static_cast<unsigned>(round));
  for (int i = 0; i < 3; ++i) {
    const std::size_t bytes = 1 + random() % (std::size_t{1} << 20);
    const Buffer other = Buffer::create(device(), bytes).value();
    throw_if_error(device().fill(other.data(), static_cast<std::uint8_t>(0x7f + i), bytes, stream));
    throw_if_error(device().synchronize(stream));
  }
}

void replay(std::int64_t tokens, Adapters captured, int rounds) {
  const OwnedStream stream = make_stream();
  const RoundCalls calls = make_calls(every_operation(tokens), stream);
  const auto enqueue_all = [&] {
    for (const auto& call : calls) throw_if_error(call->run(stream));
  };
  for (const auto& call : calls) call->set_round(slots_of_round(tokens, 0, captured), 1, stream);
  throw_if_error(device().synchronize(stream));
  const Graph graph(stream, enqueue_all);
  MESSAGE("a graph of ", graph.num_nodes(), " nodes for ", calls.size(), " operations of ", tokens,
          " tokens");

  int num_wrong = 0;
  for (int round = 0; round < rounds && num_wrong < 8; ++round) {
    // The first replay has the other number of adapters already.
    const std::vector<std::int32_t> slots = slots_of_round(tokens, round + 1, captured);
    for (const auto& call : calls)
      call->set_round(slots, static_cast<std::uint64_t>(round) + 2, stream);
    disturb(stream, round);
    graph.launch(stream);
    const std::string where = "replay " + std::to_string(round) + ", ";
    std::vector<std::uint64_t> digests(calls.size());
    for (std::size_t i = 0; i < calls.size(); ++i) {
      const conformance::Outcome judged = calls[i]->collect(stream, where, &digests[i]);
      if (judged.passed()) continue;
      ++num_wrong;
      FAIL_CHECK(judged.message);
    }
    for (const auto& call : calls) call->reset(stream);
    enqueue_all();
    for (std::size_t i = 0; i < calls.size(); ++i) {
      std::uint64_t eager = 0;
      const conformance::Outcome judged = calls[i]->collect(stream, "eager, " + where, &eager);
      if (judged.passed() && eager == digests[i]) continue;
      ++num_wrong;
      FAIL_CHECK(judged.message, where, calls[i]->name(),
                 ": the bits of replay and eager run differ");
    }
  }
}

}  // namespace

TEST_CASE("D1, D2: captured with one adapter, replayed with four, one and none, 200 times") {
  replay(24, Adapters::one, 200);
}

TEST_CASE("D1, D2: captured with four adapters, replayed with one, four and none, 200 times") {
  replay(24, Adapters::four, 200);
}

TEST_CASE("D1, D2: few rows, and enough for strategies of many rows") {
  replay(1, Adapters::one, 24);
  replay(96, Adapters::four, 24);
  replay(600, Adapters::one, 6);
}

TEST_CASE("C1: captured with adapters, replayed without any") {
  const OwnedStream stream = make_stream();
  const RoundCalls calls = make_calls(every_operation(24), stream);
  const Graph graph(stream, [&] {
    for (const auto& call : calls) throw_if_error(call->run(stream));
  });
  for (const auto& call : calls) call->set_round(std::vector<std::int32_t>(24, -1), 1, stream);
  graph.launch(stream);
  for (const auto& call : calls) {
    const conformance::Outcome judged = call->collect(stream, "all -1, ", nullptr);
    CHECK_MESSAGE(judged.passed(), judged.message);
  }
}
