// What other systems took at the same points, as bench/peers-h200.json records it.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace rankfold::tools {

struct PeerPoint {
  double floor = 0;  ///< of the peers' machine; seconds, as all here
  double best = 0;
  std::string best_name;
  std::vector<std::pair<std::string, double>> times;  ///< of every system, as the file has them
};

struct Peers {
  std::string path;
  std::string device;
  std::string date;
  double matrix_flops_per_second = 0;
  std::map<std::string, PeerPoint> points;

  /// Null: nothing is known of this point.
  const PeerPoint* find(const std::string& name) const {
    const auto found = points.find(name);
    return found == points.end() ? nullptr : &found->second;
  }
};

/// Throws CommandError: exit 2 when the file cannot be read, 3 when it is malformed.
Peers read_peers(const std::string& path);

}  // namespace rankfold::tools
