#include <doctest/doctest.h>

#include "bench/arithmetic.hpp"
#include "bench/timing.hpp"

using namespace rankfold::tools;
using doctest::Approx;

namespace {

constexpr std::int64_t kMiB = 1 << 20;

// The table of bench/peers-h200.json, against whose floors the interpolation is checked.
FloorTable peers_table() {
  FloorTable table;
  const double us[] = {1.6, 2.04, 2.24, 2.8, 3.87, 5.97, 10.31, 18.28, 33.81};
  std::int64_t bytes = kMiB / 2;
  for (const double time : us) {
    table.entries.push_back({bytes, time * 1e-6});
    bytes *= 2;
  }
  table.copy_bytes_per_second = 4.26e12;
  return table;
}

}  // namespace

TEST_CASE("floor: linear between entries, level before them, at the copy bandwidth past them") {
  const FloorTable table = peers_table();
  CHECK(table.at(1) * 1e6 == Approx(1.6));
  CHECK(table.at(kMiB / 2) * 1e6 == Approx(1.6));
  CHECK(table.at(kMiB) * 1e6 == Approx(2.04));
  CHECK(table.at(3 * kMiB) * 1e6 == Approx(2.52));
  CHECK(table.at(128 * kMiB) * 1e6 == Approx(33.81));
  CHECK(table.at(256 * kMiB) * 1e6 == Approx(33.81 + 128.0 * kMiB / 4.26e6));
}

TEST_CASE("floor and goal: those of recorded points") {
  struct Line {
    std::int64_t bytes;
    double floor;
    double goal;
  };
  // min_bytes of points in bench/workloads.json, floor_us and goal_us of bench/peers-h200.json.
  const Line lines[] = {{286720, 1.60, 4.34},      {622592, 1.68, 4.43},
                        {39845888, 11.80, 16.07},  {104284160, 26.88, 33.41},
                        {201588736, 49.62, 59.56}, {1016070144, 240.82, 279.44}};
  const FloorTable table = peers_table();
  for (const Line& line : lines) {
    CAPTURE(line.bytes);
    const double floor = table.at(line.bytes);
    CHECK(floor * 1e6 == Approx(line.floor).epsilon(0.001));
    CHECK(goal(floor) * 1e6 == Approx(line.goal).epsilon(0.001));
  }
  CHECK(off_grid_limit(10e-6) * 1e6 == Approx(20));
}

TEST_CASE(
    "bound: bytes or multiplications, whichever takes longer; an unknown rate bounds nothing") {
  CHECK(lower_bound(4'000, 1e3, 10, 1e3) == Approx(4));
  CHECK(lower_bound(4, 1e3, 10'000, 1e3) == Approx(10));
  CHECK(lower_bound(4'000, 1e3, 10'000, 0) == Approx(4));
}

TEST_CASE("percentiles: of ranks, not of interpolated values") {
  std::vector<double> sorted;
  for (int i = 0; i < 25; ++i) sorted.push_back(i);
  CHECK(percentile(sorted, 0.5) == 12);
  CHECK(percentile(sorted, 0.1) == 2);
  CHECK(percentile(sorted, 0.9) == 22);
  CHECK(percentile({7.0}, 0.9) == 7);
}

TEST_CASE("timing: sorted, a unit's share") {
  const Timing timing = summarize({30, 10, 20, 50, 40}, 10);
  CHECK(timing.median == Approx(3));
  CHECK(timing.p10 == Approx(1));
  CHECK(timing.p90 == Approx(5));
  CHECK(timing.replays == 5);
}

TEST_CASE("timing: ends after the replays or after the time, never before the least number") {
  int runs = 0;
  CHECK(time_replays(1, [&] { ++runs; }, {.most_replays = 7, .least_replays = 2}).replays == 7);
  CHECK(runs == 8);  // one to warm up
  CHECK(time_replays(1, [] {}, {.most_replays = 9, .least_replays = 3, .seconds = 0}).replays == 3);
}

TEST_CASE("runs of slots are written out in order") {
  CHECK(expand_runs({{2, 5}, {0, 9}, {1, -1}, {3, 0}}) ==
        std::vector<std::int32_t>{5, 5, -1, 0, 0, 0});
  CHECK(expand_runs({}).empty());
}
