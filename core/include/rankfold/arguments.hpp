// The argument structs of the operations. Plain data, made with designated initialisers; copied by
// the call, so only the memory that they point to must outlive it. Fields are only appended.
//
// T = addressing.num_tokens; R = table.shape.max_rank; S = num_slices; in, out as in TableShape.
// Rows may be strided: element stride 1, row stride >= columns; x may have row stride 0
// (broadcast). y, dx, h and grads overlap no input and not the workspace.
#pragma once

#include <cstdint>

#include "rankfold/adapter_table.hpp"
#include "rankfold/addressing.hpp"
#include "rankfold/options.hpp"
#include "rankfold/tensor_view.hpp"

RANKFOLD_NAMESPACE_BEGIN

/// Caller-owned scratch of an operation, 16-byte aligned. Content on entry is arbitrary; one stream
/// at a time. Size: workspace_bytes() or more; null is legal where that is 0.
struct Workspace {
  void* data = nullptr;
  std::uint64_t bytes = 0;
  Device device = {};
};

struct GroupTokensArgs {
  std::int64_t num_tokens = 0;
  std::int32_t num_slots = 0;
  const std::int32_t* token_slots = nullptr;  ///< device int32 [num_tokens]
  void* memory = nullptr;                     ///< device, 16-byte aligned, overwritten
  std::uint64_t memory_bytes = 0;             ///< at least grouping_bytes(num_tokens, num_slots)
  Device device = {};
};

/// h[t, i * R + j] = sum_k x[t, k] A_i[j, k] for j < rank.
struct ShrinkArgs {
  ConstTensorView x = {};  ///< [T, in] f32, f16, bf16
  AdapterTableView table = {};
  LoraAddressing addressing = {};
  TensorView h = {};  ///< float32 [T, S * R]
  CallOptions options = {};
};

/// y[t, i] = round(y[t, i] + f (h[t, i] B_i^T + bias_i)), f = scaling * token_weight.
struct ExpandArgs {
  ConstTensorView h = {};  ///< float32 [T, S * R]
  AdapterTableView table = {};
  LoraAddressing addressing = {};
  TensorView y = {};  ///< [T, sum of out] f32, f16, bf16
  CallOptions options = {};
};

/// shrink, then expand.
struct ApplyLinearArgs {
  ConstTensorView x = {};  ///< [T, in] f32, f16, bf16
  AdapterTableView table = {};
  LoraAddressing addressing = {};
  TensorView y = {};  ///< [T, sum of out]; f32 or x's dtype
  CallOptions options = {};
};

/// h[t, j] = A[j, ids[t]]; an id outside [0, in_limit) contributes nothing (h = 0).
struct GatherShrinkArgs {
  ConstTensorView ids = {};  ///< int32 or int64 [T]
  AdapterTableView table = {};
  LoraAddressing addressing = {};
  TensorView h = {};  ///< float32 [T, S * R]
  CallOptions options = {};
};

/// gather_shrink, then expand. Entries have no bias.
struct ApplyEmbeddingArgs {
  ConstTensorView ids = {};  ///< int32 or int64 [T]
  AdapterTableView table = {};
  LoraAddressing addressing = {};
  TensorView y = {};  ///< [T, sum of out] f32, f16, bf16
  CallOptions options = {};
};

/// shrink by (slot, expert). Rows as ExpertAddressing says; no bias.
struct ShrinkExpertsArgs {
  ConstTensorView x = {};  ///< [num_rows or num_tokens, in]
  AdapterTableView table = {};
  ExpertAddressing addressing = {};
  TensorView h = {};  ///< float32 [num_rows, S * R]
  CallOptions options = {};
};

/// expand by (slot, expert); f = scaling * row_weight * token_weight.
struct ExpandExpertsArgs {
  ConstTensorView h = {};  ///< float32 [num_rows, S * R]
  AdapterTableView table = {};
  ExpertAddressing addressing = {};
  TensorView y = {};  ///< [num_rows, sum of out]
  CallOptions options = {};
};

/// shrink_experts, then expand_experts. The workspace is indexed from the window's start.
struct ApplyExpertsArgs {
  ConstTensorView x = {};  ///< [num_rows or num_tokens, in]
  AdapterTableView table = {};
  ExpertAddressing addressing = {};
  TensorView y = {};  ///< [num_rows, sum of out]; f32 or x's dtype
  CallOptions options = {};
};

/// Dropout on x before A, as PEFT. Philox4x32-10 (Salmon et al., SC 2011): key = seed, counter =
/// (column / 4, row + row_base, slice, 0), lane = column mod 4; an element is kept when its value
/// >= floor(p 2^32), and then multiplied by float32 1 / (1 - p). p = 0 draws nothing.
struct Dropout {
  std::uint64_t seed = 0;
  std::int64_t row_base = 0;
  float p = 0.0f;  ///< in [0, 1)
  std::int32_t reserved = 0;
};

/// apply_linear that also returns h, unscaled, to be saved for backward.
struct ForwardArgs {
  ConstTensorView x = {};  ///< [T, in] f32, f16, bf16
  AdapterTableView table = {};
  LoraAddressing addressing = {};
  TensorView y = {};  ///< [T, sum of out]; f32 or x's dtype
  TensorView h = {};  ///< float32 [T, S * R]
  Dropout dropout = {};
  CallOptions options = {};
};

/// Where gradients go: device arrays of S * num_slots pointers to float32, indexed
/// slot * S + slice; a null array or a null pointer in it leaves that gradient out. Dense:
/// da [rank, in], db [out, rank], dbias [out].
struct Gradients {
  float* const* da = nullptr;
  float* const* db = nullptr;
  float* const* dbias = nullptr;
  /// overwrite: slots without rows get zeros; accumulate: they are untouched.
  YMode mode = YMode::overwrite;
  std::int32_t reserved = 0;
};

/// ds = scaling * dy B; dx += ds A; dA = ds^T x; dB = scaling * dy^T h; dbias = scaling * sum of
/// dy.
struct BackwardArgs {
  ConstTensorView dy = {};  ///< [T, sum of out] f32, f16, bf16
  ConstTensorView x = {};   ///< [T, in]; needed for da, or for db when h is not given
  ConstTensorView h = {};   ///< float32 [T, S * R] from forward; not given: recomputed from x
  AdapterTableView table = {};
  LoraAddressing addressing = {};
  TensorView dx = {};  ///< [T, in]; not given: left out. options.y_mode: accumulate or overwrite
  Gradients grads = {};
  TensorView ds = {};  ///< float32 [T, S * R]; not given: not returned
  Dropout dropout = {};
  CallOptions options = {};
};

/// apply_embedding that also returns h.
struct ForwardEmbeddingArgs {
  ConstTensorView ids = {};  ///< int32 or int64 [T]
  AdapterTableView table = {};
  LoraAddressing addressing = {};
  TensorView y = {};  ///< [T, sum of out]
  TensorView h = {};  ///< float32 [T, S * R]
  CallOptions options = {};
};

/// da (columns by id, added in row order) and db; no dx, no dropout.
struct BackwardEmbeddingArgs {
  ConstTensorView dy = {};   ///< [T, sum of out]
  ConstTensorView ids = {};  ///< int32 or int64 [T]
  ConstTensorView h = {};    ///< float32 [T, S * R]; not given: gathered again
  AdapterTableView table = {};
  LoraAddressing addressing = {};
  Gradients grads = {};
  TensorView ds = {};  ///< float32 [T, S * R]; not given: not returned
  CallOptions options = {};
};

/// backward by (slot, expert, slice); pointer arrays indexed
/// (slot * num_experts + expert) * S + slice. Declared; unsupported for now.
struct BackwardExpertsArgs {
  ConstTensorView dy = {};  ///< [num_rows, sum of out]
  ConstTensorView x = {};   ///< [num_rows or num_tokens, in]
  ConstTensorView h = {};   ///< float32 [num_rows, S * R]
  AdapterTableView table = {};
  ExpertAddressing addressing = {};
  TensorView dx = {};  ///< [num_rows, in]
  Gradients grads = {};
  TensorView ds = {};  ///< float32 [num_rows, S * R]
  CallOptions options = {};
};

RANKFOLD_NAMESPACE_END
