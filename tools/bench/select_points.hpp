// Which points a command runs.
#pragma once

#include <string>
#include <vector>

#include "workloads.hpp"

namespace rankfold::tools {

/// The points whose name the filter, a regular expression, is found in. Throws CommandError (exit
/// 2) for a malformed filter, or when there is none.
std::vector<Workload> select_points(const Workloads& workloads, const std::string& filter);

}  // namespace rankfold::tools
