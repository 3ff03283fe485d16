#include "arithmetic.hpp"

#include <algorithm>
#include <cmath>

namespace rankfold::tools {

double percentile(const std::vector<double>& sorted, double part) {
  const double index = part * static_cast<double>(sorted.size() - 1);
  return sorted[static_cast<std::size_t>(std::lround(index))];
}

double FloorTable::at(std::int64_t bytes) const {
  if (bytes <= entries.front().bytes) return entries.front().seconds;
  if (bytes >= entries.back().bytes) {
    return entries.back().seconds +
           static_cast<double>(bytes - entries.back().bytes) / copy_bytes_per_second;
  }
  const auto upper =
      std::find_if(entries.begin(), entries.end(), [&](const Entry& e) { return e.bytes > bytes; });
  const auto lower = upper - 1;
  const double part =
      static_cast<double>(bytes - lower->bytes) / static_cast<double>(upper->bytes - lower->bytes);
  return lower->seconds + part * (upper->seconds - lower->seconds);
}

double goal(double floor) { return 1.15 * floor + 2.5e-6; }

double off_grid_limit(double floor) { return 1.6 * floor + 4e-6; }

double lower_bound(std::int64_t bytes, double bytes_per_second, std::int64_t flops,
                   double flops_per_second) {
  double seconds = 0;
  if (bytes_per_second > 0) seconds = static_cast<double>(bytes) / bytes_per_second;
  if (flops_per_second > 0) {
    seconds = std::max(seconds, static_cast<double>(flops) / flops_per_second);
  }
  return seconds;
}

std::vector<std::int32_t> expand_runs(
    const std::vector<std::pair<std::int64_t, std::int32_t>>& runs) {
  std::vector<std::int32_t> values;
  for (const auto& [count, value] : runs) {
    values.insert(values.end(), static_cast<std::size_t>(count), value);
  }
  return values;
}

}  // namespace rankfold::tools
