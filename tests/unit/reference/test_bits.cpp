// Same bits at any thread count, run after run, and whatever else is in the batch.
#include <doctest/doctest.h>
#include <oneapi/tbb/global_control.h>

#include <cstring>

#include "batch.hpp"

using namespace rankfold;
using namespace rankfold::reference_test;

namespace {

const BatchSpec kMixed = {.tokens = 300,
                          .in = 1500,
                          .out = {700, 130},
                          .slots = 5,
                          .max_rank = 20,
                          .x = DType::bf16,
                          .y = DType::bf16,
                          .a = DType::bf16,
                          .b = DType::bf16,
                          .bias = true,
                          .token_weights = true};

}  // namespace

TEST_CASE("determinism: bit-equal at 1, 2, 4 and 8 threads") {
  Batch batch(kMixed);
  Elements first;
  for (const std::size_t threads : {1, 2, 4, 8}) {
    const tbb::global_control limit(tbb::global_control::max_allowed_parallelism, threads);
    Elements got = batch.y;
    // A new worker stream: its thread meets the limit when it starts.
    REQUIRE(run(batch.linear(got), StreamMode::worker).ok());
    if (threads == 1) first = got;
    CAPTURE(threads);
    CHECK(got.bytes == first.bytes);
  }
}

TEST_CASE("G7: the same call 100 times gives the same bits") {
  Batch batch({.tokens = 70,
               .in = 600,
               .out = {300},
               .slots = 4,
               .max_rank = 16,
               .x = DType::f16,
               .y = DType::f32,
               .a = DType::f16,
               .b = DType::f16});
  Elements first = batch.y;
  REQUIRE(run(batch.linear(first)).ok());
  for (int i = 0; i < 100; ++i) {
    Elements got = batch.y;
    REQUIRE(run(batch.linear(got), i % 2 == 0 ? StreamMode::inline_ : StreamMode::worker).ok());
    REQUIRE(got.bytes == first.bytes);
  }
}

TEST_CASE("G7, batch_invariant: a row alone and in batches of up to 64, by both strategies") {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    BatchSpec spec = kMixed;
    spec.tokens = 64;
    spec.x = spec.y = spec.a = spec.b = dtype;
    Batch batch(spec);
    const std::int64_t columns = batch.out_columns();
    const std::size_t row_bytes = static_cast<std::size_t>(columns) * size_of(dtype);
    Elements whole = batch.y;
    ApplyLinearArgs args = batch.linear(whole);
    args.options.batch_invariant = BatchInvariant::on;
    REQUIRE(run(args).ok());
    for (const Strategy strategy : {Strategy::automatic, Strategy::routed, Strategy::grouped}) {
      for (const std::int64_t tokens : {1, 2, 5, 17}) {
        for (std::int64_t begin = 0; begin + tokens <= 64; begin += tokens) {
          Elements part = batch.y;
          ApplyLinearArgs some = batch.linear(part);
          some.options.batch_invariant = BatchInvariant::on;
          some.options.strategy = strategy;
          const auto at = static_cast<std::size_t>(begin) * row_bytes;
          some.x = const_matrix(
              batch.x.bytes.data() + static_cast<std::size_t>(begin * spec.in) * size_of(dtype),
              dtype, tokens, spec.in);
          some.y = matrix(part.bytes.data() + at, dtype, tokens, columns);
          some.addressing.num_tokens = tokens;
          some.addressing.token_slots += begin;
          some.addressing.token_weights += begin;
          REQUIRE(run(some).ok());
          CHECK(std::memcmp(part.bytes.data() + at, whole.bytes.data() + at,
                            row_bytes * static_cast<std::size_t>(tokens)) == 0);
        }
      }
    }
  }
}

TEST_CASE("shrink then expand gives the bits of apply_linear") {
  Batch batch(kMixed);
  Elements fused = batch.y;
  REQUIRE(run(batch.linear(fused)).ok());
  std::vector<float> h(static_cast<std::size_t>(300 * 2 * 20));
  ShrinkArgs shrink_args;
  shrink_args.x = batch.linear(fused).x;
  shrink_args.table = batch.table();
  shrink_args.addressing = batch.addressing();
  shrink_args.h = matrix(h.data(), 300, 40);
  REQUIRE(run(shrink_args).ok());
  Elements apart = batch.y;
  ExpandArgs expand_args;
  expand_args.h = shrink_args.h;
  expand_args.table = batch.table();
  expand_args.addressing = batch.addressing();
  expand_args.y = batch.linear(apart).y;
  REQUIRE(run(expand_args).ok());
  CHECK(apart.bytes == fused.bytes);
}
