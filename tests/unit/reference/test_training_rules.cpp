// What a backward promises besides its numbers: the same bits, isolation, hostile arrays, bounds.
#include <doctest/doctest.h>
#include <oneapi/tbb/global_control.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "training.hpp"

using namespace rankfold;
using namespace rankfold::reference_test;

namespace {

TrainingSpec large() {
  TrainingSpec spec{.batch = {.tokens = 1700,
                              .in = 600,
                              .out = {520, 130},
                              .slots = 2,
                              .max_rank = 12,
                              .x = DType::bf16,
                              .y = DType::bf16,
                              .a = DType::bf16,
                              .b = DType::bf16,
                              .bias = true,
                              .token_weights = true}};
  spec.dx = DType::bf16;
  spec.p = 0.1f;
  return spec;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), 4 * a.size()) == 0);
}
bool same_bits(const Training& a, const Training& b) {
  const auto all = [](const auto& x, const auto& y) {
    return std::equal(x.begin(), x.end(), y.begin(),
                      [](const auto& one, const auto& other) { return same_bits(one, other); });
  };
  return a.dx.bytes == b.dx.bytes && same_bits(a.ds, b.ds) && all(a.da, b.da) && all(a.db, b.db) &&
         all(a.dbias, b.dbias);
}

// A host's own grouped form.
struct Segments {
  std::vector<std::int32_t> order, offsets, slots;
  std::int32_t count = 0;

  LoraAddressing over(LoraAddressing addressing) const {
    addressing.mode = AddressingMode::grouped;
    addressing.token_slots = nullptr;
    addressing.token_order = order.data();
    addressing.segment_offsets = offsets.data();
    addressing.segment_slots = slots.data();
    addressing.num_segments = &count;
    addressing.max_segments = static_cast<std::int64_t>(slots.size());
    return addressing;
  }
};

}  // namespace

TEST_CASE("backward: bit-equal at any thread count, run after run, in both stream modes") {
  Training first(large());
  REQUIRE(first.run_backward().ok());
  for (const std::size_t threads : {1, 2, 3, 8}) {
    for (const StreamMode mode : {StreamMode::inline_, StreamMode::worker}) {
      const tbb::global_control limit(tbb::global_control::max_allowed_parallelism, threads);
      Training again(large());
      REQUIRE(again.run_backward(mode).ok());
      CAPTURE(threads);
      CHECK(same_bits(again, first));
    }
  }
}

TEST_CASE("backward: the same bits however rows are addressed") {
  TrainingSpec spec = large();
  Training by_token(spec);
  REQUIRE(by_token.run_backward().ok());

  // Segments of both slots in turn, rows from the last to the first, empty segments between.
  Training segmented(spec);
  Segments segments;
  const auto& slots = segmented.batch.slots;
  for (std::int32_t row = static_cast<std::int32_t>(slots.size()) - 1; row >= 0; --row) {
    const std::int32_t slot = slots[static_cast<std::size_t>(row)];
    if (slot < 0 || slot >= 2) continue;
    if (segments.slots.empty() || segments.slots.back() != slot) {
      segments.offsets.insert(segments.offsets.end(), 2,
                              static_cast<std::int32_t>(segments.order.size()));
      segments.slots.push_back(1 - slot);
      segments.slots.push_back(slot);
    }
    segments.order.push_back(row);
  }
  segments.offsets.push_back(static_cast<std::int32_t>(segments.order.size()));
  segments.order.resize(slots.size(), -1);
  segments.count = static_cast<std::int32_t>(segments.slots.size());
  BackwardArgs args = segmented.backward();
  args.addressing = segments.over(args.addressing);
  REQUIRE(run(args).ok());
  CHECK(same_bits(segmented, by_token));

  for (std::int32_t slot = 0; slot < 2; ++slot) {
    Training tokens(spec);
    tokens.batch.slots.assign(tokens.batch.slots.size(), slot);
    REQUIRE(tokens.run_backward().ok());
    Training uniform(spec);
    args = uniform.backward();
    args.addressing.mode = AddressingMode::uniform;
    args.addressing.token_slots = nullptr;
    args.addressing.uniform_slot = slot;
    REQUIRE(run(args).ok());
    CHECK(same_bits(uniform, tokens));
  }
}

TEST_CASE("batch_invariant: a row's ds and dx depend on no other row") {
  const TrainingSpec spec = large();
  Training whole(spec);
  BackwardArgs args = whole.backward();
  args.options.batch_invariant = BatchInvariant::on;
  const Training untouched(spec);
  REQUIRE(run(args).ok());
  for (const std::int64_t row : {0, 5, 1699}) {
    Training alone(spec);
    BackwardArgs one = alone.backward();
    one.addressing.num_tokens = 1;
    one.addressing.token_slots += row;
    one.addressing.token_weights += row;
    one.dropout.row_base = row;
    for (auto* view : {&one.dy, &one.x}) {
      view->data = static_cast<const std::byte*>(view->data) + row * view->strides[0] * 2;
      view->sizes[0] = 1;
    }
    one.dx.data = static_cast<std::byte*>(one.dx.data) + row * 1200;
    one.ds.data = static_cast<float*>(one.ds.data) + row * alone.h_columns();
    one.dx.sizes[0] = one.ds.sizes[0] = 1;
    REQUIRE(run(one).ok());
    const auto bytes = static_cast<std::size_t>(alone.h_columns()) * 4;
    const auto at = static_cast<std::size_t>(row * alone.h_columns());
    CHECK(std::memcmp(alone.ds.data() + at, whole.ds.data() + at, bytes) == 0);
    CHECK(std::memcmp(alone.dx.bytes.data() + row * 1200, whole.dx.bytes.data() + row * 1200,
                      1200) == 0);
  }
}

TEST_CASE("isolation: a row's NaN reaches its own dx and its own (slot, slice) alone") {
  TrainingSpec spec{.batch = {.tokens = 60, .in = 50, .out = {40, 30}, .slots = 3, .max_rank = 6}};
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  Training clean(spec);
  std::int64_t row = 0;  // of slot 1, which has both slices
  clean.batch.slots[0] = 0;
  REQUIRE(clean.batch.entries[0].rank > 0);
  REQUIRE(clean.run_backward().ok());
  const auto has_nan = [](const std::vector<float>& values) {
    return std::any_of(values.begin(), values.end(), [](float v) { return std::isnan(v); });
  };
  Training of_dy(spec);
  of_dy.batch.slots[0] = 0;
  of_dy.dy.set(row * 70 + 7, kNaN);  // slice 0
  REQUIRE(of_dy.run_backward().ok());
  for (std::int64_t i = 0; i < of_dy.dx.size(); ++i) {
    CHECK(std::isnan(of_dy.dx.get(i)) == (i < 50));
  }
  for (std::size_t e = 0; e < of_dy.da.size(); ++e) {
    CAPTURE(e);
    CHECK(has_nan(of_dy.da[e]) == (e == 0));
    CHECK(has_nan(of_dy.db[e]) == (e == 0));
    CHECK(has_nan(of_dy.dbias[e]) == (e == 0));
    if (e > 0) CHECK(same_bits(of_dy.da[e], clean.da[e]));
  }
  Training of_x(spec);
  of_x.batch.slots[0] = 0;
  of_x.batch.x.set(row * 50 + 3, kNaN);
  REQUIRE(of_x.run_backward().ok());
  CHECK(of_x.dx.bytes == clean.dx.bytes);  // dx does not depend on x
  for (std::size_t e = 2; e < of_x.da.size(); ++e) CHECK(same_bits(of_x.da[e], clean.da[e]));
  for (std::size_t i = 0; i < of_x.da[0].size(); ++i) {
    CHECK(std::isnan(of_x.da[0][i]) == (i % 50 == 3));
  }
  // A dropped element is zero, whatever it holds; rows without adapter are never read.
  TrainingSpec dropping = spec;
  dropping.p = 0.5f;
  Training dropped(dropping);
  for (std::int64_t k = 0; k < 50; ++k) {
    if (dropped.mask(0, 0, k) == 0.0 && dropped.mask(0, 1, k) == 0.0) dropped.batch.x.set(k, kNaN);
  }
  dropped.batch.slots[0] = 0;
  dropped.batch.slots[1] = -1;
  for (std::int64_t k = 0; k < 50; ++k) dropped.batch.x.set(50 + k, kNaN);
  for (std::int64_t c = 0; c < 70; ++c) dropped.dy.set(70 + c, kNaN);
  REQUIRE(dropped.run_backward().ok());
  for (std::size_t e = 0; e < dropped.da.size(); ++e) {
    CHECK_FALSE((has_nan(dropped.da[e]) || has_nan(dropped.db[e]) || has_nan(dropped.dbias[e])));
  }
  CHECK_FALSE(has_nan(dropped.ds));
}

TEST_CASE("no rows, or none with an adapter: gradients are zeros, or untouched") {
  for (const std::int64_t tokens : {0, 9}) {
    for (const YMode mode : {YMode::overwrite, YMode::accumulate}) {
      for (const bool embedding : {false, true}) {
        TrainingSpec spec{.batch = {.tokens = tokens, .out = {24, 8}, .bias = true}};
        spec.grads_mode = mode;
        spec.embedding = embedding;
        Training training(spec);
        training.batch.slots.assign(training.batch.slots.size(), -1);
        const Results before = training.before();
        const Results exact = training.exact();
        REQUIRE(training.run_backward().ok());
        training.check(exact, before);
        if (tokens == 0 || embedding) continue;
        Training bounded(spec);
        BackwardArgs args = bounded.backward();
        args.addressing.active_rows_bound = 0;  // whatever the slots say
        args.options.y_mode = YMode::overwrite;
        REQUIRE(run(args).ok());
        CHECK(same_bits(bounded.da[0], training.da[0]));
        CHECK(same_bits(bounded.dbias[0], training.dbias[0]));
        for (std::int64_t i = 0; i < bounded.dx.size(); ++i) CHECK(bounded.dx.get(i) == 0.0);
      }
    }
  }
}

TEST_CASE("null pointers in the arrays leave single gradients out") {
  TrainingSpec spec{.batch = {.tokens = 40, .out = {24, 8}, .bias = true}};
  Training training(spec);
  const Results before = training.before();
  Results exact = training.exact();
  training.da_pointers[0] = training.db_pointers[1] = training.dbias_pointers[2] = nullptr;
  training.da_pointers[3] = nullptr;
  exact.da[0] = before.da[0];
  exact.da[3] = before.da[3];
  exact.db[1] = before.db[1];
  exact.dbias[2] = before.dbias[2];
  REQUIRE(training.run_backward().ok());
  for (std::size_t e = 0; e < 6; ++e) {
    const auto near = [](const std::vector<float>& got, const std::vector<double>& wanted) {
      return std::equal(
          got.begin(), got.end(), wanted.begin(), wanted.end(),
          [](float g, double w) { return std::abs(static_cast<double>(g) - w) < 1e-4; });
    };
    CAPTURE(e);
    CHECK(near(training.da[e], exact.da[e]));
    CHECK(near(training.db[e], exact.db[e]));
    CHECK(near(training.dbias[e], exact.dbias[e]));
  }
}

TEST_CASE("hostile arrays: offsets, orders, slots and ranks out of range are skipped") {
  TrainingSpec spec{.batch = {.tokens = 4, .in = 16, .out = {8}, .slots = 2, .max_rank = 4}};
  const auto made = [&] {
    Training training(spec);
    training.batch.slots = {0, 1, -5, 2};
    return training;
  };
  Training wanted = made();
  REQUIRE(wanted.run_backward().ok());
  Training hostile = made();
  Segments segments;
  segments.order = {0, 1, -1, 4};
  segments.offsets = {-7, 1, 2, INT32_MAX};
  segments.slots = {0, 1, 1};
  segments.count = INT32_MAX;
  BackwardArgs args = hostile.backward();
  args.addressing = segments.over(args.addressing);
  REQUIRE(run(args).ok());
  CHECK(same_bits(hostile, wanted));

  Training ranks = made();
  ranks.batch.entries[1].rank = -3;  // as rank 0
  REQUIRE(ranks.run_backward().ok());
  CHECK(same_bits(ranks.da[0], wanted.da[0]));
  CHECK(same_bits(ranks.da[1], made().da[1]));
}

TEST_CASE("the workspace of a backward grows with its bounds, or is refused") {
  for (const Op op : {Op::backward, Op::backward_embedding, Op::forward}) {
    Problem problem;
    problem.op = op;
    problem.shape = Batch({.out = {300, 40}, .max_rank = 20}).shape();
    problem.outputs = kOutputDx | kOutputDa | kOutputDb | kOutputDbias | kRecomputesH;
    std::uint64_t last = 0;
    for (std::int64_t rows = 1; rows < 20000; rows += rows < 3000 ? 1 : 117) {
      problem.bounds.rows = rows;
      const auto bytes = workspace_bytes(device(), problem);
      REQUIRE(bytes.ok());
      REQUIRE(*bytes >= last);
      last = *bytes;
    }
    problem.shape.in = std::int64_t{1} << 55;
    for (std::int64_t& out : problem.shape.out) out = std::int64_t{1} << 57;
    problem.shape.max_rank = INT32_MAX;
    problem.bounds.rows = INT32_MAX;
    if (op != Op::forward) {
      CHECK(workspace_bytes(device(), problem).status().code() == StatusCode::unsupported);
    }
  }
}
