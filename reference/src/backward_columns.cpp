// da of an embedding: the rows of a slot that have the same id are added up, in the order of the
// rows, and land once in the id's column.
#include <algorithm>
#include <cstring>

#include "backward_phases.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace reference {

namespace {

constexpr std::int64_t kRanksPerItem = 8;

}  // namespace

std::int64_t SortIdsPhase::num_items() const noexcept {
  return b_.grads.da != nullptr && b_.routing.ends != nullptr ? b_.shape().num_slots : 0;
}

void SortIdsPhase::run(std::int64_t slot, int) noexcept {
  const std::int64_t begin = b_.routing.slot_begin(slot);
  const std::int64_t count = b_.routing.slot_rows(slot);
  std::int32_t* const first = b_.parts.by_id + begin;
  // Places in the order, so that ds is found; in a slot they ascend as rows do.
  for (std::int64_t i = 0; i < count; ++i) first[i] = static_cast<std::int32_t>(begin + i);
  const std::int32_t* const order = b_.routing.rows.order;
  std::sort(first, first + count, [&](std::int32_t a, std::int32_t b) {
    const std::int64_t id_a = read_id(ids_, order[a]);
    const std::int64_t id_b = read_id(ids_, order[b]);
    return id_a != id_b ? id_a < id_b : a < b;
  });
}

std::int64_t ColumnsPhase::num_items() const noexcept {
  const std::int64_t blocks = (b_.shape().max_rank + kRanksPerItem - 1) / kRanksPerItem;
  return b_.grads.da != nullptr && b_.routing.ends != nullptr
             ? b_.shape().num_slots * b_.shape().num_slices * blocks
             : 0;
}

void ColumnsPhase::run(std::int64_t item, int) noexcept {
  const TableShape& shape = b_.shape();
  const std::int64_t blocks = (shape.max_rank + kRanksPerItem - 1) / kRanksPerItem;
  const std::int64_t first = item % blocks * kRanksPerItem;
  const std::int64_t owner = item / blocks % shape.num_slices;
  const std::int64_t slot = item / blocks / shape.num_slices;
  const std::int64_t count = b_.routing.slot_rows(slot);
  float* const da = b_.pointer(b_.grads.da, slot, owner);
  if (count == 0 || da == nullptr || b_.da_owner(slot, owner) != owner) return;
  const std::int64_t last = std::min(first + kRanksPerItem, b_.da_rows(slot, owner));
  if (first >= last) return;
  if (!b_.accumulates()) {
    std::memset(da + first * shape.in, 0,
                static_cast<std::size_t>((last - first) * shape.in) * sizeof(float));
  }
  const std::int32_t* const places = b_.parts.by_id + b_.routing.slot_begin(slot);
  const std::int32_t* const order = b_.routing.rows.order;
  for (std::int64_t s = owner; s < shape.num_slices; ++s) {
    if (b_.pointer(b_.grads.da, slot, s) != da) continue;
    const std::int64_t limit = std::min(b_.entry(slot, s).in_limit, shape.in);
    const std::int64_t end = std::min(last, b_.bound_rank(slot, s));
    for (std::int64_t i = 0; i < count;) {
      const std::int64_t id = read_id(ids_, order[places[i]]);
      float sums[kRanksPerItem] = {};
      for (; i < count && read_id(ids_, order[places[i]]) == id; ++i) {
        if (id < 0 || id >= limit) continue;
        const std::int64_t row = b_.ds.by_row ? order[places[i]] : places[i];
        const float* const ds = b_.ds.data + row * b_.ds.stride + s * shape.max_rank;
        for (std::int64_t j = first; j < end; ++j) sums[j - first] += ds[j];
      }
      if (id < 0 || id >= limit) continue;
      for (std::int64_t j = first; j < end; ++j) da[j * shape.in + id] += sums[j - first];
    }
  }
}

}  // namespace reference
RANKFOLD_NAMESPACE_END
