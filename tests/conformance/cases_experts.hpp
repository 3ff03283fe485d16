// What the files of cases of experts share.
#pragma once

#include <string>

#include "case.hpp"

namespace rankfold::conformance {

inline constexpr Op kExpertOps[] = {Op::shrink_experts, Op::expand_experts, Op::apply_experts};
inline constexpr ExpertMode kModes[] = {ExpertMode::grouped, ExpertMode::gather};
inline constexpr XRows kXRows[] = {XRows::own, XRows::token};

inline std::string name_of(ExpertMode mode) {
  return mode == ExpertMode::grouped ? "grouped" : "gather";
}
inline std::string name_of(XRows x_rows) { return x_rows == XRows::own ? "own" : "token"; }

// Two slices, ranks that differ between slots, experts and slices, 15 of 30 ranks 0 or odd.
inline CallSpec small_experts(Op op, ExpertMode mode, XRows x_rows) {
  CallSpec spec;
  spec.op = op;
  spec.mode = mode;
  spec.x_rows = x_rows;
  spec.tokens = 19;
  spec.top_k = 3;
  spec.in = 40;
  spec.out = {24, 16};
  spec.num_experts = 6;
  spec.expert_base = mode == ExpertMode::gather ? 2 : 0;
  spec.global_experts = 10;
  spec.num_slots = 3;
  spec.ranks = {8, 3, 16, 0, 8, 1, 5};
  return spec;
}

}  // namespace rankfold::conformance
