// One serve point: set up, checked, timed.
#pragma once

#include <string>
#include <vector>

#include "machine.hpp"
#include "timing.hpp"
#include "workloads.hpp"
#include "yardsticks.hpp"

namespace rankfold::tools {

struct PointResult {
  enum class Outcome { timed, skipped, failed };
  struct Variant {  ///< --sweep: one configuration of one strategy
    std::string strategy;
    std::string configuration;
    Timing time;
    std::string refusal;  ///< not empty: not timed
  };
  std::string name;
  std::string kind;
  Outcome outcome = Outcome::skipped;
  std::string reason;  ///< why skipped or failed
  std::int64_t min_bytes = 0;
  std::int64_t flops = 0;
  std::string strategy;  ///< that the backend chose
  Timing time;
  Timing floor;
  Timing group;  ///< group_tokens, once a step
  double bound = 0;
  int num_layers = 0;
  std::int64_t touched_bytes = 0;  ///< by all layers together
  bool cold = false;               ///< touched_bytes is past the last-level cache
  int checked_rows = 0;
  std::vector<Variant> variants;
};

/// Never throws for what is wrong with the point: that is the result's outcome.
PointResult run_serve_point(LoraBackend& backend, const Workloads& workloads, const Workload& point,
                            const MachineLimits& limits, const Yardsticks& yardsticks, bool sweep);

}  // namespace rankfold::tools
