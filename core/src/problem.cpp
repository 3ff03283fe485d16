#include "rankfold/problem.hpp"

#include <algorithm>

#include "grouping.hpp"

RANKFOLD_NAMESPACE_BEGIN

namespace {

Bounds bounds_of(const LoraAddressing& addressing, const TableShape& shape) noexcept {
  Bounds bounds;
  bounds.rows = addressing.num_tokens;
  bounds.tokens = addressing.num_tokens;
  switch (addressing.mode) {
    case AddressingMode::grouped:
      bounds.segments = addressing.max_segments;
      break;
    case AddressingMode::uniform:
      bounds.segments = std::min<std::int64_t>(addressing.num_tokens, 1);
      break;
    case AddressingMode::tokens:
      bounds.segments = std::min<std::int64_t>(addressing.num_tokens, shape.num_slots);
      break;
  }
  bounds.active_rows = addressing.active_rows_bound < 0
                           ? addressing.num_tokens
                           : std::min(addressing.active_rows_bound, addressing.num_tokens);
  return bounds;
}

Bounds bounds_of(const ExpertAddressing& addressing, const TableShape& shape) noexcept {
  Bounds bounds;
  // The caller's bound, so that a window needs the workspace of its chunk alone.
  bounds.rows = addressing.bound_rows > 0 ? addressing.bound_rows : addressing.num_rows;
  bounds.tokens = addressing.num_tokens;
  bounds.segments =
      std::min(bounds.rows, std::int64_t{shape.num_slots} * std::int64_t{shape.num_experts});
  bounds.active_rows = bounds.rows;
  return bounds;
}

// What every operation on a table has in common.
template <class Args>
Problem common(Op op, const Args& args) noexcept {
  Problem problem;
  problem.op = op;
  problem.shape = args.table.shape;
  problem.bounds = bounds_of(args.addressing, args.table.shape);
  if constexpr (requires { args.addressing.x_rows; }) {
    problem.expert_mode = args.addressing.mode;
    problem.x_rows = args.addressing.x_rows;
  } else {
    problem.addressing = args.addressing.mode;
  }
  if constexpr (requires { args.x; }) problem.x_dtype = args.x.dtype;
  if constexpr (requires { args.ids; }) problem.x_dtype = args.ids.dtype;
  if constexpr (requires { args.y; }) problem.y_dtype = args.y.dtype;
  if constexpr (requires { args.dy; }) problem.y_dtype = args.dy.dtype;
  if constexpr (requires { args.dropout; }) problem.dropout_p = args.dropout.p;
  if constexpr (requires { args.grads; }) {
    if (args.grads.da != nullptr) problem.outputs |= kOutputDa;
    if (args.grads.db != nullptr) problem.outputs |= kOutputDb;
    if (args.grads.dbias != nullptr) problem.outputs |= kOutputDbias;
    if (args.ds.data != nullptr) problem.outputs |= kOutputDs;
    if (args.h.data == nullptr && args.grads.db != nullptr) problem.outputs |= kRecomputesH;
  }
  if constexpr (requires { args.dx; }) {
    if (args.dx.data != nullptr) problem.outputs |= kOutputDx;
  }
  problem.options = args.options;
  return problem;
}

}  // namespace

Problem make_problem(const ShrinkArgs& args) noexcept { return common(Op::shrink, args); }
Problem make_problem(const ExpandArgs& args) noexcept { return common(Op::expand, args); }
Problem make_problem(const ApplyLinearArgs& args) noexcept {
  return common(Op::apply_linear, args);
}
Problem make_problem(const GatherShrinkArgs& args) noexcept {
  return common(Op::gather_shrink, args);
}
Problem make_problem(const ApplyEmbeddingArgs& args) noexcept {
  return common(Op::apply_embedding, args);
}
Problem make_problem(const ShrinkExpertsArgs& args) noexcept {
  return common(Op::shrink_experts, args);
}
Problem make_problem(const ExpandExpertsArgs& args) noexcept {
  return common(Op::expand_experts, args);
}
Problem make_problem(const ApplyExpertsArgs& args) noexcept {
  return common(Op::apply_experts, args);
}
Problem make_problem(const ForwardArgs& args) noexcept { return common(Op::forward, args); }
Problem make_problem(const BackwardArgs& args) noexcept { return common(Op::backward, args); }
Problem make_problem(const ForwardEmbeddingArgs& args) noexcept {
  return common(Op::forward_embedding, args);
}
Problem make_problem(const BackwardEmbeddingArgs& args) noexcept {
  return common(Op::backward_embedding, args);
}
Problem make_problem(const BackwardExpertsArgs& args) noexcept {
  return common(Op::backward_experts, args);
}

RANKFOLD_NAMESPACE_END
