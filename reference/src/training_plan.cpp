#include "training_plan.hpp"

#include <algorithm>
#include <initializer_list>

RANKFOLD_NAMESPACE_BEGIN
namespace reference {

namespace {

constexpr std::int64_t kAlignment = 64;
constexpr std::int64_t kMaxBytes = std::int64_t{1} << 60;
constexpr std::int64_t kMaxColumnChunks = 8;
constexpr std::int64_t kMinColumnChunk = 256;
constexpr std::int64_t kTileFloats = 8192;  // of weights, and of sums, beside a tile
constexpr std::int64_t kMaxTileColumns = 128;

constexpr std::int64_t round_to(std::int64_t value, std::int64_t unit) noexcept {
  return (value + unit - 1) / unit * unit;
}

class Layout {
 public:
  std::size_t take(std::initializer_list<std::int64_t> sizes, std::int64_t element_bytes) noexcept {
    const std::int64_t offset = at_;
    std::int64_t bytes = element_bytes;
    bool wraps = false;
    for (const std::int64_t size : sizes) {
      wraps = wraps || __builtin_mul_overflow(bytes, size, &bytes) || bytes > kMaxBytes;
    }
    if (wraps || at_ > kMaxBytes) {
      too_large_ = true;
      return static_cast<std::size_t>(offset);
    }
    at_ = round_to(at_ + bytes, kAlignment);
    return static_cast<std::size_t>(offset);
  }
  std::int64_t bytes() const noexcept { return at_; }
  bool too_large() const noexcept { return too_large_ || at_ > kMaxBytes; }

 private:
  std::int64_t at_ = 0;
  bool too_large_ = false;
};

// At least num_column_chunks, and monotone.
std::int64_t most_column_chunks(std::int64_t columns) noexcept {
  return std::clamp<std::int64_t>((columns - 1) / kMinColumnChunk + 1, 1, kMaxColumnChunks);
}

// Which slot has each row: grouped addressing as the reference reads it, row by row.
void read_slots(const Routing& routing, const AdapterTableView& table, std::int64_t num_rows,
                std::int32_t* row_slots) noexcept {
  std::fill_n(row_slots, num_rows, -1);
  for (std::int64_t g = 0; g < routing.num_groups; ++g) {
    const RowGroup& group = routing.groups[g];
    const auto slot = static_cast<std::int32_t>(group.entry / table.slot_stride);
    for (std::int64_t i = 0; i < group.count; ++i) row_slots[routing.order[group.begin + i]] = slot;
  }
}

}  // namespace

std::int64_t training_block_rows(std::int64_t rows) noexcept {
  return std::max(kMinBlockRows, round_to((rows + 7) / 8, kTileRows));
}

std::int64_t column_chunk(std::int64_t columns) noexcept {
  const std::int64_t share = (columns + kMaxColumnChunks - 1) / kMaxColumnChunks;
  return std::max(kMinColumnChunk, round_to(share, kMaxTileColumns));
}

std::int64_t tile_columns(std::int64_t ranks) noexcept {
  const std::int64_t columns = kTileFloats / std::max<std::int64_t>(ranks, 1) / 16 * 16;
  return std::clamp<std::int64_t>(columns, 16, kMaxTileColumns);
}

TrainingPlan plan_training(const Problem& problem) noexcept {
  TrainingPlan plan;
  const TableShape& shape = problem.shape;
  const std::int64_t rows = problem.bounds.rows;
  const std::int64_t parts = max_training_parts(rows);
  const std::int64_t columns = std::int64_t{shape.num_slices} * shape.max_rank;
  constexpr std::int64_t kFloat = sizeof(float);
  std::int64_t chunks = 0;
  for (int s = 0; s < shape.num_slices; ++s) chunks += most_column_chunks(shape.out[s]);
  const bool embeds = problem.op == Op::backward_embedding;
  const auto asked = [&](std::uint32_t output) { return (problem.outputs & output) != 0; };
  const bool ds = needs_ds(problem.outputs);

  Layout layout;
  plan.row_slots = layout.take({rows}, sizeof(std::int32_t));
  plan.blocks = layout.take({rows}, sizeof(TrainingBlock));
  plan.by_id = layout.take({embeds && asked(kOutputDa) ? rows : 0}, sizeof(std::int32_t));
  plan.ds = layout.take({ds && !asked(kOutputDs) ? rows : 0, columns}, kFloat);
  plan.ds_parts = layout.take({ds ? chunks : 0, rows, pad_rank(shape.max_rank)}, kFloat);
  plan.da_parts = layout.take({!embeds && asked(kOutputDa) ? parts : 0, columns, shape.in}, kFloat);
  plan.db_parts =
      layout.take({asked(kOutputDb) ? parts : 0, total_out(shape), shape.max_rank}, kFloat);
  plan.dbias_parts = layout.take({asked(kOutputDbias) ? parts : 0, total_out(shape)}, kFloat);
  plan.bytes = layout.bytes();
  plan.too_large = layout.too_large();
  return plan;
}

std::int64_t backward_scratch_floats(const TableShape& shape) noexcept {
  // Of what either pass needs, the larger, and monotone in every size: weights and sums, tiles of
  // rows, rows of h or ds; pieces start at multiples of 16.
  const std::int64_t ranks =
      std::max(pad_rank(shape.max_rank), std::int64_t{shape.num_slices} * shape.max_rank);
  return 2 * std::max(kTileFloats, 16 * ranks) + kMaxTileColumns * (5 * kTileRows + 1) +
         kTileRows * (ranks + 1) + 256;
}

TrainingParts training_parts(const TrainingPlan& plan, std::byte* base) noexcept {
  const auto floats = [base](std::size_t offset) {
    return reinterpret_cast<float*>(base + offset);
  };
  TrainingParts parts;
  parts.row_slots = reinterpret_cast<std::int32_t*>(base + plan.row_slots);
  parts.blocks = reinterpret_cast<TrainingBlock*>(base + plan.blocks);
  parts.by_id = reinterpret_cast<std::int32_t*>(base + plan.by_id);
  parts.ds = floats(plan.ds);
  parts.ds_parts = floats(plan.ds_parts);
  parts.da_parts = floats(plan.da_parts);
  parts.db_parts = floats(plan.db_parts);
  parts.dbias_parts = floats(plan.dbias_parts);
  return parts;
}

const SplitSlot* TrainingRouting::find_split(std::int64_t slot) const noexcept {
  for (std::int64_t i = 0; i < num_split; ++i) {
    if (split[i].slot == slot) return &split[i];
  }
  return nullptr;
}

TrainingRouting route_training(const LoraAddressing& addressing, const AdapterTableView& table,
                               int threads, const WorkspaceParts& parts,
                               const TrainingParts& training) noexcept {
  TrainingRouting result;
  const std::int64_t rows = addressing.num_tokens;
  const std::int32_t num_slots = table.shape.num_slots;
  result.block_rows = training_block_rows(rows);
  if (rows == 0) return result;
  result.rows = route_rows(addressing, table, Grouping::by_entry, threads, parts);
  if (result.rows.num_groups == 0) return result;
  if (addressing.mode == AddressingMode::uniform) {
    std::fill_n(parts.counters, addressing.uniform_slot, 0);
    std::fill(parts.counters + addressing.uniform_slot, parts.counters + num_slots,
              static_cast<std::int32_t>(rows));
  } else if (addressing.mode == AddressingMode::grouped) {
    // The caller may have repeated slots, in any order of rows: sorted again, so that the order of
    // every sum is that of the rows.
    read_slots(result.rows, table, rows, training.row_slots);
    LoraAddressing by_token = addressing;
    by_token.mode = AddressingMode::tokens;
    by_token.token_slots = training.row_slots;
    result.rows = route_rows(by_token, table, Grouping::by_entry, threads, parts);
  }
  result.ends = parts.counters;
  result.blocks = training.blocks;
  std::int32_t next_part = 0;
  for (std::int32_t slot = 0; slot < num_slots; ++slot) {
    const std::int64_t begin = result.slot_begin(slot);
    const std::int64_t count = result.slot_rows(slot);
    const std::int64_t num_blocks = (count + result.block_rows - 1) / result.block_rows;
    if (num_blocks > 1) {
      result.split[result.num_split++] = {slot, next_part, static_cast<std::int32_t>(num_blocks)};
    }
    for (std::int64_t done = 0; done < count; done += result.block_rows) {
      training.blocks[result.num_blocks++] = {
          slot, static_cast<std::int32_t>(begin + done),
          static_cast<std::int32_t>(std::min(result.block_rows, count - done)),
          num_blocks > 1 ? next_part++ : -1};
    }
  }
  return result;
}

}  // namespace reference
RANKFOLD_NAMESPACE_END
