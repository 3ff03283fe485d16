// The adapter table of a target: what is host-known, and the device array of entries.
#pragma once

#include <cstdint>
#include <type_traits>

#include "rankfold/dtype.hpp"
#include "rankfold/export.hpp"
#include "rankfold/tensor_view.hpp"

RANKFOLD_NAMESPACE_BEGIN

/// Most slices a target may have.
inline constexpr int kMaxSlices = 16;

/// One (slot, expert, slice) of a table, in device memory. 64 bytes: what every kernel reads stands
/// in the first half. All zero (rank 0): the adapter does not touch this slice.
struct alignas(64) AdapterEntry {
  const void* a = nullptr;      ///< [rank, in], row-major, the table's a_dtype
  const void* b = nullptr;      ///< [out, rank], row-major, the table's b_dtype
  std::int32_t rank = 0;        ///< 0 to max_rank
  float scaling = 0.0f;         ///< alpha / rank, or alpha / sqrt(rank); never folded into weights
  const float* bias = nullptr;  ///< float32 [out of the slice] or null; scaled like the delta
  std::int64_t a_row_stride = 0;  ///< elements between rows of A, at least in_limit or in
  std::int64_t b_row_stride = 0;  ///< elements between rows of B, at least rank
  std::int64_t in_limit = 0;      ///< embedding: columns of A, at most in; linear: equal to in
  std::int64_t reserved = 0;
};
static_assert(sizeof(AdapterEntry) == 64);

/// What the host knows of a target, fixed for the life of its table.
struct TableShape {
  std::int32_t num_slots = 0;
  std::int32_t num_experts = 1;  ///< 1 unless the target is a bank of experts
  std::int32_t num_slices = 1;   ///< at most kMaxSlices
  std::int32_t max_rank = 0;
  std::int64_t in = 0;                ///< width of x; embedding: size of the vocabulary
  std::int64_t out[kMaxSlices] = {};  ///< width of each slice of y
  DType a_dtype = DType::f32;         ///< of all A: f32, f16 or bf16
  DType b_dtype = DType::f32;         ///< of all B: f32, f16 or bf16
};

/// Sum of out[slice]: the columns of y.
constexpr std::int64_t total_out(const TableShape& shape) noexcept {
  std::int64_t sum = 0;
  for (int i = 0; i < shape.num_slices && i < kMaxSlices; ++i) sum += shape.out[i];
  return sum;
}

/// A table as an operation takes it: plain data, owns nothing. The entry of (slot, expert, slice)
/// is entries[slot * slot_stride + expert * num_slices + slice]. Entries stay at one address for
/// the life of the table, so a captured CUDA graph sees a newly published adapter.
struct AdapterTableView {
  TableShape shape = {};
  const AdapterEntry* entries = nullptr;  ///< device memory
  std::int64_t slot_stride = 0;           ///< in entries; at least num_experts * num_slices
  Device device = {};
};
static_assert(std::is_trivially_copyable_v<AdapterTableView> &&
              std::is_standard_layout_v<AdapterTableView>);
static_assert(std::is_trivially_copyable_v<AdapterEntry> &&
              std::is_standard_layout_v<AdapterEntry>);

/// Index of an entry relative to AdapterTableView::entries, in 64 bits.
constexpr std::int64_t entry_index(const AdapterTableView& table, std::int64_t slot,
                                   std::int64_t expert, std::int64_t slice) noexcept {
  return slot * table.slot_stride + expert * table.shape.num_slices + slice;
}

RANKFOLD_NAMESPACE_END
