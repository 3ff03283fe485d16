// Rows of h as columns of A: an embedding's shrink reads one element of each row of A.
#include <cstring>

#include "kernels/simd.hpp"
#include "phases.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace reference {

namespace {

template <class TA>
void gather_column(const TA* a, std::int64_t a_stride, std::int64_t rank, float* h) noexcept {
  for (std::int64_t j = 0; j < rank; ++j) h[j] = to_float(a[j * a_stride]);
}

}  // namespace

std::int64_t GatherPhase::num_items() const noexcept {
  return routing_.num_groups * table_.shape.num_slices +
         (h_.zero_rest ? num_bare_items(routing_) : 0);
}

void GatherPhase::run(std::int64_t item, int) noexcept {
  const TableShape& shape = table_.shape;
  const std::int64_t main_items = routing_.num_groups * shape.num_slices;
  if (item >= main_items) {
    return clear_bare(routing_, item - main_items, h_.data, sizeof(float), h_.stride,
                      std::int64_t{shape.num_slices} * shape.max_rank);
  }
  const std::int64_t slice = item % shape.num_slices;
  const RowGroup& group = routing_.groups[item / shape.num_slices];
  const AdapterEntry& entry = table_.entries[group.entry + slice];
  const std::int64_t rank = entry.a != nullptr ? entry_rank(entry, shape) : 0;
  const std::int64_t limit = std::min(entry.in_limit, shape.in);
  float* const base = h_.group_base(group) + slice * shape.max_rank;
  const std::int32_t* const h_rows = h_.group_rows(group, routing_.order);
  const auto bytes = [](std::int64_t floats) { return static_cast<std::size_t>(floats) * 4; };
  for (std::int64_t i = 0; i < group.count; ++i) {
    float* const h = base + (h_rows != nullptr ? h_rows[i] : i) * h_.stride;
    const std::int64_t id = read_id(ids_, routing_.order[group.begin + i]);
    if (rank == 0 || id < 0 || id >= limit) {
      std::memset(h, 0, bytes(rank));
    } else {
      with_element(shape.a_dtype, [&]<class TA>(const TA*) {
        gather_column(static_cast<const TA*>(entry.a) + id, entry.a_row_stride, rank, h);
      });
    }
    if (h_.zero_rest) std::memset(h + rank, 0, bytes(shape.max_rank - rank));
  }
}

}  // namespace reference
RANKFOLD_NAMESPACE_END
