// The two halves of every operation as phases: rows of h from x or ids, rows of y from h.
#pragma once

#include <cstdint>

#include "parallel.hpp"
#include "plan.hpp"
#include "rankfold/arguments.hpp"
#include "routing.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace reference {

/// Where h stands: a tensor of the caller by row number, or workspace by place in the order.
struct HiddenRows {
  float* data = nullptr;
  std::int64_t stride = 0;
  bool by_row = false;
  /// Rows without adapter and columns past the rank become zero: only where the caller sees h.
  bool zero_rest = false;
  /// Made by this operation: where an entry has no A, nobody has written it.
  bool made_here = false;

  float* group_base(const RowGroup& group) const noexcept {
    return by_row ? data : data + group.begin * stride;
  }
  const std::int32_t* group_rows(const RowGroup& group, const std::int32_t* order) const noexcept {
    return by_row ? order + group.begin : nullptr;
  }
};

/// An h that the operation writes for the caller.
inline HiddenRows hidden_rows(const TensorView& h) noexcept {
  return {static_cast<float*>(h.data), h.strides[0], true, true, true};
}
/// An h that stays in the workspace.
inline HiddenRows hidden_rows(const WorkspaceParts& parts, const TableShape& shape) noexcept {
  return {parts.h, std::int64_t{shape.num_slices} * shape.max_rank, false, false, true};
}

/// What multiplies the scaling of a row: f = scaling * row weight * token weight, in that order.
struct RowStrengths {
  const float* rows = nullptr;               ///< by row number of y, or null (all 1)
  const float* tokens = nullptr;             ///< by token number, or null (all 1)
  const std::int32_t* row_tokens = nullptr;  ///< token number by place in the order; null: the row

  RowStrengths() = default;
  RowStrengths(const LoraAddressing& addressing) noexcept  // NOLINT: what most operations have
      : tokens(addressing.token_weights) {}
};

/// h = x A^T, with dropout on x where it is given and p > 0. Items: (group, slice, block of ranks),
/// then runs of rows without adapter.
class ShrinkPhase final : public Phase {
 public:
  ShrinkPhase(const ConstTensorView& x, const AdapterTableView& table, const Routing& routing,
              const HiddenRows& h, int threads, const WorkspaceParts& parts,
              const Dropout* dropout = nullptr) noexcept
      : x_(x),
        table_(table),
        routing_(routing),
        h_(h),
        threads_(threads),
        parts_(parts),
        dropout_(dropout),
        pieces_(count_pieces()) {}
  std::int64_t num_items() const noexcept override;
  void run(std::int64_t item, int lane) noexcept override;

 private:
  bool has_dropout() const noexcept { return dropout_ != nullptr && dropout_->p > 0.0f; }
  std::int64_t count_pieces() const noexcept;
  std::int64_t rank_block() const noexcept;
  const ConstTensorView& x_;
  const AdapterTableView& table_;
  const Routing& routing_;
  const HiddenRows h_;
  const int threads_;
  const WorkspaceParts& parts_;
  const Dropout* const dropout_;
  const std::int64_t pieces_;
};

/// h = A[:, ids]. Items: (group, slice), then runs of rows without adapter.
class GatherPhase final : public Phase {
 public:
  GatherPhase(const ConstTensorView& ids, const AdapterTableView& table, const Routing& routing,
              const HiddenRows& h) noexcept
      : ids_(ids), table_(table), routing_(routing), h_(h) {}
  std::int64_t num_items() const noexcept override;
  void run(std::int64_t item, int lane) noexcept override;

 private:
  const ConstTensorView& ids_;
  const AdapterTableView& table_;
  const Routing& routing_;
  const HiddenRows h_;
};

/// y += f (h B^T + bias). Items: (group, block of columns of a slice), then runs of rows without
/// adapter, which become zero when overwriting.
class ExpandPhase final : public Phase {
 public:
  ExpandPhase(const HiddenRows& h, const AdapterTableView& table, const RowStrengths& strengths,
              const Routing& routing, const TensorView& y, YMode mode, bool with_bias, int threads,
              const WorkspaceParts& parts) noexcept
      : h_(h),
        table_(table),
        strengths_(strengths),
        routing_(routing),
        y_(y),
        mode_(mode),
        with_bias_(with_bias),
        threads_(threads),
        parts_(parts) {}
  std::int64_t num_items() const noexcept override;
  void run(std::int64_t item, int lane) noexcept override;

 private:
  std::int64_t column_block() const noexcept;
  std::int64_t blocks_per_group(std::int64_t columns) const noexcept;
  const HiddenRows h_;
  const AdapterTableView& table_;
  const RowStrengths strengths_;
  const Routing& routing_;
  const TensorView& y_;
  const YMode mode_;
  const bool with_bias_;
  const int threads_;
  const WorkspaceParts& parts_;
};

/// Rows of h that equal other rows of h. Items: runs of rows.
class CopyPhase final : public Phase {
 public:
  CopyPhase(const HiddenRows& h, const TableShape& shape, const std::int32_t* copies,
            std::int64_t num_copies, const std::int32_t* sources) noexcept
      : h_(h),
        columns_(std::int64_t{shape.num_slices} * shape.max_rank),
        copies_(copies),
        num_copies_(num_copies),
        sources_(sources) {}
  std::int64_t num_items() const noexcept override;
  void run(std::int64_t item, int lane) noexcept override;

 private:
  const HiddenRows h_;
  const std::int64_t columns_;
  const std::int32_t* const copies_;  ///< row numbers
  const std::int64_t num_copies_;
  const std::int32_t* const sources_;  ///< by row number: which row it equals
};

/// Rows without adapter that one item clears.
inline constexpr std::int64_t kBareRows = 64;
inline std::int64_t num_bare_items(const Routing& routing) noexcept {
  return (routing.num_bare + kBareRows - 1) / kBareRows;
}

/// Sets columns [begin, end) of some rows to zero bits.
void clear_rows(void* data, std::size_t element_bytes, std::int64_t stride,
                const std::int32_t* rows, std::int64_t num_rows, std::int64_t begin,
                std::int64_t end) noexcept;
/// Clears the item-th run of rows without adapter.
void clear_bare(const Routing& routing, std::int64_t item, void* data, std::size_t element_bytes,
                std::int64_t stride, std::int64_t columns) noexcept;

/// Whether both entries have the same A: then h of a row is the same for both.
inline bool same_a(const AdapterEntry& one, const AdapterEntry& other) noexcept {
  return one.a == other.a && one.rank == other.rank && one.a_row_stride == other.a_row_stride;
}

/// The id of a row: int32 or int64.
inline std::int64_t read_id(const ConstTensorView& ids, std::int64_t row) noexcept {
  const std::int64_t at = row * ids.strides[0];
  return ids.dtype == DType::i64 ? static_cast<const std::int64_t*>(ids.data)[at]
                                 : static_cast<const std::int32_t*>(ids.data)[at];
}

/// The rank of an entry, 0 where A (or B) is missing; never over max_rank.
inline std::int64_t entry_rank(const AdapterEntry& entry, const TableShape& shape) noexcept {
  return entry.rank < 0 ? 0 : entry.rank > shape.max_rank ? shape.max_rank : entry.rank;
}

}  // namespace reference
RANKFOLD_NAMESPACE_END
