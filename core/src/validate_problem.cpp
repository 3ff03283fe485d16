#include "validate_problem.hpp"

#include <cinttypes>

#include "validate_check.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace detail {

namespace {

constexpr auto kInvalid = StatusCode::invalid_argument;

template <class Enum>
bool in_range(Check& check, const char* name, Enum value, int count) noexcept {
  return static_cast<std::uint32_t>(value) < static_cast<std::uint32_t>(count) ||
         check.fail(kInvalid, "problem.%s is %d; it should be 0 to %d", name,
                    static_cast<int>(value), count - 1);
}

bool bound(Check& check, const char* name, std::int64_t value) noexcept {
  return value >= 0 ||
         check.fail(kInvalid, "problem.bounds.%s is %" PRId64 "; it should be 0 or more", name,
                    value);
}

bool dropout(Check& check, float p) noexcept {
  return (p >= 0.0f && p < 1.0f) ||
         check.fail(kInvalid, "problem.dropout_p is %g; it should be in [0, 1)",
                    static_cast<double>(p));
}

}  // namespace

Status validate_problem(const Problem& problem) noexcept {
  Status status;
  const bool named = static_cast<std::uint32_t>(problem.op) < static_cast<std::uint32_t>(kNumOps);
  Check check(named ? to_string(problem.op) : "problem", {}, &status);
  (void)(in_range(check, "op", problem.op, kNumOps) &&
         in_range(check, "addressing", problem.addressing, 3) &&
         in_range(check, "x_dtype", problem.x_dtype, 6) &&
         in_range(check, "y_dtype", problem.y_dtype, 6) &&
         in_range(check, "expert_mode", problem.expert_mode, 2) &&
         in_range(check, "x_rows", problem.x_rows, 2) &&
         check.shape(problem.shape, "problem.shape.") && check.options(problem.options) &&
         bound(check, "rows", problem.bounds.rows) &&
         bound(check, "tokens", problem.bounds.tokens) &&
         bound(check, "segments", problem.bounds.segments) &&
         bound(check, "active_rows", problem.bounds.active_rows) &&
         dropout(check, problem.dropout_p));
  return status;
}

}  // namespace detail
RANKFOLD_NAMESPACE_END
