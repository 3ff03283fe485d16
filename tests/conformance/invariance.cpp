#include "invariance.hpp"

#include <algorithm>
#include <cstring>
#include <string>

#include "check_call.hpp"

namespace rankfold::conformance {

using testing::HostCall;
using testing::HostTensor;

namespace {

// Empty, or the first defined element of an output that two runs of a call made differently.
std::string compare_runs(const FilledCall& filled, const CallOutcome& first,
                         const CallOutcome& second) {
  const auto one = outputs_of(filled, first), other = outputs_of(filled, second);
  for (std::size_t i = 0; i < one.size(); ++i) {
    for (std::int64_t at = 0; at < one[i].got->count(); ++at) {
      const testing::Region region = one[i].expected->region[static_cast<std::size_t>(at)];
      if (region == testing::Region::unspecified || one[i].got->same_bits(at, *other[i].got)) {
        continue;
      }
      return one[i].name + "[" + std::to_string(at) + "] is " +
             std::to_string(other[i].got->get(at)) + ", in the first run " +
             std::to_string(one[i].got->get(at));
    }
  }
  return {};
}

}  // namespace

Outcome check_determinism(Session& session, const CallSpec& spec, int runs) {
  std::vector<Strategy> strategies = {Strategy::automatic};
  strategies.insert(strategies.end(), forced_strategies().begin(), forced_strategies().end());
  const FilledCall filled = build(spec, session.seed());
  for (const Strategy strategy : strategies) {
    CallOutcome first;
    for (int run = 0; run < runs; ++run) {
      NamedStream& named =
          session.streams()[static_cast<std::size_t>(run) % session.streams().size()];
      HostCall call = filled.call;
      call.options.strategy = strategy;
      CallOutcome outcome = run_call(session.backend(), call, named.stream.get());
      if (outcome.status.code() == StatusCode::unsupported && strategy != Strategy::automatic)
        break;
      if (!outcome.status.ok()) return Outcome::fail(outcome.status.message());
      if (run == 0) {
        first = std::move(outcome);
        continue;
      }
      const std::string difference = compare_runs(filled, first, outcome);
      if (!difference.empty()) {
        return Outcome::fail("run " + std::to_string(run + 1) + " with strategy " +
                             rankfold::to_string(strategy) + ": " + difference);
      }
    }
  }
  return {};
}

namespace {

int count_configurations(const StrategyInfo& info) {
  if (info.configurations == nullptr || info.configurations[0] == '\0') return 0;
  int count = 1;
  for (const char* at = info.configurations; (at = std::strstr(at, "; ")) != nullptr; ++at) ++count;
  return count;
}

}  // namespace

// Every configuration that the backend lists gives the same exact bits.
Outcome check_configurations(Session& session, const CallSpec& base) {
  StrategyInfo infos[256];
  const int count = std::min(256, session.backend().list_strategies(infos, 256));
  int ran = 0;
  for (int i = 0; i < count; ++i) {
    if (infos[i].op != base.op) continue;
    for (int configuration = 1; configuration <= count_configurations(infos[i]); ++configuration) {
      CallSpec spec = base;
      spec.options.strategy = infos[i].strategy;
      spec.options.configuration = configuration;
      const FilledCall filled = build(spec, session.seed());
      const CallOutcome outcome = run_call(session.backend(), filled.call, session.stream());
      if (outcome.status.code() == StatusCode::unsupported) continue;
      const Outcome judged =
          judge_outcome(filled, outcome,
                        std::string("strategy ") + rankfold::to_string(infos[i].strategy) +
                            ", configuration " + std::to_string(configuration) + ", ");
      if (!judged.passed()) return judged;
      ++ran;
    }
  }
  if (ran == 0) return Outcome::skip("the backend lists no configuration of this operation");
  return {};
}

// Sizes grow with every bound.
Outcome check_workspace(Session& session, const CallSpec& base) {
  std::vector<Strategy> strategies = {Strategy::automatic};
  strategies.insert(strategies.end(), forced_strategies().begin(), forced_strategies().end());
  for (const Strategy strategy : strategies) {
    for (const BatchInvariant invariant : {BatchInvariant::off, BatchInvariant::on}) {
      CallSpec spec = base;
      spec.options = {invariant, strategy, YMode::accumulate, 0};
      const Problem problem = DeviceCall(session.backend(), build_skeleton(spec, 1)).problem();
      const auto bytes = [&](std::int64_t rows, std::int64_t segments, std::int64_t active) {
        Problem sized = problem;
        sized.bounds = {rows, rows, std::min(segments, rows), std::min(active, rows)};
        const auto result = workspace_bytes(session.backend(), sized);
        return result.ok() ? static_cast<std::int64_t>(*result) : std::int64_t{-1};
      };
      constexpr std::int64_t kSteps[] = {0, 1, 2, 3, 7, 8, 15, 16, 17, 64, 65, 200, 1000, 4096};
      for (std::size_t i = 0; i + 1 < std::size(kSteps); ++i) {
        const std::int64_t low = kSteps[i], high = kSteps[i + 1];
        for (const auto& [smaller, larger, bound] :
             {std::tuple{bytes(low, low, low), bytes(high, high, high), "every bound"},
              {bytes(low, 4, low), bytes(high, 4, high), "rows"},
              {bytes(4096, low, 4096), bytes(4096, high, 4096), "segments"},
              {bytes(4096, 64, low), bytes(4096, 64, high), "active_rows"}}) {
          if (smaller >= 0 && larger >= 0 && smaller > larger) {
            return Outcome::fail(
                std::string("workspace_bytes falls from ") + std::to_string(smaller) + " to " +
                std::to_string(larger) + " while " + bound + " grows from " + std::to_string(low) +
                " to " + std::to_string(high) + ", strategy " + rankfold::to_string(strategy));
          }
        }
      }
    }
  }
  return {};
}

}  // namespace rankfold::conformance
