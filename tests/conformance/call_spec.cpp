#include "call_spec.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <stdexcept>

namespace rankfold::conformance {

using testing::Fill;
using testing::HostCall;
using testing::HostEntry;
using testing::HostTensor;

namespace {

constexpr std::uint64_t kSlotStream = 0x51075;
constexpr std::uint64_t kWeightStream = 0x3e16;

std::vector<std::int32_t> make_slots(const CallSpec& spec, std::uint64_t seed) {
  if (!spec.token_slots.empty()) return spec.token_slots;
  std::vector<std::int32_t> slots(static_cast<std::size_t>(spec.tokens), -1);
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const auto at = static_cast<std::int32_t>(i);
    switch (spec.slots) {
      case SlotPattern::mixed:
      case SlotPattern::sorted:
        slots[i] = static_cast<std::int32_t>(
            testing::random_between(seed, kSlotStream, i, -1, spec.num_slots - 1));
        break;
      case SlotPattern::round_robin:
        slots[i] = at % spec.num_slots;
        break;
      case SlotPattern::one:
        slots[i] = 0;
        break;
      case SlotPattern::none:
        slots[i] = -1;
        break;
      case SlotPattern::out_of_range: {
        const std::int32_t values[] = {0,
                                       -1,
                                       1,
                                       -7,
                                       spec.num_slots,
                                       std::numeric_limits<std::int32_t>::min(),
                                       spec.num_slots - 1,
                                       std::numeric_limits<std::int32_t>::max()};
        slots[i] = values[i % std::size(values)];
        break;
      }
    }
  }
  if (spec.slots == SlotPattern::sorted) std::sort(slots.begin(), slots.end());
  return slots;
}

void make_addressing(const CallSpec& spec, std::uint64_t seed, HostCall& call) {
  auto& addressing = call.addressing;
  addressing.num_tokens = spec.tokens;
  addressing.token_slots = make_slots(spec, seed);
  addressing.active_rows_bound = spec.active_rows_bound;
  switch (spec.form) {
    case AddressingForm::tokens:
      break;
    case AddressingForm::uniform:
      addressing.mode = AddressingMode::uniform;
      addressing.uniform_slot = spec.uniform_slot;
      break;
    case AddressingForm::grouped_by_host:
      addressing.mode = AddressingMode::grouped;
      testing::group_on_host(addressing, spec.num_slots);
      break;
    case AddressingForm::grouped_by_backend:
      addressing.mode = AddressingMode::grouped;
      addressing.grouping = testing::Grouping::by_backend;
      break;
  }
  if (!spec.token_weights) return;
  for (std::int64_t i = 0; i < spec.tokens; ++i) {
    const auto at = static_cast<std::uint64_t>(i);
    const float exact[] = {1.0f, 0.5f, 2.0f, 0.25f};
    addressing.token_weights.push_back(
        spec.fill == Fill::exact
            ? exact[testing::random_bits(seed, kWeightStream, at) % 4]
            : static_cast<float>(1.0 + 0.75 * testing::random_unit(seed, kWeightStream, at)));
  }
}

void make_entries(const CallSpec& spec, HostCall& call) {
  const TableShape& shape = call.shape;
  const auto slices = static_cast<std::size_t>(shape.num_slices);
  const std::int64_t limit = spec.in_limit > 0 ? spec.in_limit : spec.in;
  call.entries.resize(static_cast<std::size_t>(shape.num_slots) * slices);
  for (std::size_t e = 0; e < call.entries.size(); ++e) {
    HostEntry& entry = call.entries[e];
    entry.rank = spec.ranks[e % spec.ranks.size()];
    entry.scaling = spec.scalings[e % spec.scalings.size()];
    if (entry.rank == 0) continue;
    const std::size_t slice = e % slices;
    if (testing::uses_a(spec.op)) {
      if (spec.shared_a && slice > 0) {
        entry.shared_a = static_cast<std::int64_t>(e - slice);
      } else {
        entry.a = HostTensor(spec.a, {entry.rank, limit});
      }
    }
    if (testing::uses_b(spec.op)) {
      entry.b = HostTensor(spec.b, {shape.out[slice], entry.rank});
      if (spec.bias) entry.bias = HostTensor(DType::f32, {shape.out[slice]});
    }
  }
}

}  // namespace

HostCall build_skeleton(const CallSpec& spec, std::uint64_t seed) {
  HostCall call;
  call.op = spec.op;
  call.options = spec.options;
  TableShape& shape = call.shape;
  shape.num_slots = spec.num_slots;
  shape.num_slices = static_cast<std::int32_t>(spec.out.size());
  shape.max_rank =
      spec.max_rank > 0 ? spec.max_rank : *std::max_element(spec.ranks.begin(), spec.ranks.end());
  shape.max_rank = std::max(shape.max_rank, 1);
  shape.in = spec.in;
  std::copy(spec.out.begin(), spec.out.end(), shape.out);
  shape.a_dtype = spec.a;
  shape.b_dtype = spec.b;
  make_addressing(spec, seed, call);
  if (spec.op == Op::group_tokens) return call;
  make_entries(spec, call);

  const std::int64_t h_columns = std::int64_t{shape.num_slices} * shape.max_rank;
  const std::int64_t y_columns = total_out(shape);
  const auto stride = [](std::int64_t columns, std::int64_t gap) {
    return gap > 0 ? columns + gap : -1;
  };
  if (testing::has_x(spec.op)) {
    call.x = HostTensor(spec.x, {spec.broadcast_x ? 1 : spec.tokens, spec.in});
    call.x_row_stride = spec.broadcast_x ? 0 : stride(spec.in, spec.x_gap);
  }
  if (testing::has_ids(spec.op)) call.ids = HostTensor(spec.ids, {spec.tokens});
  if (testing::makes_h(spec.op) || spec.op == Op::expand) {
    call.h = HostTensor(DType::f32, {spec.tokens, h_columns});
    call.h_row_stride = stride(h_columns, spec.h_gap);
  }
  if (testing::makes_y(spec.op)) {
    call.y = HostTensor(spec.y, {spec.tokens, y_columns});
    call.y_row_stride = stride(y_columns, spec.y_gap);
  }
  call.a_padding = spec.a_gap;
  call.b_padding = spec.b_gap;
  call.slot_padding = spec.slot_gap;
  call.misalignment = spec.misalignment;
  call.tolerance = spec.fill == Fill::exact ? testing::Tolerance::exact : testing::Tolerance::spec;
  if (spec.adjust) spec.adjust(call);
  return call;
}

FilledCall build(const CallSpec& spec, std::uint64_t seed) {
  FilledCall filled{build_skeleton(spec, seed), {}};
  filled.oracle = testing::fill_call(filled.call, spec.fill, seed, spec.x_scale);
  if (spec.adjust_data) {
    spec.adjust_data(filled.call);
    filled.oracle = testing::compute(filled.call);
  }
  if (spec.fill == Fill::exact) {
    const std::string broken = testing::broken_exact_condition(filled.call, filled.oracle);
    if (!broken.empty()) throw std::logic_error("the exact fill of this case is none: " + broken);
  }
  return filled;
}

double work_of(const CallSpec& spec) {
  const double rank = std::accumulate(spec.ranks.begin(), spec.ranks.end(), 0.0) /
                      static_cast<double>(spec.ranks.size());
  const double out = std::accumulate(spec.out.begin(), spec.out.end(), 0.0);
  return static_cast<double>(spec.tokens) *
             (static_cast<double>(spec.in) * static_cast<double>(spec.out.size()) + out) * rank +
         static_cast<double>(spec.num_slots) * rank * (static_cast<double>(spec.in) + out);
}

}  // namespace rankfold::conformance
