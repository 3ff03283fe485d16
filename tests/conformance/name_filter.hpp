// Names by a regular expression of the command line.
#pragma once

#include <memory>
#include <string_view>

#include "rankfold/status.hpp"

namespace re2 {
class RE2;
}

namespace rankfold::conformance {

/// A regular expression (RE2 syntax: no references back, no look around) that takes time linear in
/// the name and bounded memory, whatever it is.
class NameFilter {
 public:
  /// Errors: invalid_argument quoting the expression, with what is wrong with it.
  static Result<NameFilter> compile(std::string_view expression);
  NameFilter(NameFilter&&) noexcept;
  NameFilter& operator=(NameFilter&&) noexcept;
  ~NameFilter();
  /// Whether it is found anywhere in the name.
  bool finds(std::string_view name) const;

 private:
  explicit NameFilter(std::unique_ptr<re2::RE2> expression) noexcept;
  std::unique_ptr<re2::RE2> expression_;
};

}  // namespace rankfold::conformance
