// forward and backward of linear targets against float64: every subset of outputs, every option.
#include <doctest/doctest.h>

#include <array>
#include <cmath>

#include "training.hpp"

using namespace rankfold;
using namespace rankfold::reference_test;

namespace {

constexpr std::array<DType, 3> kDTypes = {DType::f32, DType::f16, DType::bf16};

BatchSpec mixed() {
  return {.tokens = 37,
          .in = 45,
          .out = {33, 20},
          .slots = 3,
          .max_rank = 9,
          .bias = true,
          .token_weights = true};
}

void check_backward(const TrainingSpec& spec, StreamMode mode = StreamMode::inline_) {
  Training training(spec);
  const Results before = training.before();
  const Results exact = training.exact();
  REQUIRE(training.run_backward(mode).ok());
  training.check(exact, before);
}

std::vector<double> values(const Elements& elements) {
  std::vector<double> result;
  for (std::int64_t i = 0; i < elements.size(); ++i) result.push_back(elements.get(i));
  return result;
}

}  // namespace

TEST_CASE("backward: every subset of outputs, modes, h given or not, with and without dropout") {
  for (unsigned outputs = 0; outputs <= kAll; ++outputs) {
    for (int options = 0; options < 16; ++options) {
      TrainingSpec spec{.batch = mixed(), .outputs = outputs};
      spec.give_h = (options & 1) != 0;
      spec.dx_mode = (options & 2) != 0 ? YMode::overwrite : YMode::accumulate;
      spec.grads_mode = (options & 4) != 0 ? YMode::overwrite : YMode::accumulate;
      spec.p = (options & 8) != 0 ? 0.3f : 0.0f;
      spec.batch.seed = outputs + 1;
      CAPTURE(outputs);
      CAPTURE(options);
      check_backward(spec, options % 3 == 0 ? StreamMode::worker : StreamMode::inline_);
    }
  }
}

TEST_CASE("backward: every combination of dtypes") {
  for (const DType x : kDTypes) {
    for (const DType dy : kDTypes) {
      for (const DType dx : kDTypes) {
        if ((dy != x && dy != DType::f32) || (dx != x && dx != DType::f32)) continue;
        for (const DType a : kDTypes) {
          for (const DType b : kDTypes) {
            TrainingSpec spec{.batch = mixed(), .dx = dx};
            spec.batch.x = x;
            spec.batch.y = dy;
            spec.batch.a = a;
            spec.batch.b = b;
            spec.p = dx == DType::f32 ? 0.0f : 0.5f;
            CAPTURE(to_string(x));
            CAPTURE(to_string(dy));
            CAPTURE(to_string(dx));
            CAPTURE(to_string(a));
            CAPTURE(to_string(b));
            check_backward(spec);
          }
        }
      }
    }
  }
}

TEST_CASE("backward: ranks and widths round every tile") {
  for (const std::int32_t rank : {1, 7, 8, 15, 16, 17, 33, 64, 100, 300}) {
    TrainingSpec spec{.batch = {.tokens = 101, .in = 150, .out = {270}, .slots = 1}};
    spec.batch.max_rank = rank;
    CAPTURE(rank);
    check_backward(spec);
    spec.batch.in = 3000;  // several columns of items
    spec.batch.out = {2500, 3};
    spec.p = 0.1f;
    if (rank == 17) check_backward(spec);
  }
}

TEST_CASE("backward: slots with several blocks of rows, accumulated and overwritten") {
  for (const YMode mode : {YMode::accumulate, YMode::overwrite}) {
    TrainingSpec spec{
        .batch = {
            .tokens = 2900, .in = 70, .out = {40, 300}, .slots = 3, .max_rank = 5, .bias = true}};
    spec.grads_mode = mode;
    spec.share_a = mode == YMode::overwrite;
    spec.share_da = spec.share_a;
    check_backward(spec);
  }
}

TEST_CASE("backward: slices that share A; their parts apart, or summed where da is shared") {
  for (const bool share_da : {false, true}) {
    for (const YMode mode : {YMode::accumulate, YMode::overwrite}) {
      for (const float p : {0.0f, 0.25f}) {
        TrainingSpec spec{
            .batch = {
                .tokens = 50, .in = 64, .out = {48, 16, 16}, .slots = 4, .max_rank = 8, .seed = 5}};
        spec.share_a = true;
        spec.share_da = share_da;
        spec.grads_mode = mode;
        spec.p = p;
        check_backward(spec);
      }
    }
  }
}

TEST_CASE("forward: y and h, with dropout, all dtypes of A, few rows and many") {
  for (const DType x : kDTypes) {
    for (const DType a : kDTypes) {
      for (const std::int64_t tokens : {1, 3, 80}) {
        for (const float p : {0.0f, 0.2f, 0.9f}) {
          TrainingSpec spec{.batch = mixed()};
          spec.batch.tokens = tokens;
          spec.batch.in = 300;
          spec.batch.x = spec.batch.y = x;
          spec.batch.a = a;
          spec.p = p;
          spec.row_base = 1000;
          Training training(spec);
          const std::vector<double> exact_h = training.exact_h();
          REQUIRE(training.run_forward(StreamMode::worker).ok());
          CAPTURE(to_string(x));
          CAPTURE(to_string(a));
          CAPTURE(tokens);
          CAPTURE(p);
          CHECK(close_rows(training.y, training.exact_y(), values(training.batch.y),
                           training.batch.out_columns()));
          Elements h;
          h.resize(DType::f32, static_cast<std::int64_t>(training.h.size()));
          for (std::size_t i = 0; i < training.h.size(); ++i) {
            h.set(static_cast<std::int64_t>(i), training.h[i]);
          }
          CHECK(close(h, exact_h, std::vector<double>(exact_h.size(), 0.0)));
        }
      }
    }
  }
}

TEST_CASE("forward's h saved and h recomputed give the same gradients of B") {
  TrainingSpec spec{.batch = mixed()};
  spec.p = 0.4f;
  Training training(spec);
  REQUIRE(training.run_backward().ok());
  Training saved(spec);
  REQUIRE(saved.run_forward().ok());
  saved.spec.give_h = true;
  REQUIRE(saved.run_backward().ok());
  CHECK(saved.db == training.db);
  CHECK(saved.da == training.da);
  CHECK(saved.dx.bytes == training.dx.bytes);
}

TEST_CASE("finite differences in float64: gradients are derivatives of what forward computes") {
  TrainingSpec spec{.batch = {.tokens = 6,
                              .in = 7,
                              .out = {5, 4},
                              .slots = 2,
                              .max_rank = 3,
                              .bias = true,
                              .token_weights = true}};
  spec.dx_mode = YMode::overwrite;
  spec.p = 0.3f;
  Training training(spec);
  const BatchSpec& b = training.batch.spec;
  REQUIRE(training.run_backward().ok());
  // Weights, bias and x are float32, so steps are powers of two that they represent exactly; y is
  // bilinear, so a central difference has no error of its own.
  constexpr float kStep = 0.25f;
  const auto loss = [&] {
    const std::vector<double> y = training.exact_y();
    double sum = 0;
    for (std::size_t i = 0; i < y.size(); ++i) {
      sum += y[i] * training.dy.get(static_cast<std::int64_t>(i));
    }
    return sum;
  };
  const auto derivative = [&](float* parameter) {
    const float old = *parameter;
    const float up = old + kStep, down = old - kStep;
    *parameter = up;
    const double above = loss();
    *parameter = down;
    const double below = loss();
    *parameter = old;
    return (above - below) / (static_cast<double>(up) - static_cast<double>(down));
  };
  const auto check = [&](float* parameter, double gradient) {
    CHECK(gradient == doctest::Approx(derivative(parameter)).epsilon(1e-5).scale(1.0));
  };
  auto* const x = reinterpret_cast<float*>(training.batch.x.bytes.data());
  for (std::int64_t i = 0; i < b.tokens * b.in; ++i) check(x + i, training.dx.get(i));
  for (std::size_t e = 0; e < training.batch.entries.size(); ++e) {
    auto* const a = reinterpret_cast<float*>(training.batch.a[e].bytes.data());
    auto* const weights = reinterpret_cast<float*>(training.batch.b[e].bytes.data());
    for (std::size_t i = 0; i < training.da[e].size(); ++i) check(a + i, training.da[e][i]);
    for (std::size_t i = 0; i < training.db[e].size(); ++i) check(weights + i, training.db[e][i]);
    for (std::size_t i = 0; i < training.dbias[e].size(); ++i) {
      check(training.batch.bias[e].data() + i, training.dbias[e][i]);
    }
  }
}
