// How a point is timed: in turn with its yardstick, so that what slows the machine for a while
// slows both.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "rankfold/dtype.hpp"

namespace rankfold::bench {

double quantile(std::vector<double> values, double q);
inline double median(std::vector<double> values) { return quantile(std::move(values), 0.5); }

/// Medians over rounds. A round is the yardstick, steps for a twentieth of a second, the yardstick
/// again.
struct InTurn {
  double median = 0;     ///< seconds a step
  double best = 0;       ///< seconds of the fastest step of all
  double yardstick = 0;  ///< in units of work per second
  double share = 0;      ///< rate of the steps over the mean of the yardstick before and after
  double share_p10 = 0;
  double share_p90 = 0;
};

/// `step` gets 0, 1, 2, ...: which copy of the data to use. `yardstick` measures once what is
/// reached by other means, in the unit of `work` per second.
InTurn time_in_turn(int rounds, double work, const std::function<double()>& yardstick,
                    const std::function<void(std::int64_t)>& step);

/// Median seconds of a step, over about `seconds`, at least three steps.
double time_alone(double seconds, const std::function<void(std::int64_t)>& step);

/// Random numbers in [-1, 1).
std::vector<BFloat16> numbers(std::int64_t count, std::uint32_t seed);
std::vector<float> numbers_f32(std::int64_t count, std::uint32_t seed);

}  // namespace rankfold::bench
