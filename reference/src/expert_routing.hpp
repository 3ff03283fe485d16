// Routing of experts: which entry of the table does a routed row use, which row of x does it read.
#pragma once

#include <cstdint>

#include "rankfold/arguments.hpp"
#include "rankfold/problem.hpp"
#include "routing.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace reference {

/// The rows that a call computes. Row numbers and token numbers of its routing count from here:
/// they fit 32 bits wherever the window does.
struct ExpertWindow {
  explicit ExpertWindow(const ExpertAddressing& addressing) noexcept;

  std::int64_t first_row;
  std::int64_t num_rows;
  std::int64_t first_token;
};

/// Rows of the window by what they need. Every row is active or bare; a row whose h equals that of
/// another row (same token, same A) is active in `expand` and a copy in place of active in
/// `shrink`.
struct ExpertRouting {
  Routing shrink;
  Routing expand;
  const std::int32_t* tokens = nullptr;   ///< by place of expand.order; null: nobody asks
  const std::int32_t* copies = nullptr;   ///< rows of h that are copied
  const std::int32_t* sources = nullptr;  ///< by row: where from
  std::int64_t num_copies = 0;
};

/// Reads the addressing and fills the workspace. Device data is never trusted: whatever the arrays
/// hold, only rows of the window, tokens of the batch and entries of the table come out, each row
/// once. `threads` decides how long a group may be, never what its rows become.
ExpertRouting route_experts(const Problem& problem, const ExpertAddressing& addressing,
                            const AdapterTableView& table, const ExpertWindow& window,
                            Grouping grouping, int threads, const WorkspaceParts& parts) noexcept;

}  // namespace reference
RANKFOLD_NAMESPACE_END
