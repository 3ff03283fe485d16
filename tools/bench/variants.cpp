#include "variants.hpp"

#include <algorithm>
#include <chrono>

#include "command.hpp"
#include "must.hpp"

namespace rankfold::tools {
namespace {

constexpr Effort kEffort{.least_replays = 3, .seconds = 0.25};

Variant run_variant(Bench& bench, const ExactSamples& samples, ColdLayers& cold,
                    const CallOptions& options, const std::string& configuration) {
  Variant variant;
  variant.strategy = to_string(options.strategy);
  variant.configuration = configuration;
  variant.options = options;
  try {
    const Layers layers(bench, cold, options);
    cold.restore();
    int checked = 0;
    variant.refusal = check_layers(bench, samples, cold, layers, checked);
    variant.wrong = !variant.refusal.empty();
    if (variant.wrong) return variant;
    const auto recording = bench.timer.record([&] { layers.apply_all(); });
    variant.time = bench.timer.time(*recording, cold.size(), kEffort);
  } catch (const CommandError& refusal) {
    variant.refusal = refusal.what();
  }
  return variant;
}

}  // namespace

Layers::Layers(Bench& bench, const ColdLayers& layers, const CallOptions& options) : bench_(bench) {
  for (int i = 0; i < layers.size(); ++i) {
    calls_.push_back(layers.call(i));
    options_of(calls_.back()) = options;
  }
  problem_ = problem_of(calls_.front());
  choice_ = must(choose(bench.backend, problem_));
  workspace_ = must(Buffer::create(bench.backend, must(workspace_bytes(bench.backend, problem_))));
}

void Layers::apply(int layer) const {
  must(enqueue(bench_.backend, calls_[static_cast<std::size_t>(layer)], workspace_.workspace(),
               bench_.stream));
}

void Layers::apply_all() const {
  for (int i = 0; i < static_cast<int>(calls_.size()); ++i) apply(i);
}

double Layers::host_seconds() const {
  constexpr int kBatch = 64;  // far from filling the queue of a device
  std::vector<double> seconds;
  const int batch = std::min(kBatch, static_cast<int>(calls_.size()));
  const auto enough = std::chrono::steady_clock::now() + std::chrono::milliseconds(250);
  for (int round = 0; round < 9 && std::chrono::steady_clock::now() < enough; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < batch; ++i) apply(i);
    const auto end = std::chrono::steady_clock::now();
    must(bench_.backend.synchronize(bench_.stream));
    seconds.push_back(std::chrono::duration<double>(end - begin).count());
  }
  return summarize(std::move(seconds), batch).median;
}

std::string configuration_name(const LoraBackend& backend, Op op, const Choice& choice) {
  for (const StrategyInfo& info : list_strategies(backend)) {
    if (info.op != op || info.strategy != choice.strategy) continue;
    const std::vector<std::string> names = split_configurations(info.configurations);
    // Where there is one alone, a backend need not say it.
    const std::size_t number = choice.configuration == 0 && names.size() == 1
                                   ? 1
                                   : static_cast<std::size_t>(choice.configuration);
    return number >= 1 && number <= names.size() ? names[number - 1] : std::string();
  }
  return {};
}

std::string check_layers(Bench& bench, const ExactSamples& samples, const ColdLayers& cold,
                         const Layers& layers, int& checked_rows) {
  for (const int layer : {0, cold.size() - 1}) {
    layers.apply(layer);
    const ExactCheck rows = samples.check(bench.backend, bench.stream, cold, layer);
    checked_rows += rows.num_rows;
    if (!rows.failure.empty()) return "wrong result: " + rows.failure;
  }
  return {};
}

std::vector<Variant> run_variants(Bench& bench, const ExactSamples& samples, ColdLayers& cold,
                                  Op op, double most_seconds) {
  std::vector<Variant> variants;
  for (const StrategyInfo& info : list_strategies(bench.backend)) {
    if (info.op != op) continue;
    std::vector<std::string> configurations = split_configurations(info.configurations);
    const bool single = configurations.empty();  // nothing to choose within the strategy
    if (single) configurations.emplace_back();
    for (std::size_t i = 0; i < configurations.size(); ++i) {
      CallOptions options;
      options.strategy = info.strategy;
      options.configuration = single ? 0 : static_cast<std::int32_t>(i) + 1;
      variants.push_back(run_variant(bench, samples, cold, options, configurations[i]));
      const Variant& done = variants.back();
      const bool slow = most_seconds > 0 && done.time.median > most_seconds;
      if (i == 0 && (slow || !done.refusal.empty())) break;
    }
  }
  return variants;
}

}  // namespace rankfold::tools
