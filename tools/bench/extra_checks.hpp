// What the grid does not show: grouping many rows, a table far wider than its adapters, a batch
// without any.
#pragma once

#include <string>
#include <vector>

#include "run_point.hpp"

namespace rankfold::tools {

struct ExtraCheck {
  std::string name;
  std::string what;  ///< what is measured and what it should be at most
  double value = 0;  ///< microseconds, a ratio or a count, as `what` says
  double limit = 0;
  std::string failure;  ///< not empty: nothing was measured, or the result was wrong
  bool met() const { return failure.empty() && value <= limit; }
};

/// For a device with graphs; elsewhere empty.
std::vector<ExtraCheck> run_extra_checks(Bench& bench);

}  // namespace rankfold::tools
