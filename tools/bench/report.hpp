// The bench's results as lines of a table and as one JSON document.
#pragma once

#include "output.hpp"
#include "peers.hpp"
#include "run_point.hpp"

namespace rankfold::tools {

/// What a whole run was: what the head of every report says.
struct RunInfo {
  std::string workloads;  ///< path, or what made the points
  const Peers* peers = nullptr;
  bool off_grid = false;  ///< limits instead of goals
  std::vector<std::pair<std::string, std::string>> versions;
  std::string tuning;  ///< what RANKFOLD_TUNING means here; empty: not set
};

/// How a time stands beside its floor, its goal and the best peer. Seconds and ratios; 0: not
/// known.
struct Standing {
  double goal = 0;  ///< or limit
  bool met = false;
  double ratio = 0;  ///< time / floor
  double peer = 0;
  double peer_ratio = 0;  ///< the peer's time over the floor of the peer's machine
  std::string peer_name;
  bool ahead = false;  ///< less time and a lower ratio than the peer
};
Standing standing(const PointResult& point, const RunInfo& info, bool has_goal);

/// "2026-11-30T12:00:00Z".
std::string utc_now();

/// Machine, yardsticks and the head of the table.
void print_head(const Bench& bench, const RunInfo& info, Output& out);
void print_point(const PointResult& point, const Bench& bench, const RunInfo& info, Output& out);
/// How many met their goals, and the ten that are furthest from it.
void print_summary(const std::vector<PointResult>& points, const Bench& bench, const RunInfo& info,
                   Output& out);

Json bench_json(const Bench& bench, const RunInfo& info, const std::vector<PointResult>& points);

}  // namespace rankfold::tools
