// Strategy experts_sorted for many rows, in three launches: rows are listed by (slot, expert) pair,
// then shrunk and expanded in row blocks of one pair, at most 64 rows each.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "prefill.hpp"
#include "rankfold/arguments.hpp"
#include "rankfold/problem.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

inline constexpr int kPairRows = 64;  ///< of a row block

/// In the workspace. No number of a pair is known to the host: blocks find theirs by the counts of
/// the experts.
struct PairLists {
  int4* rows = nullptr;    ///< [rows of the window]: row of the window, token, bits of both weights
  int4* blocks = nullptr;  ///< [rows of the window]: slot, expert, first place in rows, count
  int2* experts = nullptr;  ///< [pair_list_experts()]: row blocks, place of the first in blocks
  int num_experts = 0;
};
/// Experts have their counts in fours.
constexpr std::int64_t pair_list_experts(std::int64_t num_experts) noexcept {
  return (num_experts + 3) / 4 * 4;
}

/// Why these kernels do not take a problem that fused_experts() takes ("<what> should be ..."), or
/// null.
const char* why_not_pairs(const Problem& problem) noexcept;
/// Whether they are the built-in choice for it.
bool prefers_pairs(const Problem& problem) noexcept;

/// Parts of the workspace: the lists, and h as float32 [rows of the window][num_slices * max_rank].
struct PairParts {
  PairLists lists;
  float* h = nullptr;
};
/// apply_experts. y_parts: parts that the columns of the widest slice are cut into; 0: chosen here.
Status apply_pairs(const ApplyExpertsArgs& args, const Problem& problem, const PairParts& parts,
                   const PrefillDevice& device, int y_parts, cudaStream_t stream);

/// Rows of every expert by slot; what has no entry is in no list.
Status list_pairs(const ApplyExpertsArgs& args, const PairLists& lists, cudaStream_t stream);
/// h = x A^T of the listed rows. blocks: bound of the row blocks.
Status shrink_pairs(const ApplyExpertsArgs& args, const PairParts& parts, std::int64_t blocks,
                    const PrefillDevice& device, cudaStream_t stream);
/// y += f h B^T of the listed rows.
Status expand_pairs(const ApplyExpertsArgs& args, const PairParts& parts, std::int64_t blocks,
                    const PrefillDevice& device, int y_parts, cudaStream_t stream);

}  // namespace cuda
RANKFOLD_NAMESPACE_END
