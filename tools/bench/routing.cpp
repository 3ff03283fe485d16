#include "routing.hpp"

#include <algorithm>

namespace rankfold::tools {

Routing draw_routing(std::uint64_t seed, std::int64_t tokens, std::int32_t adapters,
                     std::int32_t experts, std::int32_t top_k) {
  std::uint64_t state = seed;
  const auto next = [&state](std::uint64_t below) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    return static_cast<std::int32_t>((state >> 33) % below);
  };
  Routing routing;
  for (std::int64_t token = 0; token < tokens; ++token) {
    routing.token_slots.push_back(next(static_cast<std::uint64_t>(adapters)));
    const auto first = static_cast<std::ptrdiff_t>(routing.expert_ids.size());
    while (static_cast<std::ptrdiff_t>(routing.expert_ids.size()) - first < top_k) {
      const std::int32_t expert = next(static_cast<std::uint64_t>(experts));
      const auto begin = routing.expert_ids.begin() + first;
      if (std::find(begin, routing.expert_ids.end(), expert) != routing.expert_ids.end()) continue;
      routing.expert_ids.push_back(expert);
    }
    for (std::int32_t k = 0; k < top_k; ++k) {
      routing.weights.push_back(0.0625f + 0.125f * static_cast<float>(next(1024)) / 1024.0f);
    }
  }
  return routing;
}

SortedRows sort_by_expert(const std::vector<std::int32_t>& expert_ids, std::int32_t experts) {
  SortedRows sorted;
  sorted.offsets.assign(static_cast<std::size_t>(experts) + 1, 0);
  for (const std::int32_t expert : expert_ids) {
    ++sorted.offsets[static_cast<std::size_t>(expert) + 1];
  }
  for (std::size_t i = 1; i < sorted.offsets.size(); ++i)
    sorted.offsets[i] += sorted.offsets[i - 1];
  std::vector<std::int32_t> next(sorted.offsets.begin(), sorted.offsets.end() - 1);
  sorted.order.resize(expert_ids.size());
  for (std::size_t row = 0; row < expert_ids.size(); ++row) {
    std::int32_t& place = next[static_cast<std::size_t>(expert_ids[row])];
    sorted.order[static_cast<std::size_t>(place++)] = static_cast<std::int32_t>(row);
  }
  return sorted;
}

}  // namespace rankfold::tools
