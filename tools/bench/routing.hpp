// The routing of a mixture-of-experts point, as the workloads file defines it.
#pragma once

#include <cstdint>
#include <vector>

namespace rankfold::tools {

struct Routing {
  std::vector<std::int32_t> token_slots;  ///< [tokens]
  std::vector<std::int32_t> expert_ids;   ///< [tokens * top_k], distinct within a token
  std::vector<float> weights;             ///< [tokens * top_k]
};

/// s = seed; next(): s = (s * 6364136223846793005 + 1442695040888963407) mod 2^64, value s >> 33.
/// Per token: slot = next % adapters; next % experts until top_k are distinct; then top_k weights
/// 0.0625 + 0.125 * (next % 1024) / 1024. top_k is at most experts.
Routing draw_routing(std::uint64_t seed, std::int64_t tokens, std::int32_t adapters,
                     std::int32_t experts, std::int32_t top_k);

/// Rows sorted by expert, rows of one expert in their old order.
struct SortedRows {
  std::vector<std::int32_t> offsets;  ///< [experts + 1]
  std::vector<std::int32_t> order;    ///< sorted row -> row
};
SortedRows sort_by_expert(const std::vector<std::int32_t>& expert_ids, std::int32_t experts);

}  // namespace rankfold::tools
