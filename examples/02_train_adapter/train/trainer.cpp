#include "train/trainer.hpp"

#include <algorithm>
#include <chrono>
#include <exception>
#include <thread>

namespace train {
namespace {

// Always two, whatever the machine has: their gradients are added in this order, so the same seed
// gives the same adapter everywhere that a product gives the same bits.
constexpr std::size_t kNumThreads = 2;

// Up from zero over the first steps, then down on a straight line to a fiftieth.
float learning_rate(const TrainOptions& options, std::int64_t step) {
  const std::int64_t warmup = std::min<std::int64_t>(50, options.num_steps / 10 + 1);
  const auto done = static_cast<float>(step) / static_cast<float>(options.num_steps);
  const float up = static_cast<float>(step + 1) / static_cast<float>(warmup);
  return options.learning_rate * std::min(up, std::max(0.02f, 1.0f - done));
}

}  // namespace

Trainer::Trainer(const Model& model, Adapter& adapter, Examples& examples,
                 const TrainOptions& options)
    : model_(model),
      adapter_(adapter),
      examples_(examples),
      options_(options),
      optimizer_(adapter.parameters().size()),
      gradients_(adapter.parameters().size()) {
  const auto threads = static_cast<std::int64_t>(kNumThreads);
  const std::int64_t share = (options.num_sequences + threads - 1) / threads;
  for (std::size_t i = 0; i < kNumThreads; ++i) passes_.emplace_back(adapter, share * kMostRows);
}

std::vector<double> Trainer::run(const std::function<void(const Progress&)>& watch) {
  const auto begin = std::chrono::steady_clock::now();
  std::vector<double> losses;
  for (std::int64_t i = 0; i < options_.num_steps; ++i) {
    losses.push_back(step(i));
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
    if (watch) watch({i + 1, options_.num_steps, losses.back(), time.count()});
  }
  return losses;
}

// Each thread takes a part of the batch through the whole model: nothing is shared but weights.
double Trainer::step(std::int64_t number) {
  std::vector<Batch> parts;
  std::size_t num_tokens = 0;
  for (std::size_t i = 0; i < kNumThreads; ++i) {
    const std::int64_t left = options_.num_sequences / static_cast<std::int64_t>(kNumThreads);
    const std::int64_t more =
        i == 0 ? options_.num_sequences % static_cast<std::int64_t>(kNumThreads) : 0;
    parts.push_back(examples_.next_batch(left + more));
    num_tokens += parts.back().wanted.size();
  }
  const float weight = 1.0f / static_cast<float>(num_tokens);
  std::vector<double> losses(kNumThreads);
  std::vector<std::exception_ptr> errors(kNumThreads);
  const auto work = [&](std::size_t i) {
    try {
      losses[i] = model_.forward_backward(parts[i], weight, passes_[i]);
    } catch (...) {
      errors[i] = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 1; i < kNumThreads; ++i) threads.emplace_back(work, i);
    work(0);
  }
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);

  std::fill(gradients_.begin(), gradients_.end(), 0.0f);
  for (LoraPass& pass : passes_) {
    const std::span<const float> part = pass.gradients();
    for (std::size_t i = 0; i < gradients_.size(); ++i) gradients_[i] += part[i];
  }
  optimizer_.step(adapter_.parameters(), gradients_, learning_rate(options_, number));
  adapter_.upload();
  double loss = 0;
  for (const double part : losses) loss += part;
  return loss;
}

}  // namespace train
