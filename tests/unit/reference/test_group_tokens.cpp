#include <doctest/doctest.h>

#include <algorithm>
#include <random>

#include "batch.hpp"

using namespace rankfold;
using namespace rankfold::reference_test;

namespace {

struct Grouping {
  Buffer memory;
  LoraAddressing addressing;
};

Grouping group(const std::vector<std::int32_t>& slots, std::int32_t num_slots, StreamMode mode) {
  Grouping result;
  const auto tokens = static_cast<std::int64_t>(slots.size());
  result.memory = Buffer::create(device(), grouping_bytes(tokens, num_slots)).value();
  std::fill_n(result.memory.as<std::uint8_t>(), result.memory.bytes(), std::uint8_t{0xee});
  OwnedStream stream = OwnedStream::create(device(), mode).value();
  GroupTokensArgs args;
  args.num_tokens = tokens;
  args.num_slots = num_slots;
  args.token_slots = slots.data();
  args.memory = result.memory.data();
  args.memory_bytes = result.memory.bytes();
  REQUIRE(group_tokens(device(), args, stream, &result.addressing).ok());
  REQUIRE(stream.synchronize().ok());
  return result;
}

void check(const std::vector<std::int32_t>& slots, std::int32_t num_slots) {
  for (const StreamMode mode : {StreamMode::inline_, StreamMode::worker}) {
    const Grouping got = group(slots, num_slots, mode);
    std::vector<std::int32_t> order;
    std::vector<std::int32_t> segment_slots;
    std::vector<std::int32_t> offsets = {0};
    for (std::int32_t slot = 0; slot < num_slots; ++slot) {
      const std::size_t before = order.size();
      for (std::size_t t = 0; t < slots.size(); ++t) {
        if (slots[t] == slot) order.push_back(static_cast<std::int32_t>(t));
      }
      if (order.size() == before) continue;
      segment_slots.push_back(slot);
      offsets.push_back(static_cast<std::int32_t>(order.size()));
    }
    const LoraAddressing& a = got.addressing;
    CHECK(a.mode == AddressingMode::grouped);
    CHECK(a.num_tokens == static_cast<std::int64_t>(slots.size()));
    REQUIRE(*a.num_segments == static_cast<std::int32_t>(segment_slots.size()));
    CHECK(*a.num_segments <= a.max_segments);
    CHECK(std::equal(order.begin(), order.end(), a.token_order));
    CHECK(std::equal(segment_slots.begin(), segment_slots.end(), a.segment_slots));
    CHECK(std::equal(offsets.begin(), offsets.end(), a.segment_offsets));
  }
}

}  // namespace

TEST_CASE("group_tokens: ascending, stable, only slots that are present") {
  check({2, 0, 2, -1, 1, 0, 2}, 3);
  check({5}, 9);
  check({0, 1, 2, 3}, 4);
  check({3, 3, 3}, 4);
  std::mt19937 random(7);
  std::vector<std::int32_t> many(5000);
  for (auto& slot : many) slot = std::uniform_int_distribution<int>(-3, 70)(random);
  check(many, 64);
}

TEST_CASE("C1, C4: group_tokens leaves out every slot that does not exist") {
  check({-1, -1, -1}, 2);
  check({-1, 0, -1, 1, 0, -1}, 2);
  check({7, INT32_MAX, INT32_MIN, 2}, 2);
}

TEST_CASE("C2: group_tokens of no tokens") {
  GroupTokensArgs args;
  args.num_slots = 4;
  LoraAddressing addressing;
  OwnedStream stream = OwnedStream::create(device()).value();
  REQUIRE(group_tokens(device(), args, stream, &addressing).ok());
  CHECK(addressing.num_tokens == 0);
  CHECK(addressing.max_segments == 0);
}

TEST_CASE("group_tokens, then apply_linear, on one worker stream, equals token_slots") {
  Batch batch({.tokens = 300, .slots = 5});
  Elements wanted = batch.y;
  REQUIRE(run(batch.linear(wanted)).ok());
  const Grouping grouped = group(batch.slots, 5, StreamMode::worker);
  Elements got = batch.y;
  ApplyLinearArgs args = batch.linear(got);
  args.addressing = grouped.addressing;
  REQUIRE(run(args, StreamMode::worker).ok());
  CHECK(got.bytes == wanted.bytes);
}
