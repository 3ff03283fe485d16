#include "rounds.hpp"

#include <algorithm>
#include <chrono>

namespace rankfold::bench {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::vector<double> time_steps(double seconds, std::int64_t& number,
                               const std::function<void(std::int64_t)>& step) {
  std::vector<double> samples;
  const auto start = Clock::now();
  while (samples.size() < 3 || seconds_since(start) < seconds) {
    const auto begin = Clock::now();
    step(number++);
    samples.push_back(seconds_since(begin));
  }
  return samples;
}

}  // namespace

double quantile(std::vector<double> values, double q) {
  const auto at = values.begin() +
                  static_cast<std::ptrdiff_t>(q * static_cast<double>(values.size() - 1) + 0.5);
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

InTurn time_in_turn(int rounds, double work, const std::function<double()>& yardstick,
                    const std::function<void(std::int64_t)>& step) {
  constexpr double kSeconds = 0.05;
  std::vector<double> medians, bests, shares;
  std::vector<double> yardsticks = {yardstick()};
  std::int64_t number = 0;
  for (int i = 0; i < rounds; ++i) {
    const auto samples = time_steps(kSeconds, number, step);
    medians.push_back(median(samples));
    bests.push_back(*std::min_element(samples.begin(), samples.end()));
    const double before = yardsticks.back();
    yardsticks.push_back(yardstick());
    shares.push_back(work / medians.back() / (0.5 * (before + yardsticks.back())));
  }
  InTurn result;
  result.median = median(medians);
  result.best = *std::min_element(bests.begin(), bests.end());
  result.yardstick = median(yardsticks);
  result.share = median(shares);
  result.share_p10 = quantile(shares, 0.1);
  result.share_p90 = quantile(shares, 0.9);
  return result;
}

double time_alone(double seconds, const std::function<void(std::int64_t)>& step) {
  std::int64_t number = 0;
  return median(time_steps(seconds, number, step));
}

std::vector<float> numbers_f32(std::int64_t count, std::uint32_t seed) {
  std::vector<float> values;
  values.reserve(static_cast<std::size_t>(count));
  std::uint32_t state = seed;
  for (std::int64_t i = 0; i < count; ++i) {
    state = state * 1664525u + 1013904223u;
    values.push_back(static_cast<float>(state >> 8) * 0x1p-23f - 1.0f);
  }
  return values;
}

std::vector<BFloat16> numbers(std::int64_t count, std::uint32_t seed) {
  std::vector<BFloat16> values;
  values.reserve(static_cast<std::size_t>(count));
  for (const float value : numbers_f32(count, seed)) values.push_back(to_bfloat16(value));
  return values;
}

}  // namespace rankfold::bench
