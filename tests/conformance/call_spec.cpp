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
constexpr std::uint64_t kRowWeightStream = 0x3e17;

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

std::vector<float> make_weights(const CallSpec& spec, std::uint64_t seed, std::uint64_t stream,
                                std::int64_t count) {
  constexpr float kExact[] = {1.0f, 0.5f, 2.0f, 0.25f};
  std::vector<float> weights;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto at = static_cast<std::uint64_t>(i);
    weights.push_back(
        spec.fill == Fill::exact
            ? kExact[testing::random_bits(seed, stream, at) % 4]
            : static_cast<float>(1.0 + 0.75 * testing::random_unit(seed, stream, at)));
  }
  return weights;
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
  if (spec.token_weights) {
    addressing.token_weights = make_weights(spec, seed, kWeightStream, spec.tokens);
  }
}

void make_experts(const CallSpec& spec, std::uint64_t seed, HostCall& call) {
  auto& experts = call.experts;
  testing::RouterSpec router;
  router.mode = spec.mode;
  router.routing = spec.routing;
  router.num_tokens = spec.tokens;
  router.top_k = spec.top_k;
  router.num_experts = spec.num_experts;
  router.global_experts = spec.global_experts;
  router.expert_base = spec.expert_base;
  router.seed = seed;
  testing::route_tokens(router, experts);
  experts.x_rows = spec.x_rows;
  experts.row_begin = spec.row_begin;
  experts.row_end = spec.row_end;
  experts.bound_rows = spec.bound_rows;
  if (spec.row_weights) {
    experts.row_weights = make_weights(spec, seed, kRowWeightStream, experts.num_rows);
  }
  if (!spec.null_slots) return;
  call.addressing.token_slots.clear();
  // Null where nothing needs the token of a row.
  if (spec.x_rows == XRows::own && !spec.token_weights) experts.row_tokens.clear();
}

void make_entries(const CallSpec& spec, HostCall& call) {
  const TableShape& shape = call.shape;
  const auto slices = static_cast<std::size_t>(shape.num_slices);
  const std::int64_t limit = spec.in_limit > 0 ? spec.in_limit : spec.in;
  const auto experts = static_cast<std::size_t>(shape.num_experts);
  call.entries.resize(static_cast<std::size_t>(shape.num_slots) * experts * slices);
  for (std::size_t e = 0; e < call.entries.size(); ++e) {
    HostEntry& entry = call.entries[e];
    entry.rank = spec.ranks[e % spec.ranks.size()];
    entry.scaling = spec.scalings[e % spec.scalings.size()];
    if (entry.rank == 0) continue;
    const std::size_t slice = e % slices;
    if (testing::uses_a(spec.op)) {
      const std::size_t expert = e / slices % experts;
      if (spec.shared_a == SharedA::slices && slice > 0) {
        entry.shared_a = static_cast<std::int64_t>(e - slice);
      } else if (spec.shared_a == SharedA::experts && expert > 0) {
        entry.shared_a = static_cast<std::int64_t>(e - expert * slices);
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

// Embeddings have neither dx nor bias.
std::uint32_t outputs_of(const CallSpec& spec) {
  return spec.op == Op::backward ? spec.outputs : spec.outputs & ~(kOutputDx | kOutputDbias);
}

void make_gradients(const CallSpec& spec, HostCall& call) {
  call.wants_da = (outputs_of(spec) & kOutputDa) != 0;
  call.wants_db = (outputs_of(spec) & kOutputDb) != 0;
  call.wants_dbias = (outputs_of(spec) & kOutputDbias) != 0;
  call.gradient_mode = spec.gradient_mode;
  call.gradients.resize(call.entries.size());
  for (std::size_t e = 0; e < call.entries.size(); ++e) {
    const HostEntry& entry = call.entries[e];
    testing::HostGradient& gradient = call.gradients[e];
    if (entry.rank == 0) continue;
    gradient.shared_da = entry.shared_a;
    if (call.wants_da && entry.shared_a < 0) {
      gradient.da = HostTensor(DType::f32, {entry.rank, spec.in});
    }
    if (call.wants_db) gradient.db = HostTensor(DType::f32, entry.b.sizes);
    if (call.wants_dbias) gradient.dbias = HostTensor(DType::f32, {entry.b.rows()});
  }
}

}  // namespace

HostCall build_skeleton(const CallSpec& spec, std::uint64_t seed) {
  HostCall call;
  call.op = spec.op;
  call.options = spec.options;
  TableShape& shape = call.shape;
  shape.num_slots = spec.num_slots;
  shape.num_experts = testing::is_experts(spec.op) ? spec.num_experts : 1;
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
  if (testing::is_experts(spec.op)) make_experts(spec, seed, call);
  make_entries(spec, call);

  const std::int64_t rows = testing::num_rows(call);
  const std::int64_t h_columns = std::int64_t{shape.num_slices} * shape.max_rank;
  const std::int64_t y_columns = total_out(shape);
  const auto stride = [](std::int64_t columns, std::int64_t gap) {
    return gap > 0 ? columns + gap : -1;
  };
  const bool backward = testing::is_backward(spec.op);
  if (testing::has_x(spec.op) && (!backward || spec.gives_x)) {
    const bool of_tokens = testing::is_experts(spec.op) && spec.x_rows == XRows::token;
    call.x = HostTensor(spec.x, {spec.broadcast_x ? 1 : of_tokens ? spec.tokens : rows, spec.in});
    call.x_row_stride = spec.broadcast_x ? 0 : stride(spec.in, spec.x_gap);
  }
  if (testing::has_ids(spec.op)) call.ids = HostTensor(spec.ids, {spec.tokens});
  if (testing::makes_h(spec.op) || (testing::reads_h(spec.op) && (!backward || spec.gives_h))) {
    call.h = HostTensor(DType::f32, {rows, h_columns});
    call.h_row_stride = stride(h_columns, spec.h_gap);
  }
  if (testing::makes_y(spec.op)) call.y = HostTensor(spec.y, {rows, y_columns});
  if (backward) {
    call.dy = HostTensor(spec.y, {rows, y_columns});
    if ((outputs_of(spec) & kOutputDx) != 0) call.dx = HostTensor(spec.dx, {rows, spec.in});
    if ((spec.outputs & kOutputDs) != 0) call.ds = HostTensor(DType::f32, {rows, h_columns});
    make_gradients(spec, call);
  }
  if (call.y.given() || backward) call.y_row_stride = stride(y_columns, spec.y_gap);
  if (call.dx.given()) call.dx_row_stride = stride(spec.in, spec.dx_gap);
  if (call.ds.given()) call.ds_row_stride = stride(h_columns, spec.h_gap);
  call.dropout = spec.dropout;
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
  const bool experts = testing::is_experts(spec.op);
  const std::int64_t rows = experts ? spec.tokens * spec.top_k : spec.tokens;
  const double entries = static_cast<double>(spec.num_slots) * (experts ? spec.num_experts : 1);
  const double products = testing::is_backward(spec.op) ? 3 : 1;
  return products * static_cast<double>(rows) *
             (static_cast<double>(spec.in) * static_cast<double>(spec.out.size()) + out) * rank +
         entries * rank * (static_cast<double>(spec.in) + out);
}

}  // namespace rankfold::conformance
