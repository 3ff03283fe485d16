// A call in a few words, and the HostCall that they mean.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "expert_router.hpp"
#include "fill.hpp"
#include "host_call.hpp"
#include "oracle.hpp"
#include "rankfold/problem.hpp"

namespace rankfold::conformance {

/// Which slots the rows have, where token_slots are not given.
enum class SlotPattern {
  mixed,         ///< all slots and -1, in no order
  round_robin,   ///< 0, 1, ..., num_slots - 1, 0, ...: many adapters
  one,           ///< slot 0 for all
  none,          ///< -1 for all
  sorted,        ///< ascending
  out_of_range,  ///< slots among -1, -7, num_slots, INT32_MIN, INT32_MAX
};

/// How the addressing is given to the call.
enum class AddressingForm { tokens, grouped_by_host, grouped_by_backend, uniform };

/// Which entries use one A, at one address. In backward they share one da as well.
enum class SharedA { none, slices, experts };

struct CallSpec {
  Op op = Op::apply_linear;
  testing::Fill fill = testing::Fill::exact;
  DType x = DType::bf16;
  DType y = DType::bf16;
  DType a = DType::bf16;
  DType b = DType::bf16;
  DType ids = DType::i32;

  std::int64_t tokens = 7;
  std::int64_t in = 64;
  std::vector<std::int64_t> out = {48};  ///< a slice each
  std::int32_t num_slots = 3;
  std::vector<std::int32_t> ranks = {8};  ///< by number of the entry, repeated
  std::vector<float> scalings = {1.0f, 0.5f, 2.0f, 0.0625f, 0.25f};  ///< likewise
  std::int32_t max_rank = 0;                                         ///< 0: the largest rank
  std::int64_t in_limit = 0;  ///< embedding: columns of A; 0: in

  SlotPattern slots = SlotPattern::mixed;
  std::vector<std::int32_t> token_slots;  ///< given ones, instead of the pattern
  AddressingForm form = AddressingForm::tokens;
  std::int32_t uniform_slot = 1;
  std::int64_t active_rows_bound = -1;
  bool token_weights = false;
  bool bias = false;
  SharedA shared_a = SharedA::none;  ///< slices: of a slot and expert; experts: of a slot and slice

  // Of operations of experts: rows are `tokens` * top_k.
  std::int32_t num_experts = 5;
  std::int32_t global_experts = 0;  ///< of all shards; 0: expert_base + num_experts
  std::int32_t expert_base = 0;
  std::int32_t top_k = 2;
  ExpertMode mode = ExpertMode::grouped;
  XRows x_rows = XRows::own;
  testing::Routing routing = testing::Routing::skewed;
  bool null_slots = false;  ///< slot 0 for all
  bool row_weights = false;
  std::int64_t row_begin = 0;
  std::int64_t row_end = -1;
  std::int64_t bound_rows = 0;

  // Of forward, backward and their embedding variants.
  Dropout dropout;
  std::uint32_t outputs = kOutputDx | kOutputDa | kOutputDb;  ///< bits of Outputs
  bool gives_x = true;
  bool gives_h = false;  ///< backward: h is given, not computed again
  DType dx = DType::bf16;
  YMode gradient_mode = YMode::overwrite;

  CallOptions options;
  bool sweep = true;  ///< also with every strategy

  std::int64_t x_gap = 0;  ///< elements between rows
  std::int64_t h_gap = 0;  ///< and of ds
  std::int64_t y_gap = 0;  ///< and of dy
  std::int64_t dx_gap = 0;
  std::int64_t a_gap = 0;
  std::int64_t b_gap = 0;
  std::int64_t slot_gap = 0;
  std::int64_t misalignment = 0;
  bool broadcast_x = false;  ///< row stride 0
  double x_scale = 1.0;

  /// Last changes, before the tensors are filled and after.
  std::function<void(testing::HostCall&)> adjust;
  std::function<void(testing::HostCall&)> adjust_data;
};

/// A call and its exact answer.
struct FilledCall {
  testing::HostCall call;
  testing::OracleResult oracle;
};

/// The call of a spec. Throws std::logic_error where an exact fill breaks the rules of exact fills.
FilledCall build(const CallSpec& spec, std::uint64_t seed);

/// The same with the tensors still zero.
testing::HostCall build_skeleton(const CallSpec& spec, std::uint64_t seed);

/// Multiply-adds of the call, roughly.
double work_of(const CallSpec& spec);

}  // namespace rankfold::conformance
