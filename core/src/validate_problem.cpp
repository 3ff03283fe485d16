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

// The dtypes that the operation's own validation would take, so that a problem which supports()
// answers is one that a call can have.
bool dtypes(Check& check, const Problem& problem) noexcept {
  bool has_x = true;
  bool has_ids = false;
  bool has_y = true;
  bool y_as_x = false;
  switch (problem.op) {
    case Op::group_tokens:
      return true;
    case Op::shrink:
    case Op::shrink_experts:
      has_y = false;
      break;
    case Op::expand:
    case Op::expand_experts:
      has_x = false;
      break;
    case Op::apply_linear:
    case Op::apply_experts:
    case Op::forward:
      y_as_x = true;
      break;
    case Op::gather_shrink:
      has_y = false;
      [[fallthrough]];
    case Op::apply_embedding:
    case Op::forward_embedding:
    case Op::backward_embedding:
      has_x = false;
      has_ids = true;
      break;
    case Op::backward:  // x may be left out, and its dtype then says nothing of dy's
    case Op::backward_experts:
      break;
  }
  const DType x = problem.x_dtype;
  const DType y = problem.y_dtype;
  if (has_x && !is_activation(x)) {
    return check.fail(kInvalid, "problem.x_dtype is %s; it should be f32, f16 or bf16",
                      to_string(x));
  }
  if (has_ids && x != DType::i32 && x != DType::i64) {
    return check.fail(kInvalid, "problem.x_dtype is %s; it should be i32 or i64, the dtype of ids",
                      to_string(x));
  }
  if (has_y && !is_activation(y)) {
    return check.fail(kInvalid, "problem.y_dtype is %s; it should be f32, f16 or bf16",
                      to_string(y));
  }
  if (y_as_x && y != DType::f32 && y != x) {
    return x == DType::f32
               ? check.fail(kInvalid,
                            "problem.y_dtype is %s; it should be f32, as problem.x_dtype is",
                            to_string(y))
               : check.fail(kInvalid,
                            "problem.y_dtype is %s; it should be f32, or %s as problem.x_dtype is",
                            to_string(y), to_string(x));
  }
  return true;
}

}  // namespace

Status validate_problem(const Problem& problem) noexcept {
  Status status;
  const bool named = static_cast<std::uint32_t>(problem.op) < static_cast<std::uint32_t>(kNumOps);
  Check check(named ? to_string(problem.op) : "problem", {}, &status);
  (void)(in_range(check, "op", problem.op, kNumOps) &&
         in_range(check, "addressing", problem.addressing, 3) &&
         in_range(check, "x_dtype", problem.x_dtype, 6) &&
         in_range(check, "y_dtype", problem.y_dtype, 6) && dtypes(check, problem) &&
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
