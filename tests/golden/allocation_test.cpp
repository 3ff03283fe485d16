// No step of the example allocates inside rankfold: grouping, every layer's deltas, the embedding's
// and the head's, whatever the batch. The base model allocates, so it is left out here.
#include "allocation_counter.hpp"

#include <doctest/doctest.h>

#include "support.hpp"

namespace golden {
namespace {

const std::vector<std::string> kAdapters = {"reverse", "upper", "sort", "rot13"};

// What a step of a model hands to its deltas, for row t the adapter t mod 5, the fifth being none.
class Step {
 public:
  Step(Rig& rig, std::int64_t num_rows) : rig_(rig), ids_(static_cast<std::size_t>(num_rows), 7) {
    const llama::Config& config = rig.model().config();
    for (std::int64_t t = 0; t < num_rows; ++t) {
      const auto which = static_cast<std::size_t>(t) % (kAdapters.size() + 1);
      slots_.push_back(which < kAdapters.size() ? rig.slot(kAdapters[which]) : -1);
      if (t % 2 == 0) logit_rows_.push_back(t);
    }
    const auto add = [&](std::int64_t rows, std::int64_t in, std::int64_t out) {
      layers_.push_back({Matrix::Ones(rows, in), Matrix::Zero(rows, out)});
    };
    const std::int64_t hidden = config.hidden_size;
    add(num_rows, hidden, config.q_width() + 2 * config.kv_width());
    add(num_rows, config.q_width(), hidden);
    add(num_rows, hidden, 2 * config.intermediate_size);
    add(num_rows, config.intermediate_size, hidden);
    add(static_cast<std::int64_t>(logit_rows_.size()), hidden, config.vocab_size);
    embedded_ = Matrix::Zero(num_rows, hidden);
  }

  void run() {
    llama::Deltas& deltas = rig_.deltas();
    const auto num_layers = static_cast<int>(rig_.model().config().num_layers);
    deltas.begin_step(slots_, logit_rows_);
    deltas.apply_embedding(llama::embed_target(), ids_, embedded_);
    for (int layer = 0; layer < num_layers; ++layer) {
      deltas.apply_linear(llama::qkv_target(layer), layers_[0].x, layers_[0].y);
      deltas.apply_linear(llama::o_target(layer), layers_[1].x, layers_[1].y);
      deltas.apply_linear(llama::gate_up_target(layer), layers_[2].x, layers_[2].y);
      deltas.apply_linear(llama::down_target(layer), layers_[3].x, layers_[3].y);
    }
    deltas.apply_linear(llama::head_target(num_layers), layers_[4].x, layers_[4].y,
                        llama::Rows::logits);
  }

  bool has_deltas() const { return !layers_[0].y.isZero(0); }

 private:
  struct Layer {
    Matrix x, y;
  };
  Rig& rig_;
  Tokens ids_;
  std::vector<std::int32_t> slots_;
  std::vector<std::int64_t> logit_rows_;
  std::vector<Layer> layers_;
  Matrix embedded_;
};

TEST_CASE("steps of the example: no allocation inside rankfold after the first") {
  for (const rankfold::StreamMode mode : stream_modes()) {
    CAPTURE(to_string(mode));
    Rig rig(kTasks, kAdapters, mode);
    Step largest(rig, 40), middle(rig, 13), one(rig, 1);
    largest.run();
    const rankfold::testing::AllocationScope scope;
    for (int i = 0; i < 3; ++i) {
      largest.run();
      middle.run();
      one.run();
    }
    CHECK(scope.count() == 0);
    CHECK(largest.has_deltas());
  }
  // The counter counts.
  const rankfold::testing::AllocationScope scope;
  const Matrix matrix = Matrix::Zero(40, 40);
  CHECK(matrix.size() == 1600);
  CHECK(scope.count() > 0);
}

}  // namespace
}  // namespace golden
