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

/// Runs each of `replays`, each the same `units` units of work, once to warm up and then in turn,
/// so that what disturbs the machine disturbs all of them. One Timing each, in order.
std::vector<Timing> time_in_turn(int units, const std::vector<std::function<void()>>& replays,
                                 const Effort& effort = {});

/// The same for one.
Timing time_replays(int units, const std::function<void()>& replay, const Effort& effort = {});

}  // namespace rankfold::tools
