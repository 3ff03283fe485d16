// How a backward is cut into pieces, and where its sums stand in the workspace. All sizes follow
// from host-known bounds, never from threads: so do the bits of every sum.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "plan.hpp"
#include "rankfold/problem.hpp"
#include "routing.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace reference {

constexpr bool is_backward(Op op) noexcept {
  return op == Op::backward || op == Op::backward_embedding;
}
inline bool recomputes_h(const Problem& problem) noexcept {
  return (problem.outputs & kRecomputesH) != 0;
}
/// Whether ds is computed at all: dx and da are made of it.
inline bool needs_ds(std::uint32_t outputs) noexcept {
  return (outputs & (kOutputDx | kOutputDa | kOutputDs)) != 0;
}

/// Some rows of one slot: [begin, begin + count) of the order. Gradients are summed up in a block,
/// and then over the blocks of a slot in order.
struct TrainingBlock {
  std::int32_t slot;
  std::int32_t begin;
  std::int32_t count;
  std::int32_t
      part;  ///< which partial sum it makes; -1: the only block of its slot, no partial sum
};

/// A slot with more than one block: parts [first_part, first_part + num_parts).
struct SplitSlot {
  std::int32_t slot;
  std::int32_t first_part;
  std::int32_t num_parts;
};

inline constexpr std::int64_t kMaxParts = 16;
inline constexpr std::int64_t kMaxSplitSlots = kMaxParts / 2;
inline constexpr std::int64_t kMinBlockRows = 512;
inline constexpr std::int64_t kTileRows = 48;  ///< rows of x or dy that are widened together

/// Rows of a block: a slot of `rows` rows makes at most nine blocks.
std::int64_t training_block_rows(std::int64_t rows) noexcept;
/// Most partial sums that a batch of `rows` rows makes.
inline std::int64_t max_training_parts(std::int64_t rows) noexcept {
  return std::min(kMaxParts, rows / (kMinBlockRows / 2));
}
/// Columns of dy or x that one item computes: at most eight items to a matrix, so that there are at
/// most eight partial sums of ds.
std::int64_t column_chunk(std::int64_t columns) noexcept;
inline std::int64_t num_column_chunks(std::int64_t columns) noexcept {
  return (columns + column_chunk(columns) - 1) / column_chunk(columns);
}
/// Columns that are widened together, beside `ranks` rows of weights and of sums. A multiple of 16.
std::int64_t tile_columns(std::int64_t ranks) noexcept;
constexpr std::int64_t pad_rank(std::int64_t rank) noexcept { return (rank + 7) / 8 * 8; }

/// Byte offsets into the training part of the workspace.
struct TrainingPlan {
  std::size_t row_slots = 0;    ///< int32 [rows]
  std::size_t blocks = 0;       ///< TrainingBlock [rows]
  std::size_t by_id = 0;        ///< int32 [rows]; embedding
  std::size_t ds = 0;           ///< float [rows, num_slices * max_rank]; where the caller has none
  std::size_t ds_parts = 0;     ///< float [column chunks of all slices, rows, pad_rank(max_rank)]
  std::size_t da_parts = 0;     ///< float [parts, num_slices * max_rank, in]; linear
  std::size_t db_parts = 0;     ///< float [parts, sum of out, max_rank]
  std::size_t dbias_parts = 0;  ///< float [parts, sum of out]
  std::int64_t bytes = 0;
  bool too_large = false;
};
TrainingPlan plan_training(const Problem& problem) noexcept;

/// Floats of scratch that a lane of a backward needs.
std::int64_t backward_scratch_floats(const TableShape& shape) noexcept;

/// The parts as pointers.
struct TrainingParts {
  std::int32_t* row_slots;
  TrainingBlock* blocks;
  std::int32_t* by_id;
  float* ds;
  float* ds_parts;
  float* da_parts;
  float* db_parts;
  float* dbias_parts;
};
TrainingParts training_parts(const TrainingPlan& plan, std::byte* base) noexcept;

/// Rows by ascending slot, and in a slot by ascending row, whichever way they were addressed.
struct TrainingRouting {
  Routing rows;
  const std::int32_t* ends = nullptr;  ///< [num_slots] where a slot's rows end; null: no rows
  const TrainingBlock* blocks = nullptr;
  std::int64_t num_blocks = 0;
  std::int64_t block_rows = 1;
  SplitSlot split[kMaxSplitSlots] = {};
  std::int64_t num_split = 0;

  std::int64_t slot_begin(std::int64_t slot) const noexcept {
    return ends == nullptr || slot == 0 ? 0 : ends[slot - 1];
  }
  std::int64_t slot_rows(std::int64_t slot) const noexcept {
    return ends == nullptr ? 0 : ends[slot] - slot_begin(slot);
  }
  /// The split slot, or null.
  const SplitSlot* find_split(std::int64_t slot) const noexcept;
};

/// Routes and cuts. Device data is never trusted, as in route_rows().
TrainingRouting route_training(const LoraAddressing& addressing, const AdapterTableView& table,
                               int threads, const WorkspaceParts& parts,
                               const TrainingParts& training) noexcept;

}  // namespace reference
RANKFOLD_NAMESPACE_END
