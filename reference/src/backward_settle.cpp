// What stands between the two passes: sums of parts, and everything to which no row contributes.
#include <algorithm>
#include <cstring>

#include "backward_phases.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace reference {

namespace {

constexpr std::int64_t kRowsPerItem = 64;
constexpr std::int64_t kPieces = 8;  // of one sum of parts

void clear(float* target, std::int64_t count) noexcept {
  if (target != nullptr) std::memset(target, 0, static_cast<std::size_t>(count) * sizeof(float));
}

}  // namespace

std::int64_t Backward::output_column(std::int64_t slice) const noexcept {
  std::int64_t column = 0;
  for (std::int64_t s = 0; s < slice; ++s) column += shape().out[s];
  return column;
}

std::int64_t Backward::da_owner(std::int64_t slot, std::int64_t slice) const noexcept {
  const float* const da = pointer(grads.da, slot, slice);
  std::int64_t owner = 0;
  while (pointer(grads.da, slot, owner) != da) ++owner;
  return owner;
}

std::int64_t Backward::da_rows(std::int64_t slot, std::int64_t owner) const noexcept {
  const float* const da = pointer(grads.da, slot, owner);
  std::int64_t rows = 0;
  bool contributes = false;
  for (std::int64_t s = owner; s < shape().num_slices; ++s) {
    if (da == nullptr || pointer(grads.da, slot, s) != da) continue;
    rows = std::max(rows, entry_rank(entry(slot, s), shape()));
    contributes = contributes || bound_rank(slot, s) > 0;
  }
  return contributes ? rows : 0;
}

void sum_parts(const PartSum& sum) noexcept {
  constexpr std::int64_t kPiece = 1024;
  float piece[kPiece];
  for (std::int64_t i = sum.row_begin; i < sum.row_end; ++i) {
    float* const target = sum.target + i * sum.columns;
    const float* const from = sum.parts + i * sum.part_row;
    for (std::int64_t j = 0; j < sum.columns; j += kPiece) {
      const std::int64_t count = std::min(kPiece, sum.columns - j);
      std::copy_n(from + j, count, piece);
      for (std::int64_t p = 1; p < sum.num_parts; ++p) {
        put_row(piece, from + p * sum.part_stride + j, count, true);
      }
      put_row(target + j, piece, count, sum.accumulate);
    }
  }
}

SettlePhase::Items SettlePhase::items() const noexcept {
  const TrainingRouting& routing = b_.routing;
  const bool makes_db = b_.grads.db != nullptr || b_.grads.dbias != nullptr;
  const bool returns_ds = (b_.outputs & kOutputDs) != 0;
  return {
      .ds = needs_ds(b_.outputs)
                ? routing.num_blocks * ((routing.block_rows + kRowsPerItem - 1) / kRowsPerItem)
                : 0,
      .db = makes_db ? routing.num_split * b_.shape().num_slices * kPieces : 0,
      .slots = b_.accumulates() ? 0 : b_.shape().num_slots,
      .bare_ds = returns_ds ? num_bare_items(routing.rows) : 0,
      .bare_dx =
          dx_.data != nullptr && dx_mode_ == YMode::overwrite ? num_bare_items(routing.rows) : 0,
  };
}

std::int64_t SettlePhase::num_items() const noexcept {
  const Items all = items();
  return all.ds + all.db + all.slots + all.bare_ds + all.bare_dx;
}

void SettlePhase::run(std::int64_t item, int) noexcept {
  const Items all = items();
  if (item < all.ds) return settle_ds(item);
  item -= all.ds;
  if (item < all.db) return settle_db(item);
  item -= all.db;
  if (item < all.slots) return clear_slot(item);
  item -= all.slots;
  if (item < all.bare_ds) {
    return clear_bare(b_.routing.rows, item, b_.ds.data, sizeof(float), b_.ds.stride,
                      std::int64_t{b_.shape().num_slices} * b_.shape().max_rank);
  }
  clear_bare(b_.routing.rows, item - all.bare_ds, dx_.data, size_of(dx_.dtype), dx_.strides[0],
             b_.shape().in);
}

// ds = f (sum of the chunks of columns, in order).
void SettlePhase::settle_ds(std::int64_t item) noexcept {
  const TableShape& shape = b_.shape();
  const std::int64_t per_block = (b_.routing.block_rows + kRowsPerItem - 1) / kRowsPerItem;
  const TrainingBlock& block = b_.routing.blocks[item / per_block];
  const std::int64_t begin = item % per_block * kRowsPerItem;
  const std::int64_t end = std::min<std::int64_t>(begin + kRowsPerItem, block.count);
  const std::int64_t part_rank = pad_rank(shape.max_rank);
  const std::int64_t chunk_stride = b_.addressing.num_tokens * part_rank;
  std::int64_t first_chunk = 0;
  for (std::int64_t s = 0; s < shape.num_slices; ++s) {
    const std::int64_t rank = b_.bound_rank(block.slot, s);
    const std::int64_t chunks = num_column_chunks(shape.out[s]);
    for (std::int64_t place = block.begin + begin; place < block.begin + end; ++place) {
      const std::int32_t row = b_.routing.rows.order[place];
      float* const ds =
          b_.ds.data + (b_.ds.by_row ? row : place) * b_.ds.stride + s * shape.max_rank;
      if (rank > 0) {
        const float* const part = b_.ds_part(first_chunk) + place * part_rank;
        const float weight =
            b_.addressing.token_weights != nullptr ? b_.addressing.token_weights[row] : 1.0f;
        const float factor = b_.entry(block.slot, s).scaling * weight;
        std::copy_n(part, rank, ds);
        for (std::int64_t c = 1; c < chunks; ++c) put_row(ds, part + c * chunk_stride, rank, true);
        for (std::int64_t j = 0; j < rank; ++j) ds[j] *= factor;
      }
      if (b_.ds.zero_rest) std::fill(ds + rank, ds + shape.max_rank, 0.0f);
    }
    first_chunk += chunks;
  }
}

void SettlePhase::settle_db(std::int64_t item) noexcept {
  const TableShape& shape = b_.shape();
  const std::int64_t piece = item % kPieces;
  const std::int64_t slice = item / kPieces % shape.num_slices;
  const SplitSlot& split = b_.routing.split[item / kPieces / shape.num_slices];
  const std::int64_t rank = b_.bound_rank(split.slot, slice);
  if (rank == 0) return;
  const std::int64_t out = shape.out[slice];
  const std::int64_t step = (out + kPieces - 1) / kPieces;
  const std::int64_t begin = std::min(piece * step, out);
  const std::int64_t end = std::min(begin + step, out);
  PartSum sum{.target = b_.pointer(b_.grads.db, split.slot, slice),
              .parts = nullptr,
              .part_stride = total_out(shape) * shape.max_rank,
              .part_row = shape.max_rank,
              .num_parts = split.num_parts,
              .row_begin = begin,
              .row_end = end,
              .columns = rank,
              .accumulate = b_.accumulates()};
  if (sum.target != nullptr) {
    sum.parts = b_.db_part(split.first_part, slice);
    sum_parts(sum);
  }
  if (float* const dbias = b_.pointer(b_.grads.dbias, split.slot, slice)) {
    sum.target = dbias + begin;
    sum.parts = b_.dbias_part(split.first_part, slice) + begin;
    sum.part_stride = total_out(shape);
    sum.row_begin = 0;
    sum.row_end = end > begin ? 1 : 0;
    sum.columns = end - begin;
    sum_parts(sum);
  }
}

// Overwriting: zeros where no row contributes. The rank of a gradient is that of the entry, also
// where A or B is missing.
void SettlePhase::clear_slot(std::int64_t slot) noexcept {
  const TableShape& shape = b_.shape();
  const bool has_rows = b_.routing.slot_rows(slot) > 0;
  for (std::int64_t s = 0; s < shape.num_slices; ++s) {
    const std::int64_t rank = entry_rank(b_.entry(slot, s), shape);
    if (!has_rows || b_.bound_rank(slot, s) == 0) {
      clear(b_.pointer(b_.grads.db, slot, s), shape.out[s] * rank);
      clear(b_.pointer(b_.grads.dbias, slot, s), shape.out[s]);
    }
    if (float* const da = b_.pointer(b_.grads.da, slot, s)) {
      if (!has_rows || b_.da_rows(slot, b_.da_owner(slot, s)) == 0) clear(da, rank * shape.in);
    }
  }
}

}  // namespace reference
RANKFOLD_NAMESPACE_END
