// The steps of a backward as phases: over dy, then what both passes left to be added up, then over
// x (or over the columns of an embedding).
#pragma once

#include <algorithm>

#include "parallel.hpp"
#include "phases.hpp"
#include "rankfold/arguments.hpp"
#include "training_plan.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace reference {

/// What the phases of one backward share. Views that the caller did not give have null data.
struct Backward {
  const ConstTensorView dy;
  const AdapterTableView& table;
  const LoraAddressing& addressing;
  const Gradients& grads;
  const TrainingRouting& routing;
  const TrainingParts& parts;
  const WorkspaceParts& workspace;
  const std::uint32_t outputs;
  const HiddenRows h;   ///< what forward saved, or recomputed by place in the order
  const HiddenRows ds;  ///< the caller's, by row, or workspace by place in the order

  const TableShape& shape() const noexcept { return table.shape; }
  const AdapterEntry& entry(std::int64_t slot, std::int64_t slice) const noexcept {
    return table.entries[slot * table.slot_stride + slice];
  }
  /// The rank that rows compute with: 0 where A or B is missing.
  std::int64_t bound_rank(std::int64_t slot, std::int64_t slice) const noexcept {
    const AdapterEntry& e = entry(slot, slice);
    return e.a != nullptr && e.b != nullptr ? entry_rank(e, shape()) : 0;
  }
  float* pointer(float* const* array, std::int64_t slot, std::int64_t slice) const noexcept {
    return array == nullptr ? nullptr : array[slot * shape().num_slices + slice];
  }
  bool accumulates() const noexcept { return grads.mode == YMode::accumulate; }

  /// The first slice of the slot with the same da pointer: slices that share it add up there.
  std::int64_t da_owner(std::int64_t slot, std::int64_t slice) const noexcept;
  /// Rows of da at an owner: the largest rank of those who share it; 0 where no row of the batch
  /// contributes.
  std::int64_t da_rows(std::int64_t slot, std::int64_t owner) const noexcept;

  /// Columns of all slices before this one.
  std::int64_t output_column(std::int64_t slice) const noexcept;
  /// Partial sums of ds of a column chunk: row i of the order is at + i * pad_rank(max_rank).
  float* ds_part(std::int64_t chunk) const noexcept {
    return parts.ds_parts + chunk * addressing.num_tokens * pad_rank(shape().max_rank);
  }
  float* da_part(std::int64_t part, std::int64_t slice) const noexcept {
    const std::int64_t rank = shape().max_rank;
    return parts.da_parts + (part * shape().num_slices + slice) * rank * shape().in;
  }
  float* db_part(std::int64_t part, std::int64_t slice) const noexcept {
    return parts.db_parts + (part * total_out(shape()) + output_column(slice)) * shape().max_rank;
  }
  float* dbias_part(std::int64_t part, std::int64_t slice) const noexcept {
    return parts.dbias_parts + part * total_out(shape()) + output_column(slice);
  }
};

/// One pass over dy: partial ds by chunks of columns, db and dbias. Items: (block, chunk).
class OutputPhase final : public Phase {
 public:
  explicit OutputPhase(const Backward& backward) noexcept : b_(backward) {}
  std::int64_t num_items() const noexcept override;
  void run(std::int64_t item, int lane) noexcept override;

 private:
  const Backward& b_;
};

/// Adds up ds; adds up the parts of db and dbias; clears gradients to which no row contributes, ds
/// of rows without adapter, and dx of them when overwriting.
class SettlePhase final : public Phase {
 public:
  SettlePhase(const Backward& backward, const TensorView& dx, YMode dx_mode) noexcept
      : b_(backward), dx_(dx), dx_mode_(dx_mode) {}
  std::int64_t num_items() const noexcept override;
  void run(std::int64_t item, int lane) noexcept override;

 private:
  struct Items {
    std::int64_t ds, db, slots, bare_ds, bare_dx;
  };
  Items items() const noexcept;
  void settle_ds(std::int64_t item) noexcept;
  void settle_db(std::int64_t item) noexcept;
  void clear_slot(std::int64_t slot) noexcept;
  const Backward& b_;
  const TensorView& dx_;
  const YMode dx_mode_;
};

/// One pass over x and dx. Items: (block, chunk of columns of x).
class InputPhase final : public Phase {
 public:
  InputPhase(const Backward& backward, const ConstTensorView& x, const TensorView& dx,
             YMode dx_mode, const Dropout& dropout) noexcept
      : b_(backward), x_(x), dx_(dx), dx_mode_(dx_mode), dropout_(dropout) {}
  std::int64_t num_items() const noexcept override;
  void run(std::int64_t item, int lane) noexcept override;

 private:
  const Backward& b_;
  const ConstTensorView& x_;
  const TensorView& dx_;
  const YMode dx_mode_;
  const Dropout& dropout_;
};

/// Adds up the parts of da of slots with more than one block. Items: (split slot, slice, piece).
class InputPartsPhase final : public Phase {
 public:
  explicit InputPartsPhase(const Backward& backward) noexcept : b_(backward) {}
  std::int64_t num_items() const noexcept override;
  void run(std::int64_t item, int lane) noexcept override;

 private:
  const Backward& b_;
};

/// Embedding: the rows of each slot by (id, row). Items: slots.
class SortIdsPhase final : public Phase {
 public:
  SortIdsPhase(const Backward& backward, const ConstTensorView& ids) noexcept
      : b_(backward), ids_(ids) {}
  std::int64_t num_items() const noexcept override;
  void run(std::int64_t item, int lane) noexcept override;

 private:
  const Backward& b_;
  const ConstTensorView& ids_;
};

/// Embedding: da by columns of ids. Items: (slot, slice, block of ranks).
class ColumnsPhase final : public Phase {
 public:
  ColumnsPhase(const Backward& backward, const ConstTensorView& ids) noexcept
      : b_(backward), ids_(ids) {}
  std::int64_t num_items() const noexcept override;
  void run(std::int64_t item, int lane) noexcept override;

 private:
  const Backward& b_;
  const ConstTensorView& ids_;
};

/// target[i, j] = or += sum over parts of part[i, j]; parts stand every part_stride floats, their
/// rows every part_row floats; rows of target every `columns`.
struct PartSum {
  float* target;
  const float* parts;
  std::int64_t part_stride;
  std::int64_t part_row;
  std::int64_t num_parts;
  std::int64_t row_begin;
  std::int64_t row_end;
  std::int64_t columns;
  bool accumulate;
};
void sum_parts(const PartSum& sum) noexcept;

/// target[i] = or += values[i], for rows of a tile.
inline void put_row(float* target, const float* values, std::int64_t count,
                    bool accumulate) noexcept {
  if (accumulate) {
    for (std::int64_t i = 0; i < count; ++i) target[i] += values[i];
  } else {
    std::copy_n(values, count, target);
  }
}

}  // namespace reference
RANKFOLD_NAMESPACE_END
