#include "select_points.hpp"

#include "command.hpp"
#include "name_filter.hpp"

namespace rankfold::tools {

std::vector<Workload> select_points(const Workloads& workloads, const std::string& filter) {
  const auto names = conformance::NameFilter::compile(filter);
  if (!names.ok()) throw CommandError(kExitUsage, "--filter: " + describe(names.status()));
  std::vector<Workload> selected;
  for (const Workload& point : workloads.points) {
    if (names->finds(point.name)) selected.push_back(point);
  }
  if (selected.empty()) {
    throw CommandError(kExitUsage,
                       fmt::format("--filter: \"{}\" is found in none of the {} points of {}",
                                   printable(filter), workloads.points.size(), workloads.path));
  }
  return selected;
}

}  // namespace rankfold::tools
