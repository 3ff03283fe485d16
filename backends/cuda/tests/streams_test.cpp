// Two streams at once, and steps behind slow work of their own stream.
#include <doctest/doctest.h>

#include <cstring>
#include <string>
#include <thread>

#include "calls.hpp"

using namespace rankfold;
using namespace rankfold::cuda_test;

namespace {

// The same operation on two streams, other slots, other sizes, own workspaces.
struct Side {
  OwnedStream stream = make_stream();
  std::unique_ptr<RoundCall> call;
  std::uint64_t wanted = 0;

  Side(NamedSpec named, std::int64_t tokens, std::vector<std::int32_t> ranks, Adapters adapters) {
    named.spec.tokens = tokens;
    named.spec.ranks = std::move(ranks);
    call = std::make_unique<RoundCall>(named, stream);
    call->set_round(slots_of_round(tokens, 1, adapters), 7, stream);
    throw_if_error(call->run(stream));
    const conformance::Outcome judged = call->collect(stream, "alone, ", &wanted);
    CHECK_MESSAGE(judged.passed(), judged.message);
  }
};

}  // namespace

TEST_CASE("D12: two streams at once with other adapters, 200 rounds of every operation") {
  for (const NamedSpec& named : every_operation(24)) {
    CAPTURE(named.name);
    Side left(named, 24, {16, 16, 8, 8}, Adapters::four);
    Side right(named, 40, {5, 5, 16, 16}, Adapters::one);
    int num_wrong = 0;
    for (int round = 0; round < 200 && num_wrong == 0; ++round) {
      for (Side* const side : {&left, &right}) side->call->reset(side->stream);
      // One thread each, so that neither waits for the other's host work.
      std::thread other([&] { throw_if_error(right.call->run(right.stream)); });
      throw_if_error(left.call->run(left.stream));
      other.join();
      for (Side* const side : {&left, &right}) {
        std::uint64_t got = 0;
        const conformance::Outcome judged = side->call->collect(side->stream, "at once, ", &got);
        if (!judged.passed()) FAIL_CHECK(judged.message);
        num_wrong += judged.passed() && got == side->wanted ? 0 : 1;
      }
    }
    CHECK(num_wrong == 0);
  }
}

TEST_CASE("D10, D11: two steps behind slow work: each has the slots that stood there when it ran") {
  const OwnedStream stream = make_stream();
  for (const NamedSpec& named : every_operation(24)) {
    CAPTURE(named.name);
    if (named.spec.form == conformance::AddressingForm::grouped_by_host)
      continue;  // its arrays are several
    if (named.spec.op == Op::group_tokens) continue;
    RoundCall first(named, stream);
    RoundCall second(named, stream);
    // Both steps read their slots at one address; pinned memory holds what is copied there in turn.
    const std::vector<std::int32_t> slots[2] = {slots_of_round(24, 3, Adapters::four),
                                                slots_of_round(24, 4, Adapters::four)};
    first.set_round(slots[0], 3, stream);
    second.set_round(slots[1], 3, stream);
    constexpr std::size_t kSlowBytes = std::size_t{1} << 30;
    const Buffer slow = Buffer::create(device(), kSlowBytes).value();
    const Buffer pinned =
        Buffer::create(device(), 2 * 24 * sizeof(std::int32_t), MemoryKind::pinned).value();
    for (int i = 0; i < 2; ++i)
      std::memcpy(pinned.as<std::int32_t>() + 24 * i, slots[i].data(), 24 * sizeof(std::int32_t));
    throw_if_error(device().synchronize(stream));
    for (int i = 0; i < 4; ++i)
      throw_if_error(device().fill(slow.data(), 0xff, kSlowBytes, stream));
    const auto step = [&](RoundCall& call, int which) {
      void* const target = call.slots_address();
      if (target != nullptr) {
        throw_if_error(device().copy(target, pinned.as<std::int32_t>() + 24 * which,
                                     24 * sizeof(std::int32_t), CopyKind::host_to_device, stream));
      }
      throw_if_error(call.run(stream));
    };
    // Before, the arrays hold what must not be read.
    for (RoundCall* const call : {&first, &second}) {
      if (void* const target = call->slots_address()) {
        throw_if_error(device().fill(target, 0xff, 24 * sizeof(std::int32_t), stream));
      }
    }
    step(first, 0);
    step(second, 1);
    CHECK(cudaStreamQuery(native(stream)) == cudaErrorNotReady);  // the host was faster
    for (RoundCall* const call : {&first, &second}) {
      const conformance::Outcome judged = call->collect(stream, "behind slow work, ", nullptr);
      CHECK_MESSAGE(judged.passed(), judged.message);
    }
  }
}
