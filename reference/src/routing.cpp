#include "routing.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>

RANKFOLD_NAMESPACE_BEGIN
namespace reference {

namespace {

// A group must be long enough to pay for widening its weights, and short enough that a panel of h
// and y stays in the cache. Multiples of the kernels' tiles.
constexpr std::int64_t kMinGroupRows = 24;
constexpr std::int64_t kGroupUnit = 12;

// Walks the addressing once.
class Router {
 public:
  Router(const LoraAddressing& addressing, const AdapterTableView& table, Grouping grouping,
         int threads, const WorkspaceParts& parts) noexcept
      : addressing_(addressing),
        table_(table),
        grouping_(grouping),
        threads_(threads),
        parts_(parts) {}

  Routing route() noexcept {
    result_ = {parts_.groups, 0, parts_.order, parts_.order, 0, parts_.bare, 0};
    if (addressing_.active_rows_bound == 0) {
      all_bare();
    } else if (addressing_.mode == AddressingMode::uniform) {
      route_uniform();
    } else if (addressing_.mode == AddressingMode::grouped) {
      route_segments();
    } else {
      route_tokens();
    }
    result_.num_active = addressing_.num_tokens - result_.num_bare;
    return result_;
  }

 private:
  void route_uniform() noexcept;
  void route_tokens() noexcept;
  void route_segments() noexcept;
  void all_bare() noexcept;
  /// Cuts rows [begin, begin + count) of the order, which share a slot, into groups.
  void add_groups(std::int64_t slot, std::int64_t begin, std::int64_t count,
                  std::int64_t rows_per_group) noexcept;
  std::int64_t group_rows(std::int64_t num_rows) const noexcept;
  bool valid(std::int32_t slot) const noexcept {
    return slot >= 0 && slot < table_.shape.num_slots;
  }

  const LoraAddressing& addressing_;
  const AdapterTableView& table_;
  const Grouping grouping_;
  const int threads_;
  const WorkspaceParts& parts_;
  Routing result_;
};

void Router::all_bare() noexcept {
  result_.num_bare = addressing_.num_tokens;
  std::iota(parts_.bare, parts_.bare + addressing_.num_tokens, 0);
}

std::int64_t Router::group_rows(std::int64_t num_rows) const noexcept {
  return grouping_ == Grouping::by_row ? 1 : rows_per_group(num_rows, threads_);
}

void Router::add_groups(std::int64_t slot, std::int64_t begin, std::int64_t count,
                        std::int64_t rows_per_group) noexcept {
  const std::int64_t entry = entry_index(table_, slot, 0, 0);
  for (std::int64_t done = 0; done < count; done += rows_per_group) {
    parts_.groups[result_.num_groups++] = {
        entry, static_cast<std::int32_t>(begin + done),
        static_cast<std::int32_t>(std::min(rows_per_group, count - done))};
  }
}

void Router::route_uniform() noexcept {
  if (!valid(addressing_.uniform_slot)) return all_bare();
  const std::int64_t rows = addressing_.num_tokens;
  std::iota(parts_.order, parts_.order + rows, 0);
  add_groups(addressing_.uniform_slot, 0, rows, group_rows(rows));
}

void Router::route_tokens() noexcept {
  const std::int32_t* const slots = addressing_.token_slots;
  const std::int64_t rows = addressing_.num_tokens;
  for (std::int64_t t = 0; t < rows; ++t) {
    if (!valid(slots[t])) parts_.bare[result_.num_bare++] = static_cast<std::int32_t>(t);
  }
  if (grouping_ == Grouping::by_row) {
    std::int64_t active = 0;
    for (std::int64_t t = 0; t < rows; ++t) {
      if (!valid(slots[t])) continue;
      parts_.order[active] = static_cast<std::int32_t>(t);
      add_groups(slots[t], active++, 1, 1);
    }
    return;
  }
  const std::int32_t num_slots = table_.shape.num_slots;
  const std::int64_t active = sort_by_slot(slots, rows, num_slots, parts_.counters, parts_.order);
  const std::int64_t step = group_rows(active);
  std::int64_t begin = 0;
  for (std::int32_t slot = 0; slot < num_slots; ++slot) {
    const std::int64_t end = parts_.counters[slot];
    add_groups(slot, begin, end - begin, step);
    begin = end;
  }
}

void Router::route_segments() noexcept {
  const std::int64_t rows = addressing_.num_tokens;
  const std::int64_t step = group_rows(rows);
  const std::int64_t num_segments =
      std::clamp<std::int64_t>(*addressing_.num_segments, 0, addressing_.max_segments);
  std::memset(parts_.marks, 0, static_cast<std::size_t>(rows));
  std::int64_t active = 0;
  std::int64_t end = 0;
  for (std::int64_t s = 0; s < num_segments; ++s) {
    // Never before the end of the segment before: no row is visited twice.
    const std::int64_t begin = std::clamp<std::int64_t>(addressing_.segment_offsets[s], end, rows);
    end = std::clamp<std::int64_t>(addressing_.segment_offsets[s + 1], begin, rows);
    const std::int32_t slot = addressing_.segment_slots[s];
    if (!valid(slot)) continue;
    const std::int64_t first = active;
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int32_t row = addressing_.token_order[i];
      if (row < 0 || row >= rows || parts_.marks[row] != 0) continue;
      parts_.marks[row] = 1;
      parts_.order[active++] = row;
    }
    add_groups(slot, first, active - first, step);
  }
  for (std::int64_t t = 0; t < rows; ++t) {
    if (parts_.marks[t] == 0) parts_.bare[result_.num_bare++] = static_cast<std::int32_t>(t);
  }
}

}  // namespace

std::int64_t rows_per_group(std::int64_t num_rows, int threads) noexcept {
  const std::int64_t share = (num_rows + 4 * threads - 1) / (4 * threads);
  const std::int64_t rows = (share + kGroupUnit - 1) / kGroupUnit * kGroupUnit;
  return std::clamp(rows, kMinGroupRows, kMaxGroupRows);
}

std::int64_t sort_by_slot(const std::int32_t* token_slots, std::int64_t num_tokens,
                          std::int32_t num_slots, std::int32_t* ends,
                          std::int32_t* order) noexcept {
  std::fill_n(ends, num_slots, 0);
  const auto valid = [num_slots](std::int32_t slot) { return slot >= 0 && slot < num_slots; };
  for (std::int64_t t = 0; t < num_tokens; ++t) {
    if (valid(token_slots[t])) ++ends[token_slots[t]];
  }
  std::int32_t total = 0;
  for (std::int32_t slot = 0; slot < num_slots; ++slot) {
    total += std::exchange(ends[slot], total);  // now where the slot begins
  }
  for (std::int64_t t = 0; t < num_tokens; ++t) {
    const std::int32_t slot = token_slots[t];
    if (valid(slot)) order[ends[slot]++] = static_cast<std::int32_t>(t);
  }
  return total;
}

Routing route_rows(const LoraAddressing& addressing, const AdapterTableView& table,
                   Grouping grouping, int threads, const WorkspaceParts& parts) noexcept {
  return Router(addressing, table, grouping, threads, parts).route();
}

}  // namespace reference
RANKFOLD_NAMESPACE_END
