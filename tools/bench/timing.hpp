// Medians of repeated runs.
#pragma once

#include <functional>
#include <vector>

namespace rankfold::tools {

/// Seconds of one unit of work.
struct Timing {
  double median = 0;
  double p10 = 0;
  double p90 = 0;
  int replays = 0;
};

/// When a measurement has seen enough: 25 replays, or `seconds` and at least 5.
struct Effort {
  int most_replays = 25;
  int least_replays = 5;
  double seconds = 2.0;
};

/// Seconds of whole replays, each of `units` units of work.
Timing summarize(std::vector<double> seconds, int units);

/// Runs each of `replays` once to warm up and then in turn, so that what disturbs the machine
/// disturbs all of them. Seconds of each run by the host's clock, a list a replay.
std::vector<std::vector<double>> run_in_turn(const std::vector<std::function<void()>>& replays,
                                             const Effort& effort = {});

/// The same for one.
Timing time_replays(int units, const std::function<void()>& replay, const Effort& effort = {});

}  // namespace rankfold::tools
