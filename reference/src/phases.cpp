#include "phases.hpp"

#include <algorithm>
#include <cstring>

#include "kernels/expand_kernel.hpp"
#include "kernels/shrink_kernel.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace reference {

namespace {

constexpr std::int64_t kMinRankBlock = 4;
constexpr std::int64_t kMaxColumnBlock = 4096;
constexpr std::int64_t kMinColumnBlock = 128;
constexpr std::int64_t kColumnUnit = 32;  // of the expand's tiles

// Into how many blocks each of `pieces` equal pieces of work is cut, at most `most`: so many that
// every thread gets the same share, or that a share more or less does not matter. Not more: each
// block starts with memory that nobody has asked for yet.
std::int64_t num_blocks(std::int64_t pieces, std::int64_t most, int threads) noexcept {
  constexpr std::int64_t kManyShares = 6;
  for (std::int64_t blocks = 1; blocks < most; ++blocks) {
    const std::int64_t items = pieces * blocks;
    if (items % threads == 0 || items >= kManyShares * threads) return blocks;
  }
  return std::max<std::int64_t>(most, 1);
}

constexpr std::int64_t round_to_block(std::int64_t ranks) noexcept {
  return (ranks + kMinRankBlock - 1) / kMinRankBlock * kMinRankBlock;
}

}  // namespace

void clear_rows(void* data, std::size_t element_bytes, std::int64_t stride,
                const std::int32_t* rows, std::int64_t num_rows, std::int64_t begin,
                std::int64_t end) noexcept {
  auto* const bytes = static_cast<std::byte*>(data);
  const auto size = static_cast<std::int64_t>(element_bytes);
  for (std::int64_t i = 0; i < num_rows; ++i) {
    const std::int64_t row = rows != nullptr ? rows[i] : i;
    std::memset(bytes + (row * stride + begin) * size, 0,
                static_cast<std::size_t>((end - begin) * size));
  }
}

void clear_bare(const Routing& routing, std::int64_t item, void* data, std::size_t element_bytes,
                std::int64_t stride, std::int64_t columns) noexcept {
  const std::int64_t begin = item * kBareRows;
  const std::int64_t count = std::min(kBareRows, routing.num_bare - begin);
  clear_rows(data, element_bytes, stride, routing.bare + begin, count, 0, columns);
}

std::int64_t ShrinkPhase::rank_block() const noexcept {
  const std::int64_t max_rank = std::max(table_.shape.max_rank, 1);
  const std::int64_t pieces =
      std::max<std::int64_t>(routing_.num_groups * table_.shape.num_slices, 1);
  // With many rows each block of ranks widens all of x again.
  const bool few_rows = x_.sizes[0] - routing_.num_bare <= 3 * routing_.num_groups;
  const std::int64_t least = few_rows ? kMinRankBlock : 2 * kMinRankBlock;
  const std::int64_t blocks = num_blocks(pieces, (max_rank + least - 1) / least, threads_);
  return round_to_block((max_rank + blocks - 1) / blocks);
}

std::int64_t ShrinkPhase::num_items() const noexcept {
  const std::int64_t block = rank_block();
  const std::int64_t blocks = (std::max(table_.shape.max_rank, 1) + block - 1) / block;
  return routing_.num_groups * table_.shape.num_slices * blocks +
         (h_.zero_rest ? num_bare_items(routing_) : 0);
}

void ShrinkPhase::run(std::int64_t item, int lane) noexcept {
  const TableShape& shape = table_.shape;
  const std::int64_t rank_step = rank_block();
  const std::int64_t blocks = (std::max(shape.max_rank, 1) + rank_step - 1) / rank_step;
  const std::int64_t main_items = routing_.num_groups * shape.num_slices * blocks;
  if (item >= main_items) {
    return clear_bare(routing_, item - main_items, h_.data, sizeof(float), h_.stride,
                      std::int64_t{shape.num_slices} * shape.max_rank);
  }
  const std::int64_t slice = item / blocks % shape.num_slices;
  const RowGroup& group = routing_.groups[item / blocks / shape.num_slices];
  const AdapterEntry& entry = table_.entries[group.entry + slice];
  const std::int64_t rank = entry.a != nullptr ? entry_rank(entry, shape) : 0;
  const std::int64_t first = item % blocks * rank_step;
  const std::int64_t last = std::min<std::int64_t>(first + rank_step, shape.max_rank);
  const bool drops = dropout_ != nullptr && dropout_->p > 0.0f;
  const DropoutMask mask(drops ? *dropout_ : Dropout{}, slice);
  const ShrinkBlock block{
      .x = x_.data,
      .x_dtype = x_.dtype,
      .x_stride = x_.strides[0],
      .rows = routing_.order + group.begin,
      .num_rows = group.count,
      .a = entry.a,
      .a_dtype = shape.a_dtype,
      .a_stride = entry.a_row_stride,
      .in = shape.in,
      .rank_begin = first,
      .rank_end = std::min(last, rank),
      .h = h_.group_base(group) + slice * shape.max_rank,
      .h_stride = h_.stride,
      .h_rows = h_.group_rows(group, routing_.order),
      .scratch = parts_.lane_scratch(lane),
      .dropout = drops ? &mask : nullptr,
  };
  if (block.rank_begin < block.rank_end) shrink_block(block);
  if (h_.zero_rest && std::max(first, rank) < last) {
    clear_rows(block.h, sizeof(float), h_.stride, block.h_rows, group.count, std::max(first, rank),
               last);
  }
}

std::int64_t ExpandPhase::blocks_per_group(std::int64_t columns) const noexcept {
  std::int64_t blocks = 0;
  for (int s = 0; s < table_.shape.num_slices; ++s) {
    blocks += (table_.shape.out[s] + columns - 1) / columns;
  }
  return blocks;
}

std::int64_t ExpandPhase::column_block() const noexcept {
  std::int64_t widest = 1;
  for (int s = 0; s < table_.shape.num_slices; ++s) {
    widest = std::max(widest, table_.shape.out[s]);
  }
  const std::int64_t blocks =
      std::max(num_blocks(std::max<std::int64_t>(routing_.num_groups, 1) * table_.shape.num_slices,
                          (widest + kMinColumnBlock - 1) / kMinColumnBlock, threads_),
               (widest + kMaxColumnBlock - 1) / kMaxColumnBlock);
  const std::int64_t columns = (widest + blocks - 1) / blocks;
  return (columns + kColumnUnit - 1) / kColumnUnit * kColumnUnit;
}

std::int64_t ExpandPhase::num_items() const noexcept {
  return routing_.num_groups * blocks_per_group(column_block()) +
         (mode_ == YMode::overwrite ? num_bare_items(routing_) : 0);
}

void ExpandPhase::run(std::int64_t item, int lane) noexcept {
  const TableShape& shape = table_.shape;
  const std::int64_t columns = column_block();
  const std::int64_t blocks = blocks_per_group(columns);
  const std::size_t y_bytes = size_of(y_.dtype);
  if (item >= routing_.num_groups * blocks) {
    return clear_bare(routing_, item - routing_.num_groups * blocks, y_.data, y_bytes,
                      y_.strides[0], total_out(shape));
  }
  // NOLINTNEXTLINE(clang-analyzer-core.DivideZero): with no blocks, no item comes this far
  const RowGroup& group = routing_.groups[item / blocks];
  std::int64_t piece = item % blocks;
  std::int64_t slice = 0;
  std::int64_t y_column = 0;
  for (;; ++slice) {
    const std::int64_t of_slice = (shape.out[slice] + columns - 1) / columns;
    if (piece < of_slice) break;
    piece -= of_slice;
    y_column += shape.out[slice];
  }
  const AdapterEntry& entry = table_.entries[group.entry + slice];
  const std::int32_t* const rows = routing_.order + group.begin;
  const std::int64_t begin = piece * columns;
  const std::int64_t end = std::min(begin + columns, shape.out[slice]);
  auto* const y = static_cast<std::byte*>(y_.data) + y_column * static_cast<std::int64_t>(y_bytes);
  // Without A nobody has written h, unless the caller brought it.
  const bool given = h_.by_row && !h_.zero_rest;
  const bool bound = entry.b != nullptr && (given || entry.a != nullptr);
  const std::int64_t rank = bound ? entry_rank(entry, shape) : 0;
  if (rank == 0) {
    if (mode_ == YMode::overwrite) {
      clear_rows(y, y_bytes, y_.strides[0], rows, group.count, begin, end);
    }
    return;
  }
  const ExpandBlock block{
      .h = h_.group_base(group) + slice * shape.max_rank,
      .h_stride = h_.stride,
      .h_rows = h_.group_rows(group, routing_.order),
      .b = entry.b,
      .b_dtype = shape.b_dtype,
      .b_stride = entry.b_row_stride,
      .rank = rank,
      .bias = with_bias_ ? entry.bias : nullptr,
      .scaling = entry.scaling,
      .token_weights = addressing_.token_weights,
      .y = y,
      .y_dtype = y_.dtype,
      .y_stride = y_.strides[0],
      .rows = rows,
      .num_rows = group.count,
      .column_begin = begin,
      .column_end = end,
      .overwrite = mode_ == YMode::overwrite,
      .scratch = parts_.lane_scratch(lane),
  };
  expand_block(block);
}

}  // namespace reference
RANKFOLD_NAMESPACE_END
