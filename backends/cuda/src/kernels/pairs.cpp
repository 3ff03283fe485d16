#include "pairs.hpp"

#include <algorithm>

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

namespace {

constexpr int kMostSlots = 8192;               // counted in shared memory
constexpr std::int64_t kMostBlocks = 1 << 20;  // of a grid; each takes further ones in turn

}  // namespace

const char* why_not_pairs(const Problem& problem) noexcept {
  if (problem.expert_mode != ExpertMode::grouped) return "rows should be sorted by expert";
  if (problem.y_dtype != problem.x_dtype) return "y should be of x's dtype";
  if (problem.shape.num_slots > kMostSlots) return "num_slots should be at most 8192";
  return nullptr;
}

bool prefers_pairs(const Problem& problem) noexcept {
  // Sums of K have another order than those of fused_experts(), which calls of few rows take.
  return problem.options.batch_invariant != BatchInvariant::on &&
         why_not_pairs(problem) == nullptr && problem.bounds.rows >= 4096;
}

Status apply_pairs(const ApplyExpertsArgs& args, const Problem& problem, const PairParts& parts,
                   const PrefillDevice& device, int y_parts, cudaStream_t stream) {
  const TableShape& shape = args.table.shape;
  const std::int64_t end =
      args.addressing.row_end < 0 ? args.addressing.num_rows : args.addressing.row_end;
  if (end == args.addressing.row_begin || shape.num_slots == 0) return {};
  const std::int64_t blocks =
      std::min(row_block_bound(Grouping::segments, problem.bounds.rows,
                               std::int64_t{shape.num_slots} * shape.num_experts, kPairRows),
               kMostBlocks);
  if (Status status = list_pairs(args, parts.lists, stream); !status.ok()) return status;
  if (Status status = shrink_pairs(args, parts, blocks, device, stream); !status.ok())
    return status;
  return expand_pairs(args, parts, blocks, device, y_parts, stream);
}

}  // namespace cuda
RANKFOLD_NAMESPACE_END
