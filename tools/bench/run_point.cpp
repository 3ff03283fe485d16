#include "run_point.hpp"

#include "command.hpp"
#include "must.hpp"

namespace rankfold::tools {
namespace {

// A whole grid should take minutes, so slow points are replayed less often.
constexpr Effort kEffort{.least_replays = 3, .seconds = 1.0};
constexpr Effort kGroupingEffort{.least_replays = 3, .seconds = 0.25};
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

Timing time_grouping(Bench& bench, Step& step) {
  const auto recording = bench.timer.record([&] {
    for (int i = 0; i < kGroupings; ++i) step.group();
  });
  return bench.timer.time(*recording, kGroupings, kGroupingEffort);
}

// The operation, and in turn with it the floor where that is measured for each point.
void time_layers(Bench& bench, const ColdLayers& cold, const Layers& layers, PointResult& result) {
  const auto recording = bench.timer.record([&] { layers.apply_all(); });
  if (recording->num_nodes() >= 0) {
    result.nodes_per_layer = static_cast<double>(recording->num_nodes()) / cold.size();
  }
  if (bench.yardsticks.floors.has_value()) {
    CallOptions options;
    options.overlap = Overlap::off;
    const Layers apart(bench, cold, options);
    const auto in_order = bench.timer.record([&] { apart.apply_all(); });
    std::vector<std::vector<double>> seconds =
        bench.timer.replay({recording.get(), in_order.get()}, kEffort);
    result.time = summarize(std::move(seconds[0]), cold.size());
    result.in_order = summarize(std::move(seconds[1]), cold.size());
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
  result.strategy = to_string(layers.choice().strategy);
  result.configuration = configuration_name(bench.backend, layers.problem().op, layers.choice());
  result.from_tuning = layers.choice().from_tuning != 0;
  result.num_layers = cold.size();
  result.touched_bytes = point.min_bytes * cold.size();
  result.cold = result.touched_bytes > bench.limits.cache_bytes;
  if (point.kind == Workload::Kind::moe) {
    result.addressing = point.sorted_by_expert() ? "grouped" : "gather";
  } else {
    result.addressing = step.groups() ? "grouped" : "uniform";
  }
  const ExactSamples samples(bench.patterns, point, cold.layout());
  result.reason = check_layers(bench, samples, cold, layers, result.checked_rows);
  if (!result.reason.empty()) {
    result.outcome = PointResult::Outcome::failed;
    return;
  }
  time_layers(bench, cold, layers, result);
  result.host_seconds = layers.host_seconds();
  if (step.groups()) result.group_tokens = time_grouping(bench, step);
  result.bound = bench.yardsticks.bound(point.min_bytes, point.flops);
  if (sweep) result.variants = run_variants(bench, samples, cold, layers.problem().op);
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
