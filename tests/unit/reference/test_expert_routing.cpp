// Which rows are touched: odd slots, ids and offsets, and device arrays that are wrong altogether.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "expert_batch.hpp"

using namespace rankfold;
using namespace rankfold::reference_test;

namespace {

constexpr std::int32_t kLeast = std::numeric_limits<std::int32_t>::min();
constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max();

/// What apply_experts makes of the batch: rows without entry bit-unchanged, the others close.
void check_batch(const ExpertBatch& batch) {
  Elements start = batch.y;
  for (std::int64_t r = 0; r < batch.rows(); ++r) {
    // A NaN with a payload keeps its bits where nothing is added.
    if (batch.entry_of(r) < 0) {
      std::memset(start.bytes.data() + r * batch.out_columns() * 4, 0xf7, 4);
    }
  }
  Elements got = start;
  REQUIRE(run(batch.apply(got)).ok());
  const std::vector<double> exact = batch.oracle_y();
  std::vector<double> touched, touched_base;
  Elements touched_got;
  touched_got.resize(DType::f32, 0);
  for (std::int64_t r = 0; r < batch.rows(); ++r) {
    const auto bytes = static_cast<std::size_t>(batch.out_columns()) * 4;
    const auto at = static_cast<std::size_t>(r) * bytes;
    if (batch.entry_of(r) < 0) {
      CHECK(std::memcmp(got.bytes.data() + at, start.bytes.data() + at, bytes) == 0);
      continue;
    }
    touched_got.bytes.insert(touched_got.bytes.end(),
                             got.bytes.begin() + static_cast<std::ptrdiff_t>(at),
                             got.bytes.begin() + static_cast<std::ptrdiff_t>(at + bytes));
    for (std::int64_t c = 0; c < batch.out_columns(); ++c) {
      const auto i = static_cast<std::size_t>(r * batch.out_columns() + c);
      touched.push_back(exact[i]);
      touched_base.push_back(batch.y.get(static_cast<std::int64_t>(i)));
    }
  }
  CHECK(close(touched_got, touched, touched_base));
}

}  // namespace

TEST_CASE("F1: ids of other shards, signed ids and slots out of range leave their rows alone") {
  for (const XRows x_rows : {XRows::own, XRows::token}) {
    ExpertBatch batch({.tokens = 6, .top_k = 2, .experts = 3, .x_rows = x_rows, .expert_base = 3});
    batch.ids = {0, -1, 5, 2, kLeast, 3, kMost, 4, 6, 5, 4, 4};
    batch.slots = {0, 1, 2, 1, kMost, kLeast};
    CHECK(batch.entry_of(0) < 0);
    CHECK(batch.entry_of(2) >= 0);
    check_batch(batch);
    // Differences that do not fit 32 bits wrap to no expert.
    batch.spec.expert_base = kLeast;
    batch.ids = {kLeast, kLeast + 2, kLeast + 3, 0, -1, kMost, 5, kLeast + 1, 1, 2, 3, 4};
    CHECK(batch.entry_of(0) >= 0);
    check_batch(batch);
    batch.spec.expert_base = kMost;
    batch.ids = {kMost, kLeast, kLeast + 1, 0, -1, kMost, 5, kMost - 1, 1, kMost, 3, 4};
    CHECK(batch.entry_of(0) >= 0);
    CHECK(batch.entry_of(1) < 0);
    check_batch(batch);
  }
}

TEST_CASE("no tokens' slots means slot 0; grouped rows of their own need no tokens then") {
  for (const ExpertMode mode : {ExpertMode::grouped, ExpertMode::gather}) {
    ExpertBatch batch({.tokens = 9, .experts = 4, .mode = mode, .x_rows = XRows::own});
    std::fill(batch.slots.begin(), batch.slots.end(), 0);
    Elements wanted = batch.y;
    REQUIRE(run(batch.apply(wanted)).ok());
    CHECK(wanted.bytes != batch.y.bytes);
    Elements got = batch.y;
    ApplyExpertsArgs args = batch.apply(got);
    args.addressing.token_slots = nullptr;
    args.addressing.row_tokens = nullptr;
    REQUIRE(run(args).ok());
    CHECK(got.bytes == wanted.bytes);
    args.table.shape.num_slots = 0;  // not even slot 0
    got = batch.y;
    args.y.data = got.bytes.data();
    REQUIRE(run(args).ok());
    CHECK(got.bytes == batch.y.bytes);
  }
}

TEST_CASE("offsets that do not start at 0, and rows behind the last expert, are left alone") {
  ExpertBatch batch({.tokens = 10, .top_k = 2, .experts = 4, .mode = ExpertMode::grouped});
  for (std::size_t r = 0; r < 20; ++r) batch.row_tokens[r] = static_cast<std::int32_t>(r % 10);
  batch.offsets = {3, 3, 9, 12, 14};
  check_batch(batch);
  batch.offsets = {20, 20, 20, 20, 20};
  check_batch(batch);
  batch.offsets = {0, 0, 0, 0, 0};
  check_batch(batch);
}

TEST_CASE("malformed offsets and tokens never lead outside, and the status stays ok") {
  const std::vector<std::int32_t> offsets[] = {{0, 9, 4, 12, 20},        // decreasing
                                               {0, -5, 7, kLeast, 11},   // negative
                                               {0, 5, 1000, 12, kMost},  // past the rows
                                               {kMost, kLeast, 3, 0, 40},
                                               {-7, -7, -7, 30, 10}};
  for (const auto& bad : offsets) {
    for (const XRows x_rows : {XRows::own, XRows::token}) {
      ExpertBatch batch(
          {.tokens = 10, .top_k = 2, .experts = 4, .mode = ExpertMode::grouped, .x_rows = x_rows});
      for (std::size_t r = 0; r < 20; ++r) batch.row_tokens[r] = static_cast<std::int32_t>(r % 10);
      batch.offsets = bad;
      check_batch(batch);
      batch.row_tokens[0] = -1;
      batch.row_tokens[1] = kLeast;
      batch.row_tokens[5] = 10;
      batch.row_tokens[6] = kMost;
      check_batch(batch);
    }
  }
}

TEST_CASE("C1, C2, C5: no rows, no adapters, rank 0 everywhere are ordinary") {
  for (const ExpertMode mode : {ExpertMode::grouped, ExpertMode::gather}) {
    ExpertBatch batch({.tokens = 8, .mode = mode});
    std::fill(batch.slots.begin(), batch.slots.end(), -1);
    check_batch(batch);
    Elements got = batch.y;
    ApplyExpertsArgs args = batch.apply(got);
    args.addressing.row_begin = args.addressing.row_end = 7;
    REQUIRE(run(args).ok());
    CHECK(got.bytes == batch.y.bytes);
    ExpertBatch bare({.tokens = 8, .mode = mode});
    for (AdapterEntry& entry : bare.entries) entry = {};
    got = bare.y;
    REQUIRE(run(bare.apply(got)).ok());
    CHECK(got.bytes == bare.y.bytes);
    const ExpertBatch empty({.tokens = 0, .mode = mode});
    REQUIRE(run(empty.apply(got)).ok());
  }
}

TEST_CASE("an entry without A adds nothing, and what workspace holds is never seen") {
  for (const ExpertMode mode : {ExpertMode::grouped, ExpertMode::gather}) {
    ExpertBatch batch({.tokens = 20, .out = {8, 8}, .mode = mode, .same_ranks = true});
    for (std::size_t i = 0; i < batch.entries.size(); i += 2) {
      batch.entries[i].a = nullptr;
      std::fill(batch.a[i].bytes.begin(), batch.a[i].bytes.end(), std::byte{0});
    }
    Elements got = batch.y;
    REQUIRE(run(batch.apply(got)).ok());
    CHECK(close(got, batch.oracle_y(), batch.base()));
    for (std::int64_t r = 0; r < batch.rows(); ++r) CHECK(got.get(r * 16) == batch.y.get(r * 16));
  }
}

TEST_CASE("512 experts and 64 slots") {
  for (const ExpertMode mode : {ExpertMode::grouped, ExpertMode::gather}) {
    for (const XRows x_rows : {XRows::own, XRows::token}) {
      const ExpertBatch batch({.tokens = 90,
                               .top_k = 10,
                               .in = 16,
                               .out = {8},
                               .slots = 64,
                               .experts = 512,
                               .max_rank = 2,
                               .mode = mode,
                               .x_rows = x_rows,
                               .strengths = true});
      check_batch(batch);
    }
  }
}

TEST_CASE("F3: one row and 128 experts, nothing of a block but that row") {
  for (const ExpertMode mode : {ExpertMode::grouped, ExpertMode::gather}) {
    ExpertBatch batch({.tokens = 1, .top_k = 1, .experts = 128, .mode = mode, .same_ranks = true});
    batch.ids = {77};
    batch.slots = {2};
    batch.route();
    CHECK(batch.entry_of(0) >= 0);
    check_batch(batch);
  }
}

TEST_CASE("strategies of experts: chosen by bounds, forced, listed, declined with a reason") {
  Elements y;
  ExpertBatch batch({.tokens = 2, .top_k = 4});
  Problem problem = make_problem(batch.apply(y));
  CHECK(supports(device(), problem).value() == Strategy::experts_gathered);
  problem.bounds.rows = 9;
  CHECK(supports(device(), problem).value() == Strategy::experts_sorted);
  problem.options.strategy = Strategy::experts_gathered;
  CHECK(supports(device(), problem).value() == Strategy::experts_gathered);
  problem.expert_mode = ExpertMode::grouped;
  CHECK(std::string(supports(device(), problem).status().message()) ==
        "apply_experts: strategy is experts_gathered; it takes token-major rows (mode gather), in "
        "mode "
        "grouped it should be experts_sorted");
  problem.options.strategy = Strategy::routed;
  CHECK(std::string(supports(device(), problem).status().message()) ==
        "apply_experts: strategy is routed; the reference backend has experts_sorted and "
        "experts_gathered");
  problem.options.strategy = Strategy::experts_sorted;
  CHECK(supports(device(), problem).value() == Strategy::experts_sorted);
  problem.op = Op::backward_experts;
  problem.options.strategy = Strategy::automatic;
  CHECK(supports(device(), problem).status().code() == StatusCode::unsupported);
  StrategyInfo list[64];
  const int count = device().list_strategies(list, 64);
  int found = 0;
  for (int i = 0; i < count; ++i) {
    found += list[i].strategy == Strategy::experts_sorted ||
                     list[i].strategy == Strategy::experts_gathered
                 ? 1
                 : 0;
  }
  CHECK(found == 6);
}
