// rank_pattern and alpha_pattern: values for modules by regular expression.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rankfold/status.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace detail {

/// Longest module path and longest pattern, in bytes.
inline constexpr std::size_t kMaxPathBytes = 512;
inline constexpr std::size_t kMaxPatternBytes = 1024;

/// A list of (pattern, value) in the order of the file. PEFT asks re.match("(.*\.)?(KEY)$", path)
/// for each in turn and takes the first that matches (huggingface/peft, get_pattern_key). RE2 runs
/// it in time linear in the path. What Python and RE2 read differently is refused, not guessed.
class ModulePatterns {
 public:
  ModulePatterns();
  ModulePatterns(ModulePatterns&&) noexcept;
  ModulePatterns& operator=(ModulePatterns&&) noexcept;
  ~ModulePatterns();

  /// Appends. Errors: unsupported, quoting the pattern.
  Status add(const std::string& pattern, double value);
  /// Whether the patterns so far fill the memory that a file's may take: add() refuses all others.
  bool exhausted() const noexcept;

  bool empty() const noexcept { return patterns_.empty(); }

  /// The value of the first match, or `otherwise`. Errors: unsupported: a path too long, or not
  /// ASCII where the pattern's meaning depends on it; more work than the budget.
  Result<double> find(std::string_view path, double otherwise) const;

 private:
  struct Pattern;
  std::vector<Pattern> patterns_;
  std::uint64_t instructions_ = 0;
  mutable std::uint64_t work_ = 0;
};

}  // namespace detail
RANKFOLD_NAMESPACE_END
