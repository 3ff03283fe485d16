// What the general sums over the rows of a slot have in common: of gradients, and of columns by id.
#pragma once

#include "general.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {
namespace general_sums {

/// The rank that rows compute with: 0 where A or B is missing.
__device__ inline int paired_rank(const AdapterEntry& entry, int max_rank) {
  return entry.a != nullptr && entry.b != nullptr ? bounded_rank(entry, max_rank) : 0;
}

/// What sums over the rows of a slot have in common.
struct SumParams {
  Hidden h;             // ds or h
  const void* rows_of;  // x, ids or dy
  std::int64_t row_stride;
  const AdapterEntry* entries;
  std::int64_t slot_stride;
  SlotRows slot_rows;
  Gradients grads;
  DropoutMask dropout;
  Rows rows;
  std::int64_t out[kMaxSlices];
  std::int64_t in;
  int num_slots;
  int num_slices;
  int max_rank;
  int is_i64;
};

struct Range {
  std::int64_t begin;
  std::int64_t end;
};
__device__ inline Range rows_of_slot(const SumParams& p, int slot) {
  return {slot > 0 ? p.slot_rows.ends[slot - 1] : 0, p.slot_rows.ends[slot]};
}
__device__ inline float* pointer(float* const* array, const SumParams& p, int slot, int slice) {
  return array == nullptr ? nullptr : array[static_cast<std::int64_t>(slot) * p.num_slices + slice];
}
__device__ inline void put(float* target, float sum, bool contributes, YMode mode) {
  if (mode == YMode::overwrite) {
    *target = contributes ? sum : 0.0f;
  } else if (contributes) {
    *target += sum;
  }
}

inline SumParams sum_params(const Hidden& h, const ConstTensorView& rows_of,
                            const AdapterTableView& table, const SlotRows& slot_rows,
                            const Gradients& grads) noexcept {
  SumParams params{};
  params.h = h;
  params.rows_of = rows_of.data;
  params.row_stride = rows_of.strides[0];
  params.is_i64 = rows_of.dtype == DType::i64;
  params.entries = table.entries;
  params.slot_stride = table.slot_stride;
  params.slot_rows = slot_rows;
  params.grads = grads;
  for (int s = 0; s < table.shape.num_slices; ++s) params.out[s] = table.shape.out[s];
  params.in = table.shape.in;
  params.num_slots = table.shape.num_slots;
  params.num_slices = table.shape.num_slices;
  params.max_rank = table.shape.max_rank;
  return params;
}

}  // namespace general_sums
}  // namespace cuda
RANKFOLD_NAMESPACE_END
