// What a report computes from times and counts: no device, no clock.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace rankfold::tools {

/// The value below which `part` (0 to 1) of the samples lie: the sample of rank
/// round(part * (count - 1)). `sorted` is ascending and not empty.
double percentile(const std::vector<double>& sorted, double part);

/// Seconds that a plain elementwise kernel takes on cold memory, by how much it moves.
struct FloorTable {
  struct Entry {
    std::int64_t bytes = 0;  ///< read and written together
    double seconds = 0;
  };
  std::vector<Entry> entries;  ///< by ascending bytes; not empty
  double copy_bytes_per_second = 0;

  /// Linear between entries; before the first its value; past the last its value and the rest of
  /// the bytes at the copy bandwidth.
  double at(std::int64_t bytes) const;
};

/// What a point of the grid should take at most: 1.15 floor + 2.5 us. Seconds.
double goal(double floor);
/// What a point off the grid may take at most: 1.6 floor + 4 us. Seconds.
double off_grid_limit(double floor);

/// Seconds that moving the bytes or multiplying takes at least; a rate of 0 is not known.
double lower_bound(std::int64_t bytes, double bytes_per_second, std::int64_t flops,
                   double flops_per_second);

/// [count, value] runs written out.
std::vector<std::int32_t> expand_runs(
    const std::vector<std::pair<std::int64_t, std::int32_t>>& runs);

}  // namespace rankfold::tools
