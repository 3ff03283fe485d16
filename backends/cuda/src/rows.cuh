// The routing core: which entry of the table does a row use. Kernels see a row's entry, and do not
// know how it was addressed.
#pragma once

#include <cstdint>

#include "rankfold/adapter_table.hpp"
#include "rankfold/addressing.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

/// How rows find entries; copied into the kernel's parameters.
struct Rows {
  /// by_segments: kernels go over the places of the grouped order, and rows in no segment are not
  /// visited; those that must see every row have grouped addressing turned into a slot a row first
  /// (scatter_slots).
  enum Kind : int { by_token = 0, uniform = 1, by_offsets = 2, by_ids = 3, by_segments = 4 };
  int kind = by_token;
  int num_slots = 0;
  int num_experts = 1;
  int uniform_slot = -1;
  int top_k = 1;
  int expert_base = 0;
  int own_x = 1;
  std::int64_t slot_stride = 0;
  int num_slices = 1;
  std::int64_t num_tokens = 0;
  const std::int32_t* token_slots = nullptr;
  const std::int32_t* expert_offsets = nullptr;
  const std::int32_t* row_tokens = nullptr;
  const std::int32_t* expert_ids = nullptr;
  const std::int32_t* order = nullptr;
  const std::int32_t* segment_offsets = nullptr;
  const std::int32_t* segment_slots = nullptr;
  const std::int32_t* num_segments = nullptr;
  std::int64_t max_segments = 0;
  const float* row_weights = nullptr;
  const float* token_weights = nullptr;
};

/// What a row uses. entry -1: nothing, and the rest says nothing.
struct Route {
  std::int64_t entry = -1;  ///< of the first slice
  std::int64_t x_row = 0;
  std::int64_t token = 0;
};

#if defined(__CUDACC__)

// Device data is never trusted: whatever the arrays hold, only entries of the table and tokens of
// the batch come out.
__device__ inline Route route(const Rows& rows, std::int64_t row) {
  Route result;
  std::int64_t expert = 0;
  std::int64_t token = row;
  if (rows.kind == Rows::by_offsets) {
    // The last expert whose offset is not past the row.
    int low = 0, high = rows.num_experts + 1;
    while (low < high) {
      const int middle = (low + high) / 2;
      if (rows.expert_offsets[middle] <= row) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    expert = low - 1;
    if (expert < 0 || expert >= rows.num_experts) return result;
    if (rows.row_tokens != nullptr) {
      token = rows.row_tokens[row];
      if (token < 0 || token >= rows.num_tokens) return result;
    }
  } else if (rows.kind == Rows::by_ids) {
    expert = static_cast<std::int64_t>(rows.expert_ids[row]) - rows.expert_base;
    if (expert < 0 || expert >= rows.num_experts) return result;
    token = row / rows.top_k;
  }
  std::int64_t slot = 0;
  if (rows.kind == Rows::uniform) {
    slot = rows.uniform_slot;
  } else if (rows.token_slots != nullptr) {
    slot = rows.token_slots[token];
  }
  if (slot < 0 || slot >= rows.num_slots) return result;
  result.entry = slot * rows.slot_stride + expert * rows.num_slices;
  result.token = token;
  result.x_row = rows.own_x ? row : token;
  return result;
}

/// The row at place i of a call's rows and what it uses: place and row are one but for by_segments.
__device__ inline Route locate(const Rows& rows, std::int64_t i, std::int64_t* row) {
  *row = i;
  if (rows.kind != Rows::by_segments) return route(rows, i);
  Route result;
  const std::int64_t given = *rows.num_segments;
  const std::int64_t count = given < 0 ? 0 : given > rows.max_segments ? rows.max_segments : given;
  if (count == 0 || i < rows.segment_offsets[0] || i >= rows.segment_offsets[count]) return result;
  // The last segment that does not begin past the place; empty ones before it begin there, too.
  std::int64_t low = 0, high = count;
  while (low < high) {
    const std::int64_t middle = (low + high) / 2;
    if (rows.segment_offsets[middle] <= i) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  const std::int32_t slot = rows.segment_slots[low - 1];
  const std::int64_t at = rows.order[i];
  if (slot < 0 || slot >= rows.num_slots || at < 0 || at >= rows.num_tokens) return result;
  *row = at;
  result.entry = slot * rows.slot_stride;
  result.token = at;
  result.x_row = at;
  return result;
}

/// f without the scaling, multiplied in the order of the contract.
__device__ inline float strength(const Rows& rows, const Route& found, std::int64_t row,
                                 float scaling) {
  float f = scaling;
  if (rows.row_weights != nullptr) f *= rows.row_weights[row];
  if (rows.token_weights != nullptr) f *= rows.token_weights[found.token];
  return f;
}

__device__ inline int bounded_rank(const AdapterEntry& entry, int max_rank) {
  return entry.rank < 0 ? 0 : entry.rank > max_rank ? max_rank : entry.rank;
}

#endif  // __CUDACC__

}  // namespace cuda
RANKFOLD_NAMESPACE_END
