// Cases by a regular expression.
#include "conformance.hpp"
#include "name_filter.hpp"

namespace rankfold::conformance {

Result<std::vector<CaseInfo>> select_cases(std::string_view filter) {
  if (filter.empty()) return list_cases();
  const auto expression = NameFilter::compile(filter);
  if (!expression.ok()) return expression.status();
  std::vector<CaseInfo> selected;
  for (const CaseInfo& info : list_cases()) {
    if (expression->finds(info.name)) selected.push_back(info);
  }
  return selected;
}

}  // namespace rankfold::conformance
