// Which strategy computes a problem.
#pragma once

#include "rankfold/problem.hpp"
#include "rankfold/status.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace reference {

/// The strategy for a problem, or unsupported with the reason. Both strategies give the same bits:
/// a row's sums are taken in an order that only its own sizes determine.
Result<Strategy> choose_strategy(const Problem& problem) noexcept;

/// Whether a second thread is worth waking for so many rows with an adapter.
bool worth_threads(const Problem& problem, std::int64_t rows) noexcept;

}  // namespace reference
RANKFOLD_NAMESPACE_END
