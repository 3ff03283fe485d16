// One point: set up, checked, timed.
#pragma once

#include <string>
#include <vector>

#include "variants.hpp"
#include "workloads.hpp"

namespace rankfold::tools {

struct PointResult {
  enum class Outcome { timed, skipped, failed };
  std::string name;
  std::string group;
  std::string kind;
  Outcome outcome = Outcome::skipped;
  std::string reason;  ///< why skipped or failed
  std::int64_t min_bytes = 0;
  std::int64_t flops = 0;
  std::string strategy;       ///< that the backend chose
  std::string configuration;  ///< of it
  bool from_tuning = false;   ///< the file that RANKFOLD_TUNING names decided it
  std::string addressing;
  Timing time;
  Timing in_order;          ///< with Overlap::off; no replays: the backend has no difference
  Timing floor;             ///< interpolated where the device has a table of floors
  Timing group_tokens;      ///< once a step; no replays: the point needs none
  double host_seconds = 0;  ///< of the caller, a call outside any graph
  double bound = 0;
  int num_layers = 0;
  double nodes_per_layer = -1;     ///< launches, copies and fills; -1: not known
  std::int64_t touched_bytes = 0;  ///< by all layers together
  bool cold = false;               ///< touched_bytes is past the last-level cache
  int checked_rows = 0;
  std::vector<Variant> variants;  ///< --sweep
};

/// Never throws for what is wrong with the point: that is the result's outcome.
PointResult run_point(Bench& bench, const Workload& point, bool sweep);

}  // namespace rankfold::tools
