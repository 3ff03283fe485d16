#include "peers.hpp"

#include "command.hpp"
#include "workloads.hpp"

namespace rankfold::tools {
namespace {

constexpr double kMicro = 1e-6;

PeerPoint read_point(const Json& object) {
  PeerPoint point;
  point.floor = object.at("floor_us").get<double>() * kMicro;
  point.best = object.at("best_us").get<double>() * kMicro;
  double least = 0;
  for (const auto& [name, time] : object.at("peers_us").items()) {
    if (!time.is_number()) continue;  // a system that does not have the operation
    const double seconds = time.get<double>() * kMicro;
    point.times.emplace_back(name, seconds);
    if (least != 0 && seconds >= least) continue;
    least = seconds;
    point.best_name = name;
  }
  return point;
}

}  // namespace

Peers read_peers(const std::string& path) {
  Peers peers;
  peers.path = path;
  try {
    const Json document = Json::parse(read_text(path, "the peers file"));
    peers.device = document.at("gpu").get<std::string>();
    peers.date = document.at("date").get<std::string>();
    peers.matrix_flops_per_second = document.at("bf16_TFLOPs").get<double>() * 1e12;
    for (const auto& [name, point] : document.at("workloads").items()) {
      peers.points[name] = read_point(point);
    }
  } catch (const Json::exception& error) {
    throw CommandError(kExitRefused, fmt::format("{}: no peers file: {}", path, error.what()));
  }
  return peers;
}

}  // namespace rankfold::tools
