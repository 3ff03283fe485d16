#include "expert_routing.hpp"

#include <algorithm>
#include <utility>

#include "phases.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace reference {

namespace {

// Walks the addressing of one window once.
class ExpertRouter {
 public:
  ExpertRouter(const Problem& problem, const ExpertAddressing& addressing,
               const AdapterTableView& table, const ExpertWindow& window, Grouping grouping,
               int threads, const WorkspaceParts& parts) noexcept
      : problem_(problem),
        addressing_(addressing),
        table_(table),
        window_(window),
        grouping_(grouping),
        threads_(threads),
        parts_(parts),
        expert_(array(0)),
        slot_(array(1)),
        token_(array(2)),
        source_(array(3)) {}

  ExpertRouting route() noexcept;

 private:
  std::int32_t* array(std::int64_t index) const noexcept {
    return parts_.routed + index * problem_.bounds.rows;
  }
  bool is(ExpertMode mode) const noexcept { return addressing_.mode == mode; }
  bool shares_x() const noexcept { return addressing_.x_rows == XRows::token; }
  bool needs_tokens() const noexcept {
    return shares_x() || addressing_.token_slots != nullptr || addressing_.token_weights != nullptr;
  }
  std::int64_t entry(std::int32_t row) const noexcept {
    return entry_index(table_, slot_[row], expert_[row], 0);
  }

  void find_experts_of_offsets() noexcept;
  void find_experts_of_ids() noexcept;
  void find_tokens() noexcept;
  void find_slots() noexcept;
  void sort_by(const std::int32_t* keys, std::int32_t num_keys) noexcept;
  void find_sources() noexcept;
  bool same_h(std::int32_t row, std::int32_t other) const noexcept;
  void group_for_shrink() noexcept;
  void group_for_expand() noexcept;
  std::int64_t group_rows(std::int64_t num_rows) const noexcept {
    return grouping_ == Grouping::by_row ? 1 : rows_per_group(num_rows, threads_);
  }

  const Problem& problem_;
  const ExpertAddressing& addressing_;
  const AdapterTableView& table_;
  const ExpertWindow& window_;
  const Grouping grouping_;
  const int threads_;
  const WorkspaceParts& parts_;
  // By row of the window. An expert of -1: the row is bare.
  std::int32_t* const expert_;
  std::int32_t* const slot_;
  std::int32_t* const token_;
  std::int32_t* const source_;
  // By place.
  std::int32_t* order_ = nullptr;
  std::int32_t* spare_ = nullptr;
  std::int64_t active_ = 0;
  ExpertRouting result_;
};

void ExpertRouter::find_experts_of_offsets() noexcept {
  std::fill_n(expert_, window_.num_rows, -1);
  const std::int64_t window_end = window_.first_row + window_.num_rows;
  std::int64_t end = 0;
  for (std::int32_t e = 0; e < table_.shape.num_experts; ++e) {
    // Never before the end of the expert before: no row is visited twice.
    const std::int64_t begin =
        std::clamp<std::int64_t>(addressing_.expert_offsets[e], end, addressing_.num_rows);
    end = std::clamp<std::int64_t>(addressing_.expert_offsets[e + 1], begin, addressing_.num_rows);
    const std::int64_t first = std::max(begin, window_.first_row);
    const std::int64_t last = std::min(end, window_end);
    if (first < last)
      std::fill(expert_ + (first - window_.first_row), expert_ + (last - window_.first_row), e);
  }
}

void ExpertRouter::find_experts_of_ids() noexcept {
  const std::int32_t* const ids = addressing_.expert_ids + window_.first_row;
  for (std::int64_t r = 0; r < window_.num_rows; ++r) {
    const std::int64_t local = std::int64_t{ids[r]} - addressing_.expert_base;
    const bool here = local >= 0 && local < table_.shape.num_experts;
    expert_[r] = here ? static_cast<std::int32_t>(local) : -1;
  }
}

void ExpertRouter::find_tokens() noexcept {
  if (!needs_tokens()) return;
  if (is(ExpertMode::gather)) {
    std::int64_t token = 0;
    std::int64_t choice = window_.first_row % addressing_.top_k;
    for (std::int64_t r = 0; r < window_.num_rows; ++r) {
      token_[r] = static_cast<std::int32_t>(token);
      if (++choice == addressing_.top_k) choice = 0, ++token;
    }
    return;
  }
  for (std::int64_t r = 0; r < window_.num_rows; ++r) {
    if (expert_[r] < 0) continue;
    token_[r] = addressing_.row_tokens[window_.first_row + r];
    if (token_[r] < 0 || token_[r] >= addressing_.num_tokens) expert_[r] = -1;
  }
}

void ExpertRouter::find_slots() noexcept {
  const std::int32_t* const slots = addressing_.token_slots;
  for (std::int64_t r = 0; r < window_.num_rows; ++r) {
    if (expert_[r] < 0) continue;
    slot_[r] = slots != nullptr ? slots[window_.first_token + token_[r]] : 0;
    if (slot_[r] < 0 || slot_[r] >= table_.shape.num_slots) expert_[r] = -1;
  }
}

// Stable: sorting by the lesser key first leaves the rows in order of both.
void ExpertRouter::sort_by(const std::int32_t* keys, std::int32_t num_keys) noexcept {
  std::int32_t* const ends = parts_.counters;
  std::fill_n(ends, num_keys, 0);
  for (std::int64_t i = 0; i < active_; ++i) ++ends[keys[order_[i]]];
  std::int32_t total = 0;
  for (std::int32_t key = 0; key < num_keys; ++key) total += std::exchange(ends[key], total);
  for (std::int64_t i = 0; i < active_; ++i) spare_[ends[keys[order_[i]]]++] = order_[i];
  std::swap(order_, spare_);
}

bool ExpertRouter::same_h(std::int32_t row, std::int32_t other) const noexcept {
  if (slot_[row] != slot_[other]) return false;
  if (expert_[row] == expert_[other]) return true;
  const AdapterEntry* const one = table_.entries + entry(row);
  const AdapterEntry* const two = table_.entries + entry(other);
  for (int slice = 0; slice < table_.shape.num_slices; ++slice) {
    if (!same_a(one[slice], two[slice])) return false;
  }
  return true;
}

// Rows of one token read one row of x: where they share A as well, the first of them computes h.
void ExpertRouter::find_sources() noexcept {
  std::fill_n(source_, window_.num_rows, -1);
  if (!shares_x()) return;
  const bool gathered = is(ExpertMode::gather);  // rows of a token are neighbours
  std::int32_t last = -1;
  if (!gathered) std::fill_n(parts_.first_rows, addressing_.num_tokens, -1);
  for (std::int64_t r = 0; r < window_.num_rows; ++r) {
    if (expert_[r] < 0) continue;
    const auto row = static_cast<std::int32_t>(r);
    std::int32_t& first = gathered ? last : parts_.first_rows[token_[r]];
    if (first < 0 || token_[first] != token_[r]) {
      first = row;
    } else if (same_h(row, first)) {
      source_[r] = first;
    }
  }
}

void ExpertRouter::group_for_shrink() noexcept {
  find_sources();
  std::int32_t* const rows = array(4);
  std::int32_t* const x_rows = array(5);
  std::int32_t* const copies = array(6);
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < active_; ++i) {
    const std::int32_t row = order_[i];
    if (source_[row] >= 0) {
      copies[result_.num_copies++] = row;
    } else {
      x_rows[count] = shares_x() ? token_[row] : row;
      rows[count++] = row;
    }
  }
  RowGroup* const groups = parts_.groups;
  const std::int64_t step = group_rows(count);
  std::int64_t num_groups = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    RowGroup* const group = groups + num_groups - 1;
    if (num_groups > 0 && group->count < step && same_h(rows[i], rows[i - 1])) {
      ++group->count;
    } else {
      groups[num_groups++] = {entry(rows[i]), static_cast<std::int32_t>(i), 1};
    }
  }
  result_.shrink = {
      groups, num_groups, rows, x_rows, count, parts_.bare, window_.num_rows - active_};
  result_.copies = copies;
  result_.sources = source_;
}

void ExpertRouter::group_for_expand() noexcept {
  RowGroup* const groups = parts_.groups + problem_.bounds.rows;
  const std::int64_t step = group_rows(active_);
  std::int64_t num_groups = 0;
  std::int64_t last = -1;
  for (std::int64_t i = 0; i < active_; ++i) {
    const std::int64_t at = entry(order_[i]);
    if (at == last && groups[num_groups - 1].count < step) {
      ++groups[num_groups - 1].count;
    } else {
      groups[num_groups++] = {at, static_cast<std::int32_t>(i), 1};
    }
    last = at;
  }
  if (addressing_.token_weights != nullptr) {
    for (std::int64_t i = 0; i < active_; ++i) spare_[i] = token_[order_[i]];
    result_.tokens = spare_;
  }
  result_.expand = {
      groups, num_groups, order_, order_, active_, parts_.bare, window_.num_rows - active_};
}

ExpertRouting ExpertRouter::route() noexcept {
  if (is(ExpertMode::grouped)) {
    find_experts_of_offsets();
  } else {
    find_experts_of_ids();
  }
  find_tokens();
  find_slots();
  order_ = parts_.order;
  spare_ = array(7);
  std::int64_t num_bare = 0;
  for (std::int64_t r = 0; r < window_.num_rows; ++r) {
    const auto row = static_cast<std::int32_t>(r);
    if (expert_[r] < 0) {
      parts_.bare[num_bare++] = row;
    } else {
      order_[active_++] = row;
    }
  }
  if (grouping_ == Grouping::by_entry) {
    if (is(ExpertMode::gather)) sort_by(expert_, table_.shape.num_experts);
    if (addressing_.token_slots != nullptr) sort_by(slot_, table_.shape.num_slots);
  }
  if (problem_.op != Op::expand_experts) group_for_shrink();
  if (problem_.op != Op::shrink_experts) group_for_expand();
  return result_;
}

}  // namespace

ExpertWindow::ExpertWindow(const ExpertAddressing& addressing) noexcept
    : first_row(addressing.row_begin),
      num_rows((addressing.row_end < 0 ? addressing.num_rows : addressing.row_end) -
               addressing.row_begin),
      first_token(addressing.mode == ExpertMode::gather && addressing.top_k > 0
                      ? addressing.row_begin / addressing.top_k
                      : 0) {}

ExpertRouting route_experts(const Problem& problem, const ExpertAddressing& addressing,
                            const AdapterTableView& table, const ExpertWindow& window,
                            Grouping grouping, int threads, const WorkspaceParts& parts) noexcept {
  return ExpertRouter(problem, addressing, table, window, grouping, threads, parts).route();
}

}  // namespace reference
RANKFOLD_NAMESPACE_END
