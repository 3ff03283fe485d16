// forward_embedding and backward_embedding against float64.
#include <doctest/doctest.h>

#include "training.hpp"

using namespace rankfold;
using namespace rankfold::reference_test;

namespace {

TrainingSpec spec_of(unsigned outputs, YMode mode, bool give_h) {
  TrainingSpec spec{.batch = {.tokens = 70,
                              .in = 20,
                              .out = {33, 9},
                              .slots = 3,
                              .max_rank = 10,
                              .y = DType::bf16,
                              .a = DType::f16,
                              .token_weights = true}};
  spec.outputs = outputs;
  spec.grads_mode = mode;
  spec.give_h = give_h;
  spec.embedding = true;
  return spec;
}

}  // namespace

TEST_CASE("backward_embedding: every subset of outputs, modes, h given or gathered again") {
  for (const unsigned outputs : {0u, kDa, kDb, kDs, kDa | kDb, kDa | kDs, kDa | kDb | kDs}) {
    for (const YMode mode : {YMode::accumulate, YMode::overwrite}) {
      for (const bool give_h : {false, true}) {
        Training training(spec_of(outputs, mode, give_h));
        for (auto& entry : training.batch.entries) entry.in_limit = 17;
        const Results before = training.before();
        const Results exact = training.exact();
        CAPTURE(outputs);
        REQUIRE(training.run_backward(StreamMode::worker).ok());
        training.check(exact, before);
      }
    }
  }
}

TEST_CASE("backward_embedding: slices that share A and da") {
  for (const YMode mode : {YMode::accumulate, YMode::overwrite}) {
    TrainingSpec spec = spec_of(kDa | kDb, mode, false);
    spec.share_a = spec.share_da = true;
    Training training(spec);
    const Results before = training.before();
    const Results exact = training.exact();
    REQUIRE(training.run_backward().ok());
    training.check(exact, before);
  }
}

TEST_CASE("forward_embedding: y and h") {
  Training training(spec_of(0, YMode::overwrite, false));
  const std::vector<double> exact_h = training.exact_h();
  REQUIRE(training.run_forward().ok());
  std::vector<double> base;
  for (std::int64_t i = 0; i < training.y.size(); ++i) base.push_back(training.batch.y.get(i));
  CHECK(close_rows(training.y, training.exact_y(), base, training.batch.out_columns()));
  for (std::size_t i = 0; i < exact_h.size(); ++i) {
    CHECK(static_cast<double>(training.h[i]) == exact_h[i]);  // a copy of A
  }
}

TEST_CASE("ids that do not exist contribute nothing; int64 ids are the same") {
  TrainingSpec spec = spec_of(kDa, YMode::overwrite, false);
  Training training(spec);
  training.batch.ids.assign(70, -1);
  training.batch.ids[0] = 20;
  training.batch.ids[1] = INT32_MAX;
  training.batch.ids[2] = INT32_MIN;
  REQUIRE(training.run_backward().ok());
  for (const auto& da : training.da) {
    for (const float value : da) CHECK(value == 0.0f);
  }
  Training narrow(spec), wide(spec);
  REQUIRE(narrow.run_backward().ok());
  const std::vector<std::int64_t> ids(wide.batch.ids.begin(), wide.batch.ids.end());
  BackwardEmbeddingArgs args = wide.backward_embedding();
  args.ids = const_vector(ids.data(), 70);
  REQUIRE(run(args).ok());
  CHECK(narrow.da == wide.da);
}
