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

constexpr std::int64_t kManyShares = 6;

// Into how many blocks each of `pieces` equal pieces of work is cut, at most `most`: so many that
// every thread gets the same share, or that a share more or less does not matter. Not more: each
// block starts with memory that nobody has asked for yet.
std::int64_t num_blocks(std::int64_t pieces, std::int64_t most, int threads) noexcept {
  for (std::int64_t blocks = 1; blocks < most; ++blocks) {
    const std::int64_t items = pieces * blocks;
    if (items % threads == 0 || items >= kManyShares * threads) return blocks;
  }
  return std::max<std::int64_t>(most, 1);
}

// The first slice with the A of this one: it alone computes, the others take its columns.
std::int64_t owner_of(const AdapterEntry* entries, std::int64_t slice) noexcept {
  std::int64_t owner = 0;
  while (owner < slice && !same_a(entries[owner], entries[slice])) ++owner;
  return owner;
}

void copy_columns(const ShrinkBlock& block, std::int64_t distance) noexcept {
  for (std::int64_t i = 0; i < block.num_rows; ++i) {
    float* const h = block.h + (block.h_rows != nullptr ? block.h_rows[i] : i) * block.h_stride;
    std::copy(h + block.rank_begin, h + block.rank_end, h + distance + block.rank_begin);
  }
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

// Pairs of group and slice that compute. Of many groups it is enough to know that they are many.
std::int64_t ShrinkPhase::count_pieces() const noexcept {
  const int slices = table_.shape.num_slices;
  if (has_dropout() || routing_.num_groups >= kManyShares * threads_) {
    return std::max<std::int64_t>(routing_.num_groups * slices, 1);
  }
  std::int64_t pieces = 0;
  for (std::int64_t g = 0; g < routing_.num_groups; ++g) {
    const AdapterEntry* const entries = table_.entries + routing_.groups[g].entry;
    for (int slice = 0; slice < slices; ++slice)
      pieces += owner_of(entries, slice) == slice ? 1 : 0;
  }
  return std::max<std::int64_t>(pieces, 1);
}

std::int64_t ShrinkPhase::rank_block() const noexcept {
  const std::int64_t max_rank = std::max(table_.shape.max_rank, 1);
  // With many rows each block of ranks widens all of x again.
  const bool few_rows = routing_.num_active <= 3 * routing_.num_groups;
  const std::int64_t least = few_rows ? kMinRankBlock : 2 * kMinRankBlock;
  const std::int64_t blocks = num_blocks(pieces_, (max_rank + least - 1) / least, threads_);
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
  const AdapterEntry* const entries = table_.entries + group.entry;
  const AdapterEntry& entry = entries[slice];
  const std::int64_t rank = entry.a != nullptr ? entry_rank(entry, shape) : 0;
  const std::int64_t first = item % blocks * rank_step;
  const std::int64_t last = std::min<std::int64_t>(first + rank_step, shape.max_rank);
  const bool drops = has_dropout();
  const DropoutMask mask(drops ? *dropout_ : Dropout{}, slice);
  const ShrinkBlock block{
      .x = x_.data,
      .x_dtype = x_.dtype,
      .x_stride = x_.strides[0],
      .rows = routing_.x_rows + group.begin,
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
  if (block.rank_begin < block.rank_end && (drops || owner_of(entries, slice) == slice)) {
    shrink_block(block);
    // The mask of a dropout is another for each slice.
    for (std::int64_t other = slice + 1; !drops && other < shape.num_slices; ++other) {
      if (same_a(entry, entries[other])) copy_columns(block, (other - slice) * shape.max_rank);
    }
  }
  if (h_.zero_rest && std::max(first, rank) < last) {
    clear_rows(block.h, sizeof(float), h_.stride, block.h_rows, group.count, std::max(first, rank),
               last);
  }
}

std::int64_t CopyPhase::num_items() const noexcept {
  return (num_copies_ + kBareRows - 1) / kBareRows;
}

void CopyPhase::run(std::int64_t item, int) noexcept {
  const std::int64_t end = std::min((item + 1) * kBareRows, num_copies_);
  for (std::int64_t i = item * kBareRows; i < end; ++i) {
    const std::int32_t row = copies_[i];
    std::copy_n(h_.data + sources_[row] * h_.stride, columns_, h_.data + row * h_.stride);
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
  // Without A nobody has written an h of this operation.
  const bool bound = entry.b != nullptr && (!h_.made_here || entry.a != nullptr);
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
      .row_weights = strengths_.rows,
      .token_weights = strengths_.tokens,
      .tokens = strengths_.row_tokens != nullptr ? strengths_.row_tokens + group.begin : nullptr,
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
