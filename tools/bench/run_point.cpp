#include "run_point.hpp"

#include <algorithm>
#include <chrono>

#include "cold_layers.hpp"
#include "exact_check.hpp"
#include "must.hpp"

namespace rankfold::tools {
namespace {

// A whole grid should take minutes, so slow points are replayed less often.
constexpr Effort kEffort{.least_replays = 3, .seconds = 1.0};
constexpr Effort kSweepEffort{.least_replays = 3, .seconds = 0.25};
constexpr int kGroupings = 16;  // in one recording

const char* kind_name(Workload::Kind kind) {
  switch (kind) {
    case Workload::Kind::moe:
      return "moe";
    case Workload::Kind::train:
      return "train";
    case Workload::Kind::serve:
      break;
  }
  return "serve";
}

// All layers in turn, as a model runs them.
class Layers {
 public:
  Layers(Bench& bench, const ColdLayers& layers, const CallOptions& options) : bench_(bench) {
    for (int i = 0; i < layers.size(); ++i) {
      calls_.push_back(layers.call(i));
      options_of(calls_.back()) = options;
    }
    const Problem problem = problem_of(calls_.front());
    op_ = problem.op;
    strategy_ = must(supports(bench.backend, problem));
    workspace_ = must(Buffer::create(bench.backend, must(workspace_bytes(bench.backend, problem))));
  }

  Op op() const { return op_; }
  Strategy strategy() const { return strategy_; }

  void apply(int layer) const {
    must(enqueue(bench_.backend, calls_[static_cast<std::size_t>(layer)], workspace_.workspace(),
                 bench_.stream));
  }
  void apply_all() const {
    for (int i = 0; i < static_cast<int>(calls_.size()); ++i) apply(i);
  }

  /// Median seconds that the caller spends in a call, the device left to itself.
  double host_seconds() const {
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

 private:
  Bench& bench_;
  std::vector<Call> calls_;
  Op op_ = Op::apply_linear;
  Strategy strategy_ = Strategy::automatic;
  Buffer workspace_;
};

// Empty: right.
std::string check(Bench& bench, const ExactSamples& samples, const ColdLayers& cold,
                  const Layers& layers, int& checked_rows) {
  for (const int layer : {0, cold.size() - 1}) {
    layers.apply(layer);
    const ExactCheck rows = samples.check(bench.backend, bench.stream, cold, layer);
    checked_rows += rows.num_rows;
    if (!rows.failure.empty()) return "wrong result: " + rows.failure;
  }
  return {};
}

PointResult::Variant run_variant(Bench& bench, const ExactSamples& samples, ColdLayers& cold,
                                 const CallOptions& options, const std::string& configuration) {
  PointResult::Variant variant{to_string(options.strategy), configuration, {}, -1, {}};
  try {
    const Layers layers(bench, cold, options);
    cold.restore();
    int checked = 0;
    variant.refusal = check(bench, samples, cold, layers, checked);
    if (!variant.refusal.empty()) return variant;
    const auto recording = bench.timer.record([&] { layers.apply_all(); });
    variant.time = bench.timer.time(*recording, cold.size(), kSweepEffort);
    variant.num_nodes = recording->num_nodes();
  } catch (const CommandError& refusal) {
    variant.refusal = refusal.what();
  }
  return variant;
}

std::vector<PointResult::Variant> run_variants(Bench& bench, const ExactSamples& samples,
                                               ColdLayers& cold, Op op) {
  std::vector<PointResult::Variant> variants;
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
    }
  }
  return variants;
}

Timing time_grouping(Bench& bench, Step& step) {
  const auto recording = bench.timer.record([&] {
    for (int i = 0; i < kGroupings; ++i) step.group();
  });
  return bench.timer.time(*recording, kGroupings, kSweepEffort);
}

// The operation, and in turn with it the floor where that is measured for each point.
void time_layers(Bench& bench, const ColdLayers& cold, const Layers& layers, PointResult& result) {
  const auto recording = bench.timer.record([&] { layers.apply_all(); });
  if (recording->num_nodes() >= 0) {
    result.nodes_per_layer = static_cast<double>(recording->num_nodes()) / cold.size();
  }
  if (bench.yardsticks.floors.has_value()) {
    result.time = bench.timer.time(*recording, cold.size(), kEffort);
    const double floor = bench.yardsticks.floors->at(result.min_bytes);
    result.floor = {floor, floor, floor, 0};
    return;
  }
  std::vector<LayerRanges> ranges;
  ranges.reserve(static_cast<std::size_t>(cold.size()));
  for (int i = 0; i < cold.size(); ++i) ranges.push_back(cold.ranges(i));
  FloorPass floor(bench.backend, bench.stream, ranges);
  const auto floor_recording = bench.timer.record([&] { floor.run(); });
  std::vector<std::vector<double>> seconds =
      bench.timer.replay({recording.get(), floor_recording.get()}, kEffort);
  result.time = summarize(std::move(seconds[0]), cold.size());
  result.floor = summarize(std::move(seconds[1]), cold.size());
}

void measure(Bench& bench, const Workload& point, bool sweep, int num_layers, PointResult& result) {
  Step step(bench.backend, bench.stream, point);
  ColdLayers cold(bench.backend, bench.stream, bench.patterns, point, step, num_layers);
  const Layers layers(bench, cold, {});
  result.strategy = to_string(layers.strategy());
  result.num_layers = cold.size();
  result.touched_bytes = point.min_bytes * cold.size();
  result.cold = result.touched_bytes > bench.limits.cache_bytes;
  if (point.kind == Workload::Kind::moe) {
    result.addressing = point.sorted_by_expert() ? "grouped" : "gather";
  } else {
    result.addressing = step.groups() ? "grouped" : "uniform";
  }
  const ExactSamples samples(bench.patterns, point, cold.layout());
  result.reason = check(bench, samples, cold, layers, result.checked_rows);
  if (!result.reason.empty()) {
    result.outcome = PointResult::Outcome::failed;
    return;
  }
  time_layers(bench, cold, layers, result);
  result.host_seconds = layers.host_seconds();
  if (step.groups()) result.group_tokens = time_grouping(bench, step);
  result.bound = bench.yardsticks.bound(point.min_bytes, point.flops);
  if (sweep) result.variants = run_variants(bench, samples, cold, layers.op());
  result.outcome = PointResult::Outcome::timed;
}

}  // namespace

PointResult run_point(Bench& bench, const Workload& point, bool sweep) {
  PointResult result;
  result.name = point.name;
  result.group = point.group;
  result.kind = kind_name(point.kind);
  result.min_bytes = point.min_bytes;
  result.flops = point.flops;
  const int num_layers = num_cold_layers(point, bench.limits);
  if (num_layers == 0) {
    result.reason =
        point.min_bytes == 0
            ? std::string("no row has an adapter")
            : fmt::format("two layers take more than {}, half of the memory that is free",
                          human_bytes(static_cast<std::uint64_t>(bench.limits.memory_bytes)));
    return result;
  }
  try {
    measure(bench, point, sweep, num_layers, result);
  } catch (const CommandError& error) {
    result.outcome = PointResult::Outcome::failed;
    result.reason = error.what();
  }
  return result;
}

}  // namespace rankfold::tools
