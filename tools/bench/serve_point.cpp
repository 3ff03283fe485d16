#include "serve_point.hpp"

#include <algorithm>

#include "cold_layers.hpp"
#include "command.hpp"
#include "row_check.hpp"

namespace rankfold::tools {
namespace {

void must(const Status& status) {
  if (!status.ok()) throw CommandError(kExitFailure, describe(status));
}

template <class T>
T must(Result<T> result) {
  must(result.status());
  return std::move(*result);
}

// The rows' slots on the device, and their grouped form.
class Step {
 public:
  Step(LoraBackend& backend, Stream stream, const Workload& point)
      : backend_(backend), stream_(stream) {
    const std::size_t bytes = point.token_slots.size() * sizeof(std::int32_t);
    slots_ = must(Buffer::create(backend, bytes));
    memory_ = must(Buffer::create(backend, grouping_bytes(point.tokens, point.adapters)));
    must(backend.copy(slots_.data(), point.token_slots.data(), bytes, CopyKind::host_to_device,
                      stream));
    must(backend.synchronize(stream));
    args_.num_tokens = point.tokens;
    args_.num_slots = point.adapters;
    args_.token_slots = slots_.as<std::int32_t>();
    args_.memory = memory_.data();
    args_.memory_bytes = memory_.bytes();
    args_.device = backend.device();
  }

  LoraAddressing group() {
    LoraAddressing addressing;
    must(group_tokens(backend_, args_, stream_, &addressing));
    return addressing;
  }

  Timing time() {
    return time_replays(1, [&] {
      (void)group();
      must(backend_.synchronize(stream_));
    });
  }

 private:
  LoraBackend& backend_;
  Stream stream_;
  Buffer slots_;
  Buffer memory_;
  GroupTokensArgs args_;
};

// All layers in turn, as a model runs them.
class Replay {
 public:
  Replay(LoraBackend& backend, Stream stream, const ColdLayers& layers,
         const LoraAddressing& addressing, const CallOptions& options)
      : backend_(backend), stream_(stream) {
    for (int i = 0; i < layers.size(); ++i) {
      calls_.push_back(layers.args(i, addressing));
      calls_.back().options = options;
    }
    const Problem problem = make_problem(calls_.front());
    strategy_ = must(supports(backend, problem));
    workspace_ = must(Buffer::create(backend, must(workspace_bytes(backend, problem))));
  }

  Strategy strategy() const { return strategy_; }

  void apply(int layer) {
    must(apply_linear(backend_, calls_[static_cast<std::size_t>(layer)], workspace_.workspace(),
                      stream_));
  }

  void run() {
    for (int i = 0; i < static_cast<int>(calls_.size()); ++i) apply(i);
    must(backend_.synchronize(stream_));
  }

 private:
  LoraBackend& backend_;
  Stream stream_;
  std::vector<ApplyLinearArgs> calls_;
  Strategy strategy_ = Strategy::automatic;
  Buffer workspace_;
};

std::vector<PointResult::Variant> time_variants(LoraBackend& backend, Stream stream,
                                                const ColdLayers& layers,
                                                const LoraAddressing& addressing) {
  std::vector<PointResult::Variant> variants;
  for (const StrategyInfo& info : list_strategies(backend)) {
    if (info.op != Op::apply_linear) continue;
    const std::vector<std::string> configurations = split_configurations(info.configurations);
    const bool single = configurations.empty();  // nothing to choose within the strategy
    for (std::size_t i = 0; i < std::max<std::size_t>(configurations.size(), 1); ++i) {
      PointResult::Variant variant{
          to_string(info.strategy), single ? std::string() : configurations[i], {}, {}};
      CallOptions options;
      options.strategy = info.strategy;
      options.configuration = single ? 0 : static_cast<std::int32_t>(i) + 1;
      try {
        Replay replay(backend, stream, layers, addressing, options);
        variant.time = time_replays(layers.size(), [&] { replay.run(); });
      } catch (const CommandError& refusal) {
        variant.refusal = refusal.what();
      }
      variants.push_back(std::move(variant));
    }
  }
  return variants;
}

// False: the result says why not.
bool check(LoraBackend& backend, Stream stream, const Workloads& workloads, const Workload& point,
           const ColdLayers& layers, Replay& replay, PointResult& result) {
  for (const int layer : {0, layers.size() - 1}) {
    replay.apply(layer);
    const RowCheck rows =
        check_rows(backend, stream, point, workloads.dtype, workloads.scale, layers, layer);
    result.checked_rows += rows.num_rows;
    if (rows.failure.empty()) continue;
    result.outcome = PointResult::Outcome::failed;
    result.reason = "wrong result: " + rows.failure;
    return false;
  }
  return true;
}

}  // namespace

PointResult run_serve_point(LoraBackend& backend, const Workloads& workloads, const Workload& point,
                            const MachineLimits& limits, const Yardsticks& yardsticks, bool sweep) {
  PointResult result;
  result.name = point.name;
  result.kind = "serve";
  result.min_bytes = point.min_bytes;
  result.flops = point.flops;
  const int num_layers = num_cold_layers(point, limits);
  if (num_layers == 0) {
    result.reason = point.min_bytes == 0
                        ? std::string("no row has an adapter")
                        : fmt::format(
                              "two layers and their initial state take more than {}, half "
                              "of the memory that is free",
                              human_bytes(static_cast<std::uint64_t>(limits.memory_bytes)));
    return result;
  }
  try {
    OwnedStream stream = must(OwnedStream::create(backend));
    Step step(backend, stream, point);
    const ColdLayers layers(backend, stream, point, workloads.dtype, workloads.scale, num_layers);
    const LoraAddressing addressing = step.group();
    Replay replay(backend, stream, layers, addressing, {});
    result.strategy = to_string(replay.strategy());
    result.num_layers = layers.size();
    result.touched_bytes = layers.layout().bytes * layers.size();
    result.cold = result.touched_bytes > limits.cache_bytes;
    if (!check(backend, stream, workloads, point, layers, replay, result)) return result;
    std::vector<LayerRanges> ranges;
    ranges.reserve(static_cast<std::size_t>(layers.size()));
    for (int i = 0; i < layers.size(); ++i) ranges.push_back(layers.ranges(i));
    FloorPass floor(backend, stream, ranges);
    const std::vector<Timing> timings =
        time_in_turn(layers.size(), {[&] { replay.run(); }, [&] { floor.run(); }});
    result.time = timings[0];
    result.floor = timings[1];
    result.group = step.time();
    result.bound = yardsticks.bound(point.min_bytes, point.flops);
    if (sweep) result.variants = time_variants(backend, stream, layers, addressing);
    result.outcome = PointResult::Outcome::timed;
  } catch (const CommandError& error) {
    result.outcome = PointResult::Outcome::failed;
    result.reason = error.what();
  }
  return result;
}

}  // namespace rankfold::tools
