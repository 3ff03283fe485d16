// Medians of repeated runs.
#pragma once

#include <algorithm>
#include <chrono>
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

inline constexpr int kReplays = 25;
inline constexpr int kLeastReplays = 5;
inline constexpr double kMostSeconds = 3.0;

/// Runs `replay` once to warm up and then 25 times (at least 5 when that takes long), each the same
/// `units` units of work.
inline Timing time_replays(int units, const std::function<void()>& replay) {
  using Clock = std::chrono::steady_clock;
  replay();
  std::vector<double> seconds;
  double total = 0;
  while (static_cast<int>(seconds.size()) < kReplays &&
         (static_cast<int>(seconds.size()) < kLeastReplays || total < kMostSeconds)) {
    const Clock::time_point begin = Clock::now();
    replay();
    seconds.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
    total += seconds.back();
  }
  std::sort(seconds.begin(), seconds.end());
  const auto at = [&](double part) {
    const double index = part * static_cast<double>(seconds.size() - 1);
    return seconds[static_cast<std::size_t>(index + 0.5)] / units;
  };
  return {at(0.5), at(0.1), at(0.9), static_cast<int>(seconds.size())};
}

}  // namespace rankfold::tools
