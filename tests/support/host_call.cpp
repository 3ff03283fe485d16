#include "host_call.hpp"

#include <algorithm>

namespace rankfold::testing {

std::vector<std::int32_t> row_slots(const HostCall& call) {
  const HostAddressing& addressing = call.addressing;
  std::vector<std::int32_t> slots(static_cast<std::size_t>(addressing.num_tokens), -1);
  if (addressing.mode == AddressingMode::uniform) {
    std::fill(slots.begin(), slots.end(), addressing.uniform_slot);
  } else if (addressing.mode == AddressingMode::tokens ||
             addressing.grouping == Grouping::by_backend) {
    slots = addressing.token_slots;
  } else {
    for (std::int32_t segment = 0; segment < addressing.num_segments; ++segment) {
      const auto s = static_cast<std::size_t>(segment);
      for (std::int32_t i = addressing.segment_offsets[s]; i < addressing.segment_offsets[s + 1];
           ++i) {
        const std::int32_t row = addressing.token_order[static_cast<std::size_t>(i)];
        slots[static_cast<std::size_t>(row)] = addressing.segment_slots[s];
      }
    }
  }
  for (std::int32_t& slot : slots) {
    if (slot < 0 || slot >= call.shape.num_slots) slot = -1;
  }
  return slots;
}

void group_on_host(HostAddressing& addressing, std::int32_t num_slots, std::int64_t max_segments,
                   std::int32_t garbage) {
  const std::int64_t tokens = addressing.num_tokens;
  max_segments = std::max(max_segments, std::min<std::int64_t>(tokens, num_slots));
  addressing.token_order.clear();
  addressing.segment_offsets.assign(1, 0);
  addressing.segment_slots.clear();
  for (std::int32_t slot = 0; slot < num_slots; ++slot) {
    const std::size_t before = addressing.token_order.size();
    for (std::int64_t row = 0; row < tokens; ++row) {
      if (addressing.token_slots[static_cast<std::size_t>(row)] == slot) {
        addressing.token_order.push_back(static_cast<std::int32_t>(row));
      }
    }
    if (addressing.token_order.size() == before) continue;
    addressing.segment_slots.push_back(slot);
    addressing.segment_offsets.push_back(static_cast<std::int32_t>(addressing.token_order.size()));
  }
  addressing.num_segments = static_cast<std::int32_t>(addressing.segment_slots.size());
  addressing.token_order.resize(static_cast<std::size_t>(tokens), garbage);
  addressing.segment_slots.resize(static_cast<std::size_t>(max_segments), garbage);
  addressing.segment_offsets.resize(static_cast<std::size_t>(max_segments) + 1, garbage);
}

std::string entry_name(const HostCall& call, std::size_t entry) {
  const auto index = static_cast<std::int64_t>(entry);
  const std::int64_t slices = call.shape.num_slices, experts = call.shape.num_experts;
  std::string name = std::to_string(index / slices / experts);
  if (is_experts(call.op)) name += "." + std::to_string(index / slices % experts);
  return name + "." + std::to_string(index % slices);
}

std::int64_t num_rows(const HostCall& call) noexcept {
  return is_experts(call.op) ? call.experts.num_rows : call.addressing.num_tokens;
}

bool is_experts(Op op) noexcept {
  return op == Op::shrink_experts || op == Op::expand_experts || op == Op::apply_experts;
}
bool is_backward(Op op) noexcept { return op == Op::backward || op == Op::backward_embedding; }
bool has_x(Op op) noexcept {
  return op == Op::shrink || op == Op::apply_linear || op == Op::shrink_experts ||
         op == Op::apply_experts || op == Op::forward || op == Op::backward;
}
bool has_ids(Op op) noexcept {
  return op == Op::gather_shrink || op == Op::apply_embedding || op == Op::forward_embedding ||
         op == Op::backward_embedding;
}
bool makes_h(Op op) noexcept {
  return op == Op::shrink || op == Op::gather_shrink || op == Op::shrink_experts ||
         op == Op::forward || op == Op::forward_embedding;
}
bool makes_y(Op op) noexcept {
  return op == Op::expand || op == Op::apply_linear || op == Op::apply_embedding ||
         op == Op::expand_experts || op == Op::apply_experts || op == Op::forward ||
         op == Op::forward_embedding;
}
bool reads_h(Op op) noexcept {
  return op == Op::expand || op == Op::expand_experts || is_backward(op);
}
bool uses_a(Op op) noexcept { return has_x(op) || has_ids(op); }
bool uses_b(Op op) noexcept { return makes_y(op) || is_backward(op); }
bool uses_bias(Op op) noexcept {
  return op == Op::expand || op == Op::apply_linear || op == Op::forward;
}

}  // namespace rankfold::testing
