// Case files of shrink_experts, expand_experts and apply_experts.
#include <algorithm>

#include "case_file_parts.hpp"

namespace rankfold::conformance {

using testing::HostCall;
using testing::HostExperts;

namespace {

// Offsets and tokens that would send a backend outside its arrays are refused here: no operation
// looks at them.
void check_offsets(CaseFields& fields, const HostCall& call) {
  const HostExperts& experts = call.experts;
  if (static_cast<std::int64_t>(experts.expert_offsets.size()) !=
      std::int64_t{call.shape.num_experts} + 1) {
    return fields.fail("tensor expert_offsets has " +
                       std::to_string(experts.expert_offsets.size()) +
                       " elements; it should have one more than the " +
                       std::to_string(call.shape.num_experts) + " experts");
  }
  std::int32_t last = 0;
  for (std::size_t i = 0; i < experts.expert_offsets.size(); ++i) {
    const std::int32_t offset = experts.expert_offsets[i];
    if (offset < last || offset > experts.num_rows) {
      return fields.fail("expert_offsets[" + std::to_string(i) + "] is " + std::to_string(offset) +
                         "; it should be " + std::to_string(last) + " to " +
                         std::to_string(experts.num_rows));
    }
    last = offset;
  }
  if (experts.row_tokens.empty()) return;
  if (static_cast<std::int64_t>(experts.row_tokens.size()) != experts.num_rows) {
    return fields.fail("tensor row_tokens has " + std::to_string(experts.row_tokens.size()) +
                       " elements; it should have one for each of the " +
                       std::to_string(experts.num_rows) + " rows");
  }
  const bool needed = experts.x_rows == XRows::token || !call.addressing.token_slots.empty() ||
                      !call.addressing.token_weights.empty();
  for (std::int32_t row = experts.expert_offsets.front(); needed && row < last; ++row) {
    const std::int32_t token = experts.row_tokens[static_cast<std::size_t>(row)];
    if (token < 0 || token >= call.addressing.num_tokens) {
      return fields.fail("row_tokens[" + std::to_string(row) + "] is " + std::to_string(token) +
                         "; it should be a token, 0 to " +
                         std::to_string(call.addressing.num_tokens - 1));
    }
  }
}

template <class Value>
Value read_word(CaseFields& fields, const std::string& name, const char* first, Value first_value,
                const char* second, Value second_value) {
  const auto text = fields.attribute(name);
  if (text != first && text != second) {
    fields.fail("attribute " + name + " is " + (text ? CaseFields::quote(*text) : "missing") +
                "; it should be " + first + " or " + second);
  }
  return text == second ? second_value : first_value;
}

// Rows of h and y, by whatever the file has of them.
std::int64_t count_rows(CaseFields& fields, const HostCall& call) {
  const HostExperts& experts = call.experts;
  if (experts.mode == ExpertMode::gather) {
    return static_cast<std::int64_t>(experts.expert_ids.size());
  }
  if (call.y.given()) return call.y.rows();
  if (call.h.given()) return call.h.rows();
  if (!experts.row_tokens.empty()) return static_cast<std::int64_t>(experts.row_tokens.size());
  if (call.x_row_stride != 0 || call.x.rows() != 1) return call.x.rows();
  // One row of x stands for as many as the rest of the file has.
  const testing::HostTensor h = fields.tensor("expect.h", 2, {DType::f64, DType::f32});
  if (h.given()) return h.rows();
  return experts.expert_offsets.empty() ? 1 : experts.expert_offsets.back();
}

std::int64_t count_tokens(const HostCall& call, std::int64_t num_weights) {
  const HostExperts& experts = call.experts;
  if (!call.addressing.token_slots.empty()) {
    return static_cast<std::int64_t>(call.addressing.token_slots.size());
  }
  if (num_weights >= 0) return num_weights;
  if (experts.mode == ExpertMode::gather) {
    return experts.top_k > 0 ? experts.num_rows / experts.top_k : 0;
  }
  if (experts.x_rows != XRows::token) return 0;  // nobody asks
  if (call.x_row_stride != 0 || call.x.rows() != 1 || experts.row_tokens.empty()) {
    return call.x.rows();
  }
  // What is past the last offset may be anything: a token too many is none that a row has.
  const std::int32_t last = *std::max_element(experts.row_tokens.begin(), experts.row_tokens.end());
  return std::clamp<std::int64_t>(last, 0, kMaxSize - 1) + 1;
}

void read_routing(CaseFields& fields, HostCall& call) {
  HostExperts& experts = call.experts;
  constexpr std::int64_t kLow = std::numeric_limits<std::int32_t>::min();
  experts.mode =
      read_word(fields, "mode", "grouped", ExpertMode::grouped, "gather", ExpertMode::gather);
  if (testing::has_x(call.op) || fields.attribute("x_rows")) {
    experts.x_rows = read_word(fields, "x_rows", "own", XRows::own, "token", XRows::token);
  }
  const auto base = fields.number("expert_base", kLow, kMaxSize);
  const auto top_k = fields.number("top_k", 0, kMaxSize);
  if (experts.mode == ExpertMode::gather) {
    experts.expert_ids = fields.integers("expert_ids", true);
    if (!top_k) fields.fail("attribute top_k is missing; mode is gather");
    experts.top_k = static_cast<std::int32_t>(top_k.value_or(1));
    experts.expert_base = static_cast<std::int32_t>(base.value_or(0));
  } else {
    experts.expert_offsets = fields.integers("expert_offsets", true);
    experts.row_tokens = fields.integers("row_tokens", experts.x_rows == XRows::token);
  }
  call.addressing.token_slots = fields.integers("token_slots", false);
  experts.num_rows = count_rows(fields, call);
  experts.row_begin = fields.number("row_begin", 0, std::int64_t{1} << 40).value_or(0);
  experts.row_end = fields.number("row_end", -1, std::int64_t{1} << 40).value_or(-1);
  const auto weights = testing::makes_y(call.op) ? fields.tensor("token_weights", 1, {DType::f32})
                                                 : testing::HostTensor{};
  call.addressing.num_tokens = count_tokens(call, weights.given() ? weights.count() : -1);
  if (!testing::makes_y(call.op)) return;
  call.addressing.token_weights = read_weights(fields, "token_weights", call.addressing.num_tokens);
  experts.row_weights = read_weights(fields, "row_weights", experts.num_rows);
}

}  // namespace

void read_experts_operation(CaseFields& fields, HostCall& call) {
  call.shape.in = 1;  // not used without x
  if (testing::has_x(call.op)) {
    call.x = fields.required("x", 2, kActivations);
    call.shape.in = call.x.columns();
  }
  if (testing::reads_h(call.op)) call.h = fields.required("h", 2, {DType::f32});
  if (testing::makes_y(call.op)) call.y = fields.required("y", 2, kActivations);
  read_options(fields, call);
  check_strides(fields, call);
  if (!fields.ok()) return;
  read_routing(fields, call);
  if (!fields.ok()) return;
  const bool own = call.experts.x_rows == XRows::own;
  check_broadcast_row(fields, call, own ? call.experts.num_rows : call.addressing.num_tokens);
  read_entries(fields, call);
  if (fields.ok() && call.experts.mode == ExpertMode::grouped) check_offsets(fields, call);
  if (!fields.ok()) return;
  check_rows(fields, call);
  if (!fields.ok()) return;
  if (testing::makes_h(call.op)) {
    call.h = unwritten(DType::f32, {call.experts.num_rows,
                                    std::int64_t{call.shape.num_slices} * call.shape.max_rank});
    read_expectation(fields, call, "h", call.h);
  } else {
    read_expectation(fields, call, "y", call.y);
  }
}

}  // namespace rankfold::conformance
