// Cases by a regular expression.
#include <regex>

#include "conformance.hpp"

namespace rankfold::conformance {

Result<std::vector<CaseInfo>> select_cases(std::string_view filter) {
  if (filter.empty()) return list_cases();
  std::regex expression;
  try {
    expression = std::regex(filter.begin(), filter.end());
  } catch (const std::regex_error& error) {
    return Status::format(StatusCode::invalid_argument,
                          "filter is \"%.*s\"; it should be an ECMAScript regular expression: %s",
                          static_cast<int>(filter.size()), filter.data(), error.what());
  }
  std::vector<CaseInfo> selected;
  for (const CaseInfo& info : list_cases()) {
    if (std::regex_search(info.name, expression)) selected.push_back(info);
  }
  return selected;
}

}  // namespace rankfold::conformance
