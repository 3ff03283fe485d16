// The routing core: which entry of the table does a row use. Everything after it sees groups of
// rows that share an entry, and does not know how they were addressed.
#pragma once

#include <cstdint>

#include "plan.hpp"
#include "rankfold/adapter_table.hpp"
#include "rankfold/addressing.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace reference {

/// What routing found; the arrays stand in the workspace. Every row is in one group or bare.
struct Routing {
  const RowGroup* groups = nullptr;
  std::int64_t num_groups = 0;
  const std::int32_t* order = nullptr;   ///< row numbers of h and y, group by group
  const std::int32_t* x_rows = nullptr;  ///< row numbers of x at the same places
  std::int64_t num_active = 0;           ///< rows in groups
  const std::int32_t* bare = nullptr;    ///< rows without adapter, ascending
  std::int64_t num_bare = 0;
};

/// How rows are put into groups.
enum class Grouping : std::int32_t {
  by_row,    ///< routed: each row is a group
  by_entry,  ///< grouped: rows of an entry together, cut into pieces that keep all threads busy
};

/// Reads the addressing and fills the workspace. Device data is never trusted: whatever the arrays
/// hold, only rows of [0, num_tokens) and entries of the table come out, each row once. `threads`
/// decides how long a group may be, never what its rows become.
Routing route_rows(const LoraAddressing& addressing, const AdapterTableView& table,
                   Grouping grouping, int threads, const WorkspaceParts& parts) noexcept;

/// Rows of a group for so many rows in all: long enough to pay for widening its weights, short
/// enough that all threads have work and a panel of h and y stays in the cache.
std::int64_t rows_per_group(std::int64_t num_rows, int threads) noexcept;

/// Stable counting sort of the rows whose slot is in [0, num_slots). Afterwards `order` holds them
/// by ascending slot and ends[slot] is where the slot's rows end. Returns their number.
std::int64_t sort_by_slot(const std::int32_t* token_slots, std::int64_t num_tokens,
                          std::int32_t num_slots, std::int32_t* ends, std::int32_t* order) noexcept;

}  // namespace reference
RANKFOLD_NAMESPACE_END
