// The list of what a reader of an adapter's report should know.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "adapter/text.hpp"
#include "rankfold/adapter.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace detail {

class Findings {
 public:
  void note(std::string_view subject, std::string text) {
    add(Finding::Severity::note, StatusCode::ok, subject, std::move(text));
  }
  /// The first refusal becomes status().
  void refuse(StatusCode code, std::string_view subject, std::string text) {
    if (status_.ok()) status_ = Status(code, text);
    add(Finding::Severity::refused, code, subject, std::move(text));
  }
  const std::vector<Finding>& list() const noexcept { return list_; }
  const Status& status() const noexcept { return status_; }

 private:
  void add(Finding::Severity severity, StatusCode code, std::string_view subject,
           std::string text) {
    const char* kept = strings_.add(std::string(subject));
    list_.push_back({severity, code, kept, strings_.add(std::move(text))});
  }

  StringStore strings_;
  std::vector<Finding> list_;
  Status status_;
};

}  // namespace detail
RANKFOLD_NAMESPACE_END
