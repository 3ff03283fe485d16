// The three modes give the same bits, and hostile arrays stay harmless.
#include <doctest/doctest.h>

#include "batch.hpp"

using namespace rankfold;
using namespace rankfold::reference_test;

namespace {

struct Grouped {
  std::vector<std::int32_t> order, offsets, slots;
  std::int32_t count = 0;

  LoraAddressing over(LoraAddressing addressing, std::int64_t max_segments) const {
    addressing.mode = AddressingMode::grouped;
    addressing.token_order = order.data();
    addressing.segment_offsets = offsets.data();
    addressing.segment_slots = slots.data();
    addressing.num_segments = &count;
    addressing.max_segments = max_segments;
    return addressing;
  }
};

Elements apply(Batch& batch, const LoraAddressing& addressing) {
  Elements got = batch.y;
  ApplyLinearArgs args = batch.linear(got);
  args.addressing = addressing;
  REQUIRE(run(args).ok());
  return got;
}

}  // namespace

TEST_CASE("C4: base and adapter rows in one batch, unsorted; rows of -1 keep their bits") {
  Batch batch({.tokens = 6,
               .in = 32,
               .out = {16},
               .slots = 2,
               .max_rank = 4,
               .x = DType::bf16,
               .y = DType::bf16});
  batch.slots = {-1, 0, -1, 1, 0, -1};
  const Elements got = apply(batch, batch.addressing());
  for (const std::int64_t row : {0, 2, 5}) {
    for (std::int64_t c = 0; c < 16; ++c) CHECK(got.get(row * 16 + c) == batch.y.get(row * 16 + c));
  }
  CHECK(got.bytes != batch.y.bytes);
}

TEST_CASE("C1, C2: an all-base step and an empty step after others change nothing") {
  Batch batch({.tokens = 8, .slots = 2});
  batch.slots.assign(8, 1);
  (void)apply(batch, batch.addressing());
  batch.slots.assign(8, -1);
  CHECK(apply(batch, batch.addressing()).bytes == batch.y.bytes);
  batch.slots.assign(8, 2);
  CHECK(apply(batch, batch.addressing()).bytes == batch.y.bytes);
  LoraAddressing none = batch.addressing();
  none.num_tokens = 0;
  Elements got = batch.y;
  ApplyLinearArgs args = batch.linear(got);
  args.addressing = none;
  args.x.sizes[0] = args.y.sizes[0] = 0;
  CHECK(run(args).ok());
  CHECK(got.bytes == batch.y.bytes);
}

TEST_CASE("C7, C8: skewed, empty and repeated segments of the host equal token_slots") {
  for (const std::int64_t tokens : {133, 4096}) {
    Batch batch({.tokens = tokens, .in = 24, .out = {20}, .slots = 3, .max_rank = 4});
    const auto n = static_cast<std::int32_t>(tokens);
    Grouped grouped;
    for (std::int32_t t = 0; t < n; ++t) grouped.order.push_back(n - 1 - t);
    grouped.offsets = {0, 0, 1, 1, n - 5, n - 5, n - 5};  // empty, 1, empty, most, empty, unused
    grouped.slots = {0, 2, 1, 0, 2, 99};
    grouped.count = 5;
    batch.slots.assign(static_cast<std::size_t>(n), -1);
    batch.slots[static_cast<std::size_t>(n - 1)] = 2;
    for (std::int32_t i = 1; i < n - 5; ++i) batch.slots[static_cast<std::size_t>(n - 1 - i)] = 0;
    CHECK(apply(batch, grouped.over(batch.addressing(), 6)).bytes ==
          apply(batch, batch.addressing()).bytes);
  }
}

TEST_CASE("uniform equals token_slots; a slot out of range changes nothing") {
  Batch batch({.tokens = 50, .slots = 3});
  batch.slots.assign(50, 0);
  LoraAddressing uniform;
  uniform.mode = AddressingMode::uniform;
  uniform.num_tokens = 50;
  uniform.uniform_slot = 0;
  CHECK(apply(batch, uniform).bytes == apply(batch, batch.addressing()).bytes);
  for (const std::int32_t slot : {-1, 3, INT32_MAX, INT32_MIN}) {
    uniform.uniform_slot = slot;
    CHECK(apply(batch, uniform).bytes == batch.y.bytes);
  }
}

TEST_CASE("hostile arrays: offsets, orders, slots and counts out of range are skipped") {
  Batch batch({.tokens = 4, .in = 16, .out = {8}, .slots = 2, .max_rank = 4});
  batch.slots = {0, 1, -5, 2};
  const Elements wanted = apply(batch, batch.addressing());

  Grouped grouped;
  grouped.order = {0, 1, -1, 4};            // two ids that do not exist
  grouped.offsets = {-7, 1, 2, INT32_MAX};  // starts before, ends after
  grouped.slots = {0, 1, 1};
  grouped.count = INT32_MAX;  // more than max_segments
  CHECK(apply(batch, grouped.over(batch.addressing(), 3)).bytes == wanted.bytes);

  grouped.order = {0, 1, 0, 1};  // a row that stands twice is taken once
  grouped.offsets = {0, 1, 2, 4};
  CHECK(apply(batch, grouped.over(batch.addressing(), 3)).bytes == wanted.bytes);

  grouped.offsets = {0, 1, 0, 2};  // descending
  grouped.slots = {0, 7, 1};
  CHECK(apply(batch, grouped.over(batch.addressing(), 3)).bytes == wanted.bytes);

  grouped.count = -3;
  CHECK(apply(batch, grouped.over(batch.addressing(), 3)).bytes == batch.y.bytes);
}

TEST_CASE("B1: sizes whose workspace cannot exist are refused, and never wrap to a small one") {
  Problem problem;
  problem.op = Op::apply_linear;
  problem.shape.num_slots = 1;
  problem.shape.num_slices = kMaxSlices;
  problem.shape.max_rank = INT32_MAX;
  problem.shape.in = 8;
  for (std::int64_t& out : problem.shape.out) out = 8;
  std::uint64_t last = 0;
  for (int shift = 0; shift < 63; ++shift) {
    problem.bounds.rows = std::int64_t{1} << shift;
    const auto bytes = workspace_bytes(device(), problem);
    CAPTURE(shift);
    if (bytes.ok()) CHECK(*bytes > last);
    if (shift > 26) CHECK(bytes.status().code() == StatusCode::unsupported);
    last = bytes.ok() ? *bytes : UINT64_MAX - 1;
  }
  problem.shape.max_rank = 8;
  problem.bounds.rows = 1;
  problem.shape.in = INT64_MAX;
  CHECK(workspace_bytes(device(), problem).status().code() == StatusCode::unsupported);
  problem.shape.in = 8;
  problem.bounds.rows = std::int64_t{1} << 31;  // row numbers are int32
  CHECK(supports(device(), problem).status().code() == StatusCode::unsupported);
  problem.bounds.rows -= 1;
  CHECK(supports(device(), problem).ok());
  CHECK(workspace_bytes(device(), problem).ok());
}
