// Problem: the host-known side of a call. Strategies, workspaces and grids are chosen by it alone.
#pragma once

#include <cstddef>
#include <cstdint>

#include "rankfold/adapter_table.hpp"
#include "rankfold/addressing.hpp"
#include "rankfold/arguments.hpp"
#include "rankfold/export.hpp"
#include "rankfold/options.hpp"
#include "rankfold/status.hpp"

RANKFOLD_NAMESPACE_BEGIN

/// Upper bounds of a batch that the host knows.
struct Bounds {
  std::int64_t rows = 0;         ///< num_tokens, or the bound of routed rows
  std::int64_t tokens = 0;       ///< num_tokens
  std::int64_t segments = 0;     ///< grouped: max_segments; else min(rows, num_slots)
  std::int64_t active_rows = 0;  ///< active_rows_bound, or rows where that is unknown
};

/// What a backward is asked for. Bits of Problem::outputs.
enum Outputs : std::uint32_t {
  kOutputDx = 1,
  kOutputDa = 2,
  kOutputDb = 4,
  kOutputDbias = 8,
  kOutputDs = 16,
  kRecomputesH = 32,
};

/// A call without its data. workspace_bytes() is monotone in every bound.
struct Problem {
  Op op = Op::apply_linear;
  AddressingMode addressing = AddressingMode::tokens;  ///< of LoraAddressing
  TableShape shape = {};
  /// Of x (f32, f16, bf16) or of ids (i32, i64); unread where the operation has neither.
  DType x_dtype = DType::f32;
  /// Of y or dy (f32, f16, bf16); f32 or as x in apply_linear, apply_experts and forward.
  DType y_dtype = DType::f32;
  Bounds bounds = {};
  ExpertMode expert_mode = ExpertMode::grouped;
  XRows x_rows = XRows::own;
  std::uint32_t outputs = 0;
  float dropout_p = 0.0f;
  CallOptions options = {};
};

/// The problem of a call: what the free functions ask the backend about.
RANKFOLD_EXPORT Problem make_problem(const ShrinkArgs& args) noexcept;
RANKFOLD_EXPORT Problem make_problem(const ExpandArgs& args) noexcept;
RANKFOLD_EXPORT Problem make_problem(const ApplyLinearArgs& args) noexcept;
RANKFOLD_EXPORT Problem make_problem(const GatherShrinkArgs& args) noexcept;
RANKFOLD_EXPORT Problem make_problem(const ApplyEmbeddingArgs& args) noexcept;
RANKFOLD_EXPORT Problem make_problem(const ShrinkExpertsArgs& args) noexcept;
RANKFOLD_EXPORT Problem make_problem(const ExpandExpertsArgs& args) noexcept;
RANKFOLD_EXPORT Problem make_problem(const ApplyExpertsArgs& args) noexcept;
RANKFOLD_EXPORT Problem make_problem(const ForwardArgs& args) noexcept;
RANKFOLD_EXPORT Problem make_problem(const BackwardArgs& args) noexcept;
RANKFOLD_EXPORT Problem make_problem(const ForwardEmbeddingArgs& args) noexcept;
RANKFOLD_EXPORT Problem make_problem(const BackwardEmbeddingArgs& args) noexcept;
RANKFOLD_EXPORT Problem make_problem(const BackwardExpertsArgs& args) noexcept;

RANKFOLD_NAMESPACE_END
