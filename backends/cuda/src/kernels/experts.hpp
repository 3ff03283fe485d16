// Strategies experts_gathered (mode gather) and experts_sorted (mode grouped): shrink and expand of
// a few rows of one (slot, expert) in one block.
#pragma once

#include "general.hpp"
#include "rankfold/problem.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

/// Why the fused kernel does not take a problem ("<what> should be ..."), or null.
const char* why_not_fused_experts(const Problem& problem) noexcept;

/// apply_experts. The problem is the call's: shapes of blocks are chosen by it, not by the window.
/// early: launched while the kernel before it in the stream ends, for which it waits.
Status fused_experts(const ApplyExpertsArgs& args, const Problem& problem, bool early,
                     cudaStream_t stream);

/// For overwriting: what has no delta becomes zero; the rest is left to fused_experts.
Status clear_rows_without_delta(const ApplyExpertsArgs& args, const Rows& rows, RowRange range,
                                cudaStream_t stream);

}  // namespace cuda
RANKFOLD_NAMESPACE_END
