// A Problem that a caller wrote by hand.
#pragma once

#include "rankfold/problem.hpp"
#include "rankfold/status.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace detail {

/// ok, or which member is outside its range.
Status validate_problem(const Problem& problem) noexcept;

}  // namespace detail
RANKFOLD_NAMESPACE_END
