// Names as StrategyInfo::configurations has them: "one; two; three".
#pragma once

#include <string>
#include <vector>

namespace rankfold::cuda_test {

inline std::vector<std::string> split_names(const char* names) {
  std::vector<std::string> parts;
  for (std::string rest = names;;) {
    const std::size_t end = rest.find("; ");
    parts.push_back(rest.substr(0, end));
    if (end == std::string::npos) return parts;
    rest.erase(0, end + 2);
  }
}

}  // namespace rankfold::cuda_test
