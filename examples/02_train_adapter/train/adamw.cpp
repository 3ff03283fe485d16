#include "train/adamw.hpp"

#include <algorithm>
#include <cmath>

namespace train {

void AdamW::step(std::span<float> parameters, std::span<const float> gradients,
                 float learning_rate) {
  ++num_steps_;
  double sum = 0;
  for (const float g : gradients) sum += static_cast<double>(g) * g;
  const auto norm = static_cast<float>(std::sqrt(sum));
  const float clip = norm > options_.max_norm ? options_.max_norm / norm : 1.0f;

  // Both averages begin at zero; dividing by these takes the bias out.
  const auto steps = static_cast<float>(num_steps_);
  const float mean_bias = 1.0f - std::pow(options_.beta1, steps);
  const float square_bias = 1.0f - std::pow(options_.beta2, steps);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const float g = gradients[i] * clip;
    mean_[i] = options_.beta1 * mean_[i] + (1.0f - options_.beta1) * g;
    square_[i] = options_.beta2 * square_[i] + (1.0f - options_.beta2) * g * g;
    const float direction =
        mean_[i] / mean_bias / (std::sqrt(square_[i] / square_bias) + options_.epsilon);
    parameters[i] -= learning_rate * (direction + options_.weight_decay * parameters[i]);
  }
}

}  // namespace train
