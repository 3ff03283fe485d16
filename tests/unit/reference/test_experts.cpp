// Numbers of the operations of experts: against float64, and bit against bit.
#include <doctest/doctest.h>
#include <oneapi/tbb/global_control.h>

#include <cmath>
#include <cstring>

#include "expert_batch.hpp"

using namespace rankfold;
using namespace rankfold::reference_test;

namespace {

const ExpertSpec kMixed = {.tokens = 70,
                           .top_k = 4,
                           .in = 1100,
                           .out = {130, 70},
                           .slots = 3,
                           .experts = 4,
                           .max_rank = 20,
                           .x = DType::bf16,
                           .y = DType::bf16,
                           .weights = DType::bf16,
                           .strengths = true};

template <class Check>
void for_each_layout(ExpertSpec spec, Check check) {
  for (const ExpertMode mode : {ExpertMode::grouped, ExpertMode::gather}) {
    for (const XRows x_rows : {XRows::own, XRows::token}) {
      spec.mode = mode;
      spec.x_rows = x_rows;
      CAPTURE(mode == ExpertMode::gather);
      CAPTURE(x_rows == XRows::token);
      check(spec);
    }
  }
}

}  // namespace

TEST_CASE("apply_experts: both modes, both kinds of x rows, every dtype, as float64 has it") {
  struct {
    DType x, y, weights;
  } const kinds[] = {
      {DType::f32, DType::f32, DType::f32},    {DType::f16, DType::f16, DType::f16},
      {DType::bf16, DType::bf16, DType::bf16}, {DType::bf16, DType::f32, DType::f16},
      {DType::f16, DType::f16, DType::f32},    {DType::f32, DType::f32, DType::bf16}};
  std::uint32_t seed = 1;
  for (const auto& kind : kinds) {
    for_each_layout({.tokens = 40,
                     .top_k = 3,
                     .in = 70,
                     .out = {33, 50},
                     .x = kind.x,
                     .y = kind.y,
                     .weights = kind.weights,
                     .strengths = true,
                     .expert_base = 7},
                    [&](ExpertSpec spec) {
                      spec.seed = seed++;
                      const ExpertBatch batch(spec);
                      for (const YMode mode : {YMode::accumulate, YMode::overwrite}) {
                        Elements got = batch.y;
                        if (mode == YMode::overwrite) {
                          std::memset(got.bytes.data(), 0xff, got.bytes.size());  // NaN
                        }
                        ApplyExpertsArgs args = batch.apply(got);
                        args.options.y_mode = mode;
                        REQUIRE(run(args).ok());
                        CHECK(close(got, batch.oracle_y(mode), batch.base(mode)));
                      }
                    });
  }
}

TEST_CASE("exact data is bit-equal to float64, by every strategy and in both stream modes") {
  for_each_layout(
      {.tokens = 50, .out = {40, 24}, .strengths = true, .integers = true}, [&](ExpertSpec spec) {
        const ExpertBatch batch(spec);
        const std::vector<double> exact = batch.oracle_y();
        for (const Strategy strategy :
             {Strategy::automatic, Strategy::experts_sorted, Strategy::experts_gathered}) {
          if (strategy == Strategy::experts_gathered && spec.mode == ExpertMode::grouped) continue;
          for (const StreamMode mode : {StreamMode::inline_, StreamMode::worker}) {
            Elements got = batch.y;
            ApplyExpertsArgs args = batch.apply(got);
            args.options.strategy = strategy;
            REQUIRE(run(args, mode).ok());
            int wrong = 0;
            for (std::int64_t i = 0; i < got.size(); ++i) {
              wrong += got.get(i) != exact[static_cast<std::size_t>(i)] ? 1 : 0;
            }
            CHECK(wrong == 0);
          }
        }
      });
}

TEST_CASE("the strategies, the halves and any number of threads give the same bits") {
  for_each_layout(kMixed, [&](const ExpertSpec& spec) {
    const ExpertBatch batch(spec);
    Elements first = batch.y;
    REQUIRE(run(batch.apply(first)).ok());
    CHECK(first.bytes != batch.y.bytes);
    for (const std::size_t threads : {1, 2, 4, 8}) {
      const tbb::global_control limit(tbb::global_control::max_allowed_parallelism, threads);
      Elements got = batch.y;
      REQUIRE(run(batch.apply(got), StreamMode::worker).ok());
      CHECK(got.bytes == first.bytes);
    }
    if (spec.mode == ExpertMode::gather) {
      Elements got = batch.y;
      ApplyExpertsArgs args = batch.apply(got);
      args.options.strategy = Strategy::experts_gathered;
      REQUIRE(run(args).ok());
      CHECK(got.bytes == first.bytes);
    }
    std::vector<float> h(static_cast<std::size_t>(batch.rows() * batch.h_columns()), NAN);
    Elements apart = batch.y;
    REQUIRE(run(batch.shrink(h)).ok());
    REQUIRE(run(batch.expand(h, apart)).ok());
    CHECK(apart.bytes == first.bytes);
    const std::vector<double> exact = batch.oracle_h();
    double error = 0;
    double size = 0;
    for (std::size_t i = 0; i < h.size(); ++i) {
      if (exact[i] == 0.0) CHECK(h[i] == 0.0f);  // no adapter, or past the rank
      error += (h[i] - exact[i]) * (h[i] - exact[i]);
      size += exact[i] * exact[i];
    }
    CHECK(std::sqrt(error) <= 1e-5 * std::sqrt(size));
  });
}

TEST_CASE("f = scaling * row_weight * token_weight, multiplied in that order, once") {
  // In float32 other orders differ.
  const float scaling = 1.1f, row = 1.9f, token = 0.1f;
  const float wanted = (scaling * row) * token;
  REQUIRE(wanted != scaling * (row * token));
  REQUIRE(wanted != (scaling * token) * row);
  for_each_layout({.tokens = 1,
                   .top_k = 1,
                   .in = 1,
                   .out = {1},
                   .slots = 1,
                   .experts = 1,
                   .max_rank = 1,
                   .strengths = true},
                  [&](const ExpertSpec& spec) {
                    ExpertBatch batch(spec);
                    batch.ids = {0};
                    batch.slots = {0};
                    batch.route();
                    batch.x.set(0, 1.0f);
                    batch.a[0].set(0, 1.0f);
                    batch.b[0].set(0, 1.0f);
                    batch.entries[0].scaling = scaling;
                    batch.row_weights = {row};
                    batch.token_weights = {token};
                    Elements got = batch.y;
                    ApplyExpertsArgs args = batch.apply(got);
                    args.options.y_mode = YMode::overwrite;
                    REQUIRE(run(args).ok());
                    CHECK(got.get(0) == wanted);
                  });
}

TEST_CASE("one A for all experts, for all slices or for both gives the bits of copies of it") {
  for (const SharedA shared : {SharedA::by_slices, SharedA::by_experts, SharedA::by_both}) {
    for_each_layout(kMixed, [&](ExpertSpec spec) {
      spec.shared = shared;
      spec.same_ranks = true;
      spec.max_rank = 9;
      spec.y = DType::f32;
      ExpertBatch batch(spec);
      Elements wanted = batch.y;
      std::vector<float> h(static_cast<std::size_t>(batch.rows() * batch.h_columns()), NAN);
      std::vector<float> wanted_h = h;
      Elements got = batch.y;
      REQUIRE(run(batch.apply(got)).ok());
      REQUIRE(run(batch.shrink(h)).ok());
      std::size_t shares = 0;
      for (std::size_t i = 0; i < batch.entries.size(); ++i) {
        shares += batch.entries[i].a != batch.a[i].bytes.data() ? 1 : 0;
        batch.entries[i].a = batch.a[i].bytes.data();
      }
      CHECK(shares >= batch.entries.size() / 2);
      REQUIRE(run(batch.apply(wanted)).ok());
      REQUIRE(run(batch.shrink(wanted_h)).ok());
      CHECK(got.bytes == wanted.bytes);
      CHECK(std::memcmp(h.data(), wanted_h.data(), h.size() * sizeof(float)) == 0);
      CHECK(close(got, batch.oracle_y(), batch.base()));
    });
  }
}

TEST_CASE("a pointer that is shared with another rank or row stride is not the same A") {
  for_each_layout({.tokens = 30,
                   .in = 48,
                   .out = {16, 16},
                   .max_rank = 8,
                   .shared = SharedA::by_both,
                   .same_ranks = true},
                  [&](const ExpertSpec& spec) {
                    ExpertBatch batch(spec);
                    for (std::size_t i = 0; i < batch.entries.size(); i += 3) {
                      batch.entries[i].rank = static_cast<std::int32_t>(i % 7);
                      batch.b[i].resize(spec.weights, batch.entries[i].rank * 16);
                      for (std::int64_t c = 0; c < batch.b[i].size(); ++c) {
                        batch.b[i].set(c, 0.25f * static_cast<float>(c % 5));
                      }
                      batch.entries[i].b = batch.b[i].bytes.data();
                      batch.entries[i].b_row_stride = batch.entries[i].rank;
                    }
                    Elements got = batch.y;
                    REQUIRE(run(batch.apply(got)).ok());
                    CHECK(close(got, batch.oracle_y(), batch.base()));
                  });
}

TEST_CASE("F8: an expert twice in one token counts twice, experts without rows are fine") {
  for_each_layout({.tokens = 4, .top_k = 2, .experts = 8, .same_ranks = true, .integers = true},
                  [&](const ExpertSpec& spec) {
                    ExpertBatch batch(spec);
                    std::fill(batch.ids.begin(), batch.ids.end(), 3);
                    std::fill(batch.slots.begin(), batch.slots.end(), 1);
                    batch.route();
                    Elements got = batch.y;
                    REQUIRE(run(batch.apply(got)).ok());
                    const std::vector<double> exact = batch.oracle_y();
                    for (std::int64_t i = 0; i < got.size(); ++i) {
                      CHECK(got.get(i) == exact[static_cast<std::size_t>(i)]);
                    }
                    if (spec.x_rows != XRows::token) return;
                    // Both rows of a token got the same delta.
                    for (std::int64_t c = 0; c < 24; ++c) {
                      CHECK(got.get(c) - batch.y.get(c) == got.get(24 + c) - batch.y.get(24 + c));
                    }
                  });
}

TEST_CASE("NaN in a row of x or in an adapter stays in the rows that use it") {
  for_each_layout(kMixed, [&](const ExpertSpec& spec) {
    ExpertBatch batch(spec);
    Elements clean = batch.y;
    REQUIRE(run(batch.apply(clean)).ok());
    constexpr std::int64_t kRow = 5;
    batch.x.set(kRow * spec.in + 3, NAN);
    const std::size_t hurt_entry = 2 * (1 * 4 + 2);  // slot 1, expert 2, slice 0
    REQUIRE(batch.entries[hurt_entry].rank > 0);
    batch.a[hurt_entry].set(0, NAN);
    Elements got = batch.y;
    REQUIRE(run(batch.apply(got)).ok());
    for (std::int64_t r = 0; r < batch.rows(); ++r) {
      const std::int64_t entry = batch.entry_of(r);
      const std::int64_t x_row = spec.x_rows == XRows::own ? r : batch.token_of(r);
      for (std::int64_t c = 0; c < 200; ++c) {
        const std::int64_t at = entry + (c < 130 ? 0 : 1);
        const bool touched = entry >= 0 && batch.entries[static_cast<std::size_t>(at)].rank > 0;
        const bool hurt = touched && (x_row == kRow || at == static_cast<std::int64_t>(hurt_entry));
        const double value = got.get(r * 200 + c);
        if (hurt ? !std::isnan(value) : value != clean.get(r * 200 + c)) {
          FAIL_CHECK("row " << r << " column " << c << " is " << value);
        }
      }
    }
  });
}
