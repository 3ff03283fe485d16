#include "timing.hpp"

#include <algorithm>
#include <chrono>

#include "arithmetic.hpp"

namespace rankfold::tools {
namespace {

double seconds_of(const std::function<void()>& work) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin = Clock::now();
  work();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

}  // namespace

Timing summarize(std::vector<double> seconds, int units) {
  std::sort(seconds.begin(), seconds.end());
  const auto at = [&](double part) { return percentile(seconds, part) / units; };
  return {at(0.5), at(0.1), at(0.9), static_cast<int>(seconds.size())};
}

std::vector<std::vector<double>> run_in_turn(const std::vector<std::function<void()>>& replays,
                                             const Effort& effort) {
  for (const auto& replay : replays) replay();
  std::vector<std::vector<double>> seconds(replays.size());
  double total = 0;
  for (int done = 0; done < effort.most_replays; ++done) {
    if (done >= effort.least_replays &&
        total >= effort.seconds * static_cast<double>(replays.size())) {
      break;
    }
    for (std::size_t i = 0; i < replays.size(); ++i) {
      seconds[i].push_back(seconds_of(replays[i]));
      total += seconds[i].back();
    }
  }
  return seconds;
}

Timing time_replays(int units, const std::function<void()>& replay, const Effort& effort) {
  return summarize(run_in_turn({replay}, effort).front(), units);
}

}  // namespace rankfold::tools
