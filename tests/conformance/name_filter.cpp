#include "name_filter.hpp"

#include <re2/re2.h>

#include <string>

namespace rankfold::conformance {

namespace {
constexpr std::size_t kMaxExpression = 4096;
constexpr std::size_t kShown = 120;
}  // namespace

NameFilter::NameFilter(std::unique_ptr<re2::RE2> expression) noexcept
    : expression_(std::move(expression)) {}
NameFilter::NameFilter(NameFilter&&) noexcept = default;
NameFilter& NameFilter::operator=(NameFilter&&) noexcept = default;
NameFilter::~NameFilter() = default;

Result<NameFilter> NameFilter::compile(std::string_view expression) {
  const std::string shown =
      std::string(expression.substr(0, kShown)) + (expression.size() > kShown ? "..." : "");
  const auto refuse = [&](const std::string& why) {
    return Status(StatusCode::invalid_argument,
                  "filter is \"" + shown + "\"; it should be a regular expression: " + why);
  };
  if (expression.size() > kMaxExpression) {
    return refuse("it has " + std::to_string(expression.size()) + " bytes, the most is " +
                  std::to_string(kMaxExpression));
  }
  auto compiled = std::make_unique<re2::RE2>(re2::StringPiece(expression.data(), expression.size()),
                                             re2::RE2::Quiet);
  if (!compiled->ok()) return refuse(compiled->error().substr(0, kShown));
  return NameFilter(std::move(compiled));
}

bool NameFilter::finds(std::string_view name) const {
  return re2::RE2::PartialMatch(re2::StringPiece(name.data(), name.size()), *expression_);
}

}  // namespace rankfold::conformance
