// The adapter table and the addressing of a case file.
#include <algorithm>

#include "case_file_parts.hpp"

namespace rankfold::conformance {

using testing::HostCall;
using testing::HostEntry;
using testing::HostTensor;

namespace {

// Row numbers and offsets that would send a backend outside its arrays are refused here: no
// operation looks at them.
void check_segments(CaseFields& fields, const testing::HostAddressing& addressing) {
  if (!fields.ok()) return;
  const std::int64_t tokens = addressing.num_tokens;
  if (static_cast<std::int64_t>(addressing.token_order.size()) != tokens) {
    fields.fail("tensor token_order has " + std::to_string(addressing.token_order.size()) +
                " elements; it should have one for each of the " + std::to_string(tokens) +
                " rows");
  }
  if (addressing.segment_offsets.size() != addressing.segment_slots.size() + 1) {
    fields.fail("tensor segment_offsets has " + std::to_string(addressing.segment_offsets.size()) +
                " elements; it should have one more than segment_slots");
  }
  const auto count = static_cast<std::int64_t>(addressing.segment_slots.size());
  if (addressing.num_segments < 0 || addressing.num_segments > count) {
    fields.fail("tensor num_segments holds " + std::to_string(addressing.num_segments) +
                "; it should be 0 to " + std::to_string(count));
  }
  if (!fields.ok()) return;
  std::int32_t last = 0;
  for (std::int32_t i = 0; i <= addressing.num_segments; ++i) {
    const std::int32_t offset = addressing.segment_offsets[static_cast<std::size_t>(i)];
    if (offset < last || offset > tokens) {
      fields.fail("segment_offsets[" + std::to_string(i) + "] is " + std::to_string(offset) +
                  "; it should be " + std::to_string(last) + " to " + std::to_string(tokens));
      return;
    }
    last = offset;
  }
  std::vector<bool> seen(static_cast<std::size_t>(tokens), false);
  for (std::int32_t i = addressing.segment_offsets.front(); i < last; ++i) {
    const std::int32_t row = addressing.token_order[static_cast<std::size_t>(i)];
    if (row < 0 || row >= tokens || seen[static_cast<std::size_t>(row)]) {
      fields.fail("token_order[" + std::to_string(i) + "] is " + std::to_string(row) +
                  "; it should be a row that stands nowhere else, 0 to " +
                  std::to_string(tokens - 1));
      return;
    }
    seen[static_cast<std::size_t>(row)] = true;
  }
}

// All of one kind have one dtype: it is the table's.
void set_dtype(CaseFields& fields, const std::string& name, const HostTensor& tensor, bool& known,
               DType& dtype) {
  if (!tensor.given()) return;
  if (known && dtype != tensor.dtype) {
    fields.fail("tensor " + name +
                " has another dtype than the first of its kind; all of a table "
                "should have one");
  }
  known = true;
  dtype = tensor.dtype;
}

}  // namespace

std::vector<float> read_weights(CaseFields& fields, const std::string& name, std::int64_t count) {
  const HostTensor weights = fields.tensor(name, 1, {DType::f32});
  if (weights.given() && weights.count() != count) {
    fields.fail("tensor " + name + " has shape " + shape_text(weights) + "; it should have [" +
                std::to_string(count) + "]");
  }
  std::vector<float> values;
  for (std::int64_t i = 0; i < weights.count(); ++i) {
    values.push_back(static_cast<float>(weights.get(i)));
  }
  return values;
}

void read_addressing(CaseFields& fields, HostCall& call, std::int64_t rows) {
  auto& addressing = call.addressing;
  const std::string mode = fields.attribute("addressing").value_or("tokens");
  addressing.num_tokens = rows;
  addressing.token_slots = fields.integers("token_slots", mode == "tokens");
  if (mode == "tokens") {
    addressing.num_tokens = static_cast<std::int64_t>(addressing.token_slots.size());
  } else if (mode == "uniform") {
    addressing.mode = AddressingMode::uniform;
    constexpr std::int64_t kLow = std::numeric_limits<std::int32_t>::min();
    const auto slot = fields.number("uniform_slot", kLow, kMaxSize);
    if (!slot) fields.fail("attribute uniform_slot is missing; addressing is uniform");
    addressing.uniform_slot = static_cast<std::int32_t>(slot.value_or(-1));
  } else if (mode == "grouped") {
    addressing.mode = AddressingMode::grouped;
    addressing.token_order = fields.integers("token_order", true);
    addressing.segment_offsets = fields.integers("segment_offsets", true);
    addressing.segment_slots = fields.integers("segment_slots", true);
    const auto num_segments = fields.integers("num_segments", true);
    if (num_segments.size() != 1) {
      fields.fail("tensor num_segments has " + std::to_string(num_segments.size()) +
                  " elements; it should have 1");
    }
    addressing.num_segments = num_segments.empty() ? 0 : num_segments.front();
    check_segments(fields, addressing);
  } else {
    fields.fail("attribute addressing is " + CaseFields::quote(mode) +
                "; it should be tokens, grouped or uniform");
  }
  if (testing::makes_y(call.op) || testing::is_backward(call.op)) {
    addressing.token_weights = read_weights(fields, "token_weights", addressing.num_tokens);
  }
}

void read_entries(CaseFields& fields, HostCall& call) {
  TableShape& shape = call.shape;
  const bool experts = testing::is_experts(call.op), ids = testing::has_ids(call.op);
  const HostTensor scalings = fields.required("scalings", experts ? 3 : 2, {DType::f32});
  if (!fields.ok()) return;
  const std::int64_t slices = scalings.sizes.back();
  const bool too_many = scalings.sizes[0] > kMaxSize || scalings.sizes[1] > kMaxSize;
  if (too_many || slices < 1 || slices > kMaxSlices || (experts && scalings.sizes[1] < 1)) {
    fields.fail("tensor scalings has shape " + shape_text(scalings) + "; it should have [slots, " +
                (experts ? "experts, " : "") + "slices] with 1 to 16 slices");
    return;
  }
  if (experts && scalings.sizes[1] > kMaxGroupedSlots) {
    fields.fail("tensor scalings has shape " + shape_text(scalings) + "; it should have at most " +
                std::to_string(kMaxGroupedSlots) + " experts");
    return;
  }
  shape.num_slots = static_cast<std::int32_t>(scalings.sizes[0]);
  shape.num_experts = experts ? static_cast<std::int32_t>(scalings.sizes[1]) : 1;
  shape.num_slices = static_cast<std::int32_t>(slices);
  const bool uses_out = !ids && testing::uses_b(call.op);
  const auto widths =
      uses_out || experts ? fields.numbers("out_slices") : std::vector<std::int64_t>{};
  if (uses_out || !widths.empty()) {
    if (static_cast<std::int64_t>(widths.size()) != shape.num_slices) {
      fields.fail("attribute out_slices has " + std::to_string(widths.size()) +
                  " numbers; it should have one for each of the " +
                  std::to_string(shape.num_slices) + " slices");
      return;
    }
    std::copy(widths.begin(), widths.end(), shape.out);
  } else {
    std::fill_n(shape.out, shape.num_slices, 1);
    if (call.y.given() || call.dy.given()) {
      shape.out[0] = (call.y.given() ? call.y : call.dy).columns();
    }
  }
  if (ids && shape.num_slices != 1) {
    fields.fail("tensor scalings has shape " + shape_text(scalings) + "; an embedding has 1 slice");
    return;
  }

  bool known_a = false, known_b = false;
  std::int32_t largest = 0;
  call.entries.resize(static_cast<std::size_t>(scalings.count()));
  for (std::int64_t e = 0; e < scalings.count() && fields.ok(); ++e) {
    HostEntry& entry = call.entries[static_cast<std::size_t>(e)];
    const std::int64_t slice = e % shape.num_slices;
    const std::string at = testing::entry_name(call, static_cast<std::size_t>(e));
    entry.scaling = static_cast<float>(scalings.get(e));
    if (testing::uses_a(call.op)) entry.a = fields.tensor("a." + at, 2, kActivations);
    if (testing::uses_b(call.op)) entry.b = fields.tensor("b." + at, 2, kActivations);
    if (testing::uses_bias(call.op)) entry.bias = fields.tensor("bias." + at, 1, {DType::f32});
    set_dtype(fields, "a." + at, entry.a, known_a, shape.a_dtype);
    set_dtype(fields, "b." + at, entry.b, known_b, shape.b_dtype);
    if (testing::uses_a(call.op) && testing::uses_b(call.op) &&
        entry.a.given() != entry.b.given()) {
      fields.fail("tensor " + std::string(entry.a.given() ? "b." : "a.") + at +
                  " is missing; its partner is there");
    }
    const std::int64_t rank = entry.a.given()   ? entry.a.rows()
                              : entry.b.given() ? entry.b.columns()
                                                : 0;
    if (rank > kMaxSize) fields.fail("rank of " + at + " is over 2^31 - 1");
    entry.rank = static_cast<std::int32_t>(rank);
    if (shape.in == 0 && entry.a.given()) shape.in = entry.a.columns();
    if (entry.a.given() && ids) {
      if (entry.a.columns() > shape.in || entry.a.columns() < 1) {
        fields.fail("tensor a." + at + " has shape " + shape_text(entry.a) +
                    "; it should have at most vocab = " + std::to_string(shape.in) + " columns");
      }
    } else {
      expect_shape(fields, "a." + at, entry.a, {rank, shape.in});
    }
    expect_shape(fields, "b." + at, entry.b, {shape.out[slice], rank});
    expect_shape(fields, "bias." + at, entry.bias, {shape.out[slice]});
    if (entry.bias.given() && !entry.b.given()) {
      fields.fail("tensor bias." + at + " is there without b." + at);
    }
    if (rank == 0) entry.a = entry.b = entry.bias = {};
    largest = std::max(largest, entry.rank);
  }
  const auto max_rank = fields.number("max_rank", 0, kMaxSize);
  shape.max_rank = max_rank ? static_cast<std::int32_t>(*max_rank) : largest;
  if (largest > shape.max_rank) {
    fields.fail("attribute max_rank is " + std::to_string(shape.max_rank) +
                "; it should be at least " + std::to_string(largest) + ", the largest rank");
  }
}

}  // namespace rankfold::conformance
