// AdamW (Loshchilov and Hutter, arXiv:1711.05101) over one flat array of parameters.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace train {

struct AdamWOptions {
  float beta1 = 0.9f;
  float beta2 = 0.98f;
  float epsilon = 1e-8f;
  float weight_decay = 0.0f;
  float max_norm = 1.0f;  ///< gradients with a larger Euclidean norm are scaled down to it
};

class AdamW {
 public:
  explicit AdamW(std::size_t num_parameters, const AdamWOptions& options = {})
      : options_(options), mean_(num_parameters), square_(num_parameters) {}

  /// One step. All three arrays have num_parameters elements.
  void step(std::span<float> parameters, std::span<const float> gradients, float learning_rate);

 private:
  AdamWOptions options_;
  std::vector<float> mean_;    // of gradients
  std::vector<float> square_;  // of their squares
  std::int64_t num_steps_ = 0;
};

}  // namespace train
