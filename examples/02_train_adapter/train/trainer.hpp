// The training loop: batches, two threads, AdamW.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "train/adamw.hpp"
#include "train/adapter.hpp"
#include "train/lora_pass.hpp"
#include "train/model.hpp"
#include "train/shift_task.hpp"

namespace train {

struct TrainOptions {
  std::int64_t num_steps = 300;
  std::int64_t num_sequences = 64;  ///< of a batch
  float learning_rate = 3e-3f;      ///< the largest
};

struct Progress {
  std::int64_t step;  ///< steps that are over
  std::int64_t num_steps;
  double loss;  ///< mean over the tokens of the last batch, in nats
  double seconds;
};

class Trainer {
 public:
  /// All must outlive the object.
  Trainer(const Model& model, Adapter& adapter, Examples& examples, const TrainOptions& options);

  /// Loss of each step. `watch` is called after each.
  std::vector<double> run(const std::function<void(const Progress&)>& watch = {});

 private:
  double step(std::int64_t number);

  const Model& model_;
  Adapter& adapter_;
  Examples& examples_;
  TrainOptions options_;
  AdamW optimizer_;
  std::vector<LoraPass> passes_;  // one a thread
  std::vector<float> gradients_;
};

}  // namespace train
