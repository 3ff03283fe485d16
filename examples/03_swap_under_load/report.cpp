#include "report.hpp"

#include <algorithm>
#include <cstdio>
#include <utility>

namespace swap_under_load {
namespace {

// The smallest value that at least this share of the values does not exceed.
float percentile(std::vector<float>& values, int percent) {
  if (values.empty()) return 0;
  const std::size_t rank = (values.size() * static_cast<std::size_t>(percent) + 99) / 100;
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(std::max<std::size_t>(rank, 1) - 1);
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

}  // namespace

void Part::add(const Part& other) {
  steps += other.steps;
  rows += other.rows;
  wrong_rows += other.wrong_rows;
  loads.loads += other.loads.loads;
  loads.evictions += other.loads.evictions;
  loads.unloads += other.loads.unloads;
  loads.cancelled += other.loads.cancelled;
  loads.no_room += other.loads.no_room;
  milliseconds.insert(milliseconds.end(), other.milliseconds.begin(), other.milliseconds.end());
}

Part make_part(StepCounts steps, const LoadCounts& before, const LoadCounts& now) {
  Part part;
  part.steps = static_cast<std::int64_t>(steps.milliseconds.size());
  part.rows = steps.rows;
  part.wrong_rows = steps.wrong_rows;
  part.loads = {.loads = now.loads - before.loads,
                .evictions = now.evictions - before.evictions,
                .unloads = now.unloads - before.unloads,
                .cancelled = now.cancelled - before.cancelled,
                .no_room = now.no_room - before.no_room};
  part.milliseconds = std::move(steps.milliseconds);
  return part;
}

void print_heading() {
  std::printf(
      "            steps      rows   loads evicted unload cancel no room  p50 ms  p99 ms  wrong\n");
}

void print_line(const char* name, Part part) {
  const auto number = [](std::int64_t value) { return static_cast<long long>(value); };
  std::printf("%-9s %7lld %9lld %7lld %7lld %6lld %6lld %7lld %7.3f %7.3f %6lld\n", name,
              number(part.steps), number(part.rows), number(part.loads.loads),
              number(part.loads.evictions), number(part.loads.unloads),
              number(part.loads.cancelled), number(part.loads.no_room),
              percentile(part.milliseconds, 50), percentile(part.milliseconds, 99),
              number(part.wrong_rows));
  std::fflush(stdout);
}

}  // namespace swap_under_load
