// All dtypes, options and paths against float64.
#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "batch.hpp"

using namespace rankfold;
using namespace rankfold::reference_test;

namespace {

constexpr std::array<DType, 3> kDTypes = {DType::f32, DType::f16, DType::bf16};

std::vector<double> values(const Elements& elements) {
  std::vector<double> result;
  for (std::int64_t i = 0; i < elements.size(); ++i) result.push_back(elements.get(i));
  return result;
}

}  // namespace

TEST_CASE("apply_linear: every combination of dtypes, both strategies, both stream modes") {
  for (const DType x : kDTypes) {
    for (const DType y : kDTypes) {
      if (y != x && y != DType::f32) continue;
      for (const DType a : kDTypes) {
        for (const DType b : kDTypes) {
          for (const Strategy strategy : {Strategy::routed, Strategy::grouped}) {
            Batch batch({.tokens = 11,
                         .in = 45,
                         .out = {33, 8},
                         .slots = 2,
                         .max_rank = 9,
                         .x = x,
                         .y = y,
                         .a = a,
                         .b = b,
                         .bias = true,
                         .token_weights = true});
            Elements got = batch.y;
            ApplyLinearArgs args = batch.linear(got);
            args.options.strategy = strategy;
            CAPTURE(to_string(x));
            CAPTURE(to_string(y));
            CAPTURE(to_string(a));
            CAPTURE(to_string(b));
            CAPTURE(to_string(strategy));
            REQUIRE(run(args, StreamMode::worker).ok());
            CHECK(close(got, batch.oracle_y(), values(batch.y)));
          }
        }
      }
    }
  }
}

TEST_CASE("A2, A3, A10: ranks, exact data, bit-equal") {
  for (const int rank : {1,  2,  3,  4,   7,   8,   15,  16,  17,  31,  32,   33,  63,
                         64, 65, 96, 127, 128, 129, 255, 256, 320, 512, 1000, 1024}) {
    for (const DType dtype : kDTypes) {
      // |x| <= 2, |A| <= 2: 37 * 4 is far below 2^15; sums of h B^T: 1024 * 148 * 2 below 2^23.
      Batch batch({.tokens = 7,
                   .in = 37,
                   .out = {21},
                   .slots = 2,
                   .max_rank = rank,
                   .x = dtype,
                   .y = dtype,
                   .a = dtype,
                   .b = dtype,
                   .bias = true,
                   .token_weights = true,
                   .integers = true,
                   .seed = static_cast<std::uint32_t>(rank)});
      Elements got = batch.y;
      REQUIRE(run(batch.linear(got)).ok());
      const std::vector<double> exact = batch.oracle_y();
      Elements expected;
      expected.resize(dtype, batch.y.size());
      for (std::int64_t i = 0; i < expected.size(); ++i) {
        expected.set(i, static_cast<float>(exact[static_cast<std::size_t>(i)]));
      }
      CAPTURE(rank);
      CAPTURE(to_string(dtype));
      CHECK(std::memcmp(got.bytes.data(), expected.bytes.data(), got.bytes.size()) == 0);
    }
  }
}

TEST_CASE("A1, A8: widths that nothing divides") {
  for (const std::array<std::int64_t, 2>& width : {std::array<std::int64_t, 2>{3424, 3696},
                                                   {100, 300},
                                                   {1, 1},
                                                   {7, 9},
                                                   {1025, 31},
                                                   {2047, 129}}) {
    for (const std::int64_t tokens : {1, 2, 3, 4, 37}) {
      Batch batch({.tokens = tokens,
                   .in = width[0],
                   .out = {width[1]},
                   .slots = 1,
                   .max_rank = 8,
                   .x = DType::bf16,
                   .y = DType::bf16,
                   .a = DType::bf16,
                   .b = DType::bf16});
      Elements got = batch.y;
      REQUIRE(run(batch.linear(got)).ok());
      CAPTURE(width[0]);
      CAPTURE(width[1]);
      CAPTURE(tokens);
      CHECK(close(got, batch.oracle_y(), values(batch.y)));
    }
  }
}

TEST_CASE("overwrite: rows without adapter and slices of rank 0 become zero, y is never read") {
  Batch batch(
      {.tokens = 130, .in = 24, .out = {16, 5, 12}, .slots = 4, .max_rank = 6, .bias = true});
  batch.entries[4].rank = 0;
  Elements got = batch.y;
  for (std::int64_t i = 0; i < got.size(); ++i) {
    got.set(i, std::numeric_limits<float>::quiet_NaN());
  }
  ApplyLinearArgs args = batch.linear(got);
  args.options.y_mode = YMode::overwrite;
  REQUIRE(run(args).ok());
  const std::vector<double> zero(static_cast<std::size_t>(got.size()));
  CHECK(close(got, batch.oracle_y(YMode::overwrite), zero));
  SUBCASE("the host knows that no row has an adapter") {
    args.addressing.active_rows_bound = 0;
    for (std::int64_t i = 0; i < got.size(); ++i) got.set(i, 1.0f);
    REQUIRE(run(args).ok());
    CHECK(values(got) == zero);
  }
}

TEST_CASE("shrink: h strided, zeros in rows without adapter and past the rank") {
  for (const std::int64_t tokens : {3, 90}) {
    Batch batch({.tokens = tokens, .in = 1100, .out = {8, 8}, .slots = 3, .max_rank = 10});
    const std::int64_t stride = 2 * 10 + 3;
    std::vector<float> h(static_cast<std::size_t>(tokens * stride), -7.0f);
    ShrinkArgs args;
    args.x = batch.linear(batch.y).x;
    args.table = batch.table();
    args.addressing = batch.addressing();
    args.h = matrix(h.data(), tokens, 20, {}, stride);
    REQUIRE(run(args).ok());
    const std::vector<double> exact = batch.oracle_h();
    for (std::int64_t t = 0; t < tokens; ++t) {
      for (std::int64_t j = 0; j < 20; ++j) {
        const double wanted = exact[static_cast<std::size_t>(t * 20 + j)];
        const double got = h[static_cast<std::size_t>(t * stride + j)];
        CHECK(std::abs(got - wanted) <= 1e-4);
        if (wanted == 0.0) CHECK(got == 0.0);
      }
      for (std::int64_t j = 20; j < stride; ++j) {
        CHECK(h[static_cast<std::size_t>(t * stride + j)] == -7.0f);
      }
    }
  }
}

TEST_CASE("A5: expand never reads h past the rank nor rows without adapter") {
  Batch batch(
      {.tokens = 40, .in = 16, .out = {50, 7}, .slots = 3, .max_rank = 24, .b = DType::f16});
  const std::vector<double> exact = batch.oracle_h();
  std::vector<float> h;
  const auto slices = std::size_t{2};
  for (std::size_t i = 0; i < exact.size(); ++i) {
    const std::size_t t = i / 48;
    const std::int32_t slot = batch.slots[t];
    const bool defined =
        slot >= 0 && slot < 3 &&
        static_cast<std::int32_t>(i % 24) <
            batch.entries[static_cast<std::size_t>(slot) * slices + i % 48 / 24].rank;
    h.push_back(defined ? static_cast<float>(exact[i]) : std::numeric_limits<float>::quiet_NaN());
  }
  Elements got = batch.y;
  ExpandArgs args;
  args.h = const_matrix(h.data(), batch.spec.tokens, 48);
  args.table = batch.table();
  args.addressing = batch.addressing();
  args.y = batch.linear(got).y;
  REQUIRE(run(args).ok());
  CHECK(close(got, batch.oracle_y(), values(batch.y)));
}

TEST_CASE("E2: apply_embedding, ids outside contribute nothing") {
  for (const DType dtype : kDTypes) {
    Batch batch({.tokens = 70,
                 .in = 30,
                 .out = {19},
                 .slots = 3,
                 .max_rank = 5,
                 .y = dtype,
                 .a = dtype,
                 .b = dtype});
    for (AdapterEntry& entry : batch.entries) entry.in_limit = 26;
    Elements got = batch.y;
    ApplyEmbeddingArgs args = batch.embedding(got);
    REQUIRE(run(args).ok());
    CHECK(close(got, batch.oracle_y(YMode::accumulate, true), values(batch.y)));

    const std::vector<std::int64_t> wide(batch.ids.begin(), batch.ids.end());
    Elements again = batch.y;
    args = batch.embedding(again);
    args.ids = const_vector(wide.data(), batch.spec.tokens);
    REQUIRE(run(args).ok());
    CHECK(again.bytes == got.bytes);
  }
}

TEST_CASE("D5: an entry without A adds nothing, whatever the workspace holds") {
  Batch batch({.tokens = 30, .in = 20, .out = {12, 9}, .slots = 2});
  for (AdapterEntry& entry : batch.entries) {
    entry.a = nullptr;
    REQUIRE(entry.b != nullptr);
    entry.rank = 4;
  }
  for (const Strategy strategy : {Strategy::routed, Strategy::grouped}) {
    Elements got = batch.y;
    ApplyLinearArgs args = batch.linear(got);
    args.options.strategy = strategy;
    REQUIRE(run(args).ok());
    CHECK(got.bytes == batch.y.bytes);
  }
}

TEST_CASE("a workspace aligned to 16 bytes alone is not left") {
  // 64 rows and 16 slots fill the parts of this plan to their last byte.
  Batch batch({.tokens = 64, .in = 20, .out = {12}, .slots = 16, .max_rank = 4});
  std::vector<float> h(64 * 4);
  const GatherShrinkArgs args{.ids = const_vector(batch.ids.data(), 64),
                              .table = batch.table(),
                              .addressing = batch.addressing(),
                              .h = matrix(h.data(), 64, 4)};
  const auto bytes = workspace_bytes(device(), make_problem(args)).value();
  Buffer memory = Buffer::create(device(), bytes + 128).value();
  OwnedStream stream = OwnedStream::create(device()).value();
  for (const std::size_t offset : {16, 32, 48}) {
    CAPTURE(offset);
    std::byte* const begin = memory.as<std::byte>() + offset;
    std::memset(memory.data(), 0x5a, memory.bytes());
    REQUIRE(gather_shrink(device(), args, {begin, bytes, device().device()}, stream).ok());
    REQUIRE(stream.synchronize().ok());
    int touched = 0;
    for (std::size_t i = 0; i < memory.bytes(); ++i) {
      const bool inside = i >= offset && i < offset + bytes;
      touched += !inside && memory.as<std::byte>()[i] != std::byte{0x5a} ? 1 : 0;
    }
    CHECK(touched == 0);
  }
}

TEST_CASE("isolation: NaN in a row or in an adapter reaches no other row") {
  Batch batch({.tokens = 60,
               .in = 72,
               .out = {40},
               .slots = 4,
               .max_rank = 12,
               .x = DType::bf16,
               .y = DType::bf16,
               .a = DType::bf16,
               .b = DType::bf16});
  for (std::size_t t = 0; t < 60; ++t) batch.slots[t] = static_cast<std::int32_t>(t % 4);
  Elements clean = batch.y;
  REQUIRE(run(batch.linear(clean)).ok());
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (std::int64_t k = 0; k < 72; ++k) batch.x.set(9 * 72 + k, nan);  // a row of slot 1
  for (std::int64_t i = 0; i < batch.a[2].size(); ++i) batch.a[2].set(i, nan);
  for (std::int64_t i = 0; i < batch.b[2].size(); ++i) batch.b[2].set(i, nan);
  REQUIRE(batch.entries[2].rank > 0);
  Elements got = batch.y;
  REQUIRE(run(batch.linear(got)).ok());
  for (std::int64_t t = 0; t < 60; ++t) {
    const bool hurt = t == 9 || t % 4 == 2;
    for (std::int64_t c = 0; c < 40; ++c) {
      if (hurt) {
        CHECK(std::isnan(got.get(t * 40 + c)));
      } else {
        CHECK(got.get(t * 40 + c) == clean.get(t * 40 + c));
      }
    }
  }
}

TEST_CASE("supports: operations and strategies that this backend lacks say so") {
  Problem problem;
  problem.shape = Batch({}).shape();
  problem.op = Op::backward_experts;
  CHECK(supports(device(), problem).status().code() == StatusCode::unsupported);
  CHECK(std::string(supports(device(), problem).status().message()).find("backward_experts") !=
        std::string::npos);
  problem.op = Op::apply_linear;
  problem.options.strategy = Strategy::tensor_core;
  CHECK(std::string(supports(device(), problem).status().message()) ==
        "apply_linear: strategy is tensor_core; the reference backend has routed and grouped");
  std::array<StrategyInfo, 32> list;
  CHECK(device().list_strategies(list.data(), 32) == 17);
  CHECK(device().list_strategies(nullptr, 0) == 17);
}
