#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>

#include "case_fields.hpp"
#include "case_file.hpp"

namespace rankfold::conformance {

using testing::HostCall;
using testing::HostEntry;
using testing::HostTensor;

namespace {

constexpr std::int64_t kMaxStride = std::int64_t{1} << 40;
constexpr std::int64_t kMaxSize = std::numeric_limits<std::int32_t>::max();
// A small file must not ask for much more than itself: what strides, ranks, slots and rows of no
// bytes blow up is bounded, each tensor by this many bytes.
constexpr std::int64_t kMaxReplayBytes = std::int64_t{1} << 30;
constexpr std::int64_t kMaxGroupedSlots = std::int64_t{1} << 22;

std::string shape_text(const HostTensor& tensor) {
  std::string text = "[";
  for (const std::int64_t size : tensor.sizes) {
    text += (text.size() > 1 ? ", " : "") + std::to_string(size);
  }
  return text + "]";
}

// rows * columns elements of a tensor of the replay; `why` begins the text, "attribute x is 3".
void check_replay(CaseFields& fields, std::int64_t rows, std::int64_t columns, std::size_t element,
                  const std::string& tensor, const std::string& why) {
  const std::int64_t most = kMaxReplayBytes / static_cast<std::int64_t>(element);
  if (rows <= 0 || columns <= 0 || columns <= most / rows) return;
  fields.fail(why + "; " + tensor + " of the replay would have " + std::to_string(rows) + " x " +
              std::to_string(columns) + " elements, it should have at most " +
              std::to_string(most) + " (1 GiB)");
}

void check_stride(CaseFields& fields, const char* name, std::int64_t stride,
                  const HostTensor& tensor) {
  if (stride < 0 || !tensor.given()) return;
  check_replay(fields, tensor.rows(), stride, size_of(tensor.dtype), name,
               std::string("attribute ") + name + "_row_stride is " + std::to_string(stride));
}

void read_options(CaseFields& fields, HostCall& call) {
  if (const auto text = fields.attribute("y_mode")) {
    if (const auto mode = parse_y_mode(*text)) {
      call.options.y_mode = *mode;
    } else {
      fields.fail("attribute y_mode is " + CaseFields::quote(*text) +
                  "; it should be accumulate or overwrite");
    }
  }
  if (const auto text = fields.attribute("strategy")) {
    if (const auto strategy = parse_strategy(*text)) {
      call.options.strategy = *strategy;
    } else {
      fields.fail("attribute strategy is " + CaseFields::quote(*text) +
                  "; it should be auto or the name of one");
    }
  }
  if (const auto flag = fields.number("batch_invariant", 0, 1)) {
    call.options.batch_invariant = *flag == 1 ? BatchInvariant::on : BatchInvariant::off;
  }
  // One that is too small is the operation's to refuse.
  if (const auto stride = fields.number("x_row_stride", 0, kMaxStride)) {
    call.x_row_stride = *stride;
    check_stride(fields, "x", *stride, call.x);
  }
  if (const auto stride = fields.number("y_row_stride", 0, kMaxStride)) {
    call.y_row_stride = *stride;
    check_stride(fields, "y", *stride, call.y);
  }
}

void read_judgement(CaseFields& fields, CaseFile& file) {
  HostCall& call = file.call;
  if (const auto text = fields.attribute("tolerance")) {
    file.has_tolerance = true;
    if (*text == "exact") {
      call.tolerance = testing::Tolerance::exact;
    } else if (*text != "spec") {
      call.tolerance = testing::Tolerance::relative;
      const char* const end = text->data() + text->size();
      const auto parsed = std::from_chars(text->data(), end, call.relative_tolerance);
      if (parsed.ec != std::errc{} || parsed.ptr != end || !(call.relative_tolerance >= 0) ||
          std::isinf(call.relative_tolerance)) {
        fields.fail("attribute tolerance is " + CaseFields::quote(*text) +
                    "; it should be exact, spec or a finite number from 0 (relative Frobenius "
                    "error)");
      }
    }
  }
  if (const auto text = fields.attribute("expect_status")) {
    call.expect_status = parse_status_code(*text);
    if (!call.expect_status || *call.expect_status == StatusCode::ok) {
      fields.fail("attribute expect_status is " + CaseFields::quote(*text) +
                  "; it should be the name of a status code other than ok");
    }
  }
}

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
  if (testing::makes_y(call.op)) {
    const HostTensor weights = fields.tensor("token_weights", 1, {DType::f32});
    if (weights.given() && weights.count() != addressing.num_tokens) {
      fields.fail("tensor token_weights has shape " + shape_text(weights) + "; it should have [" +
                  std::to_string(addressing.num_tokens) + "]");
    }
    for (std::int64_t i = 0; i < weights.count(); ++i) {
      addressing.token_weights.push_back(static_cast<float>(weights.get(i)));
    }
  }
}

constexpr std::initializer_list<DType> kActivations = {DType::f32, DType::f16, DType::bf16};

void expect_shape(CaseFields& fields, const std::string& name, const HostTensor& tensor,
                  std::vector<std::int64_t> sizes) {
  HostTensor wanted;
  wanted.sizes = std::move(sizes);
  if (!tensor.given() || tensor.sizes == wanted.sizes) return;
  fields.fail("tensor " + name + " has shape " + shape_text(tensor) + "; it should have " +
              shape_text(wanted));
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

void read_entries(CaseFields& fields, HostCall& call) {
  TableShape& shape = call.shape;
  const HostTensor scalings = fields.required("scalings", 2, {DType::f32});
  if (!fields.ok()) return;
  if (scalings.sizes[0] > kMaxSize || scalings.sizes[1] < 1 || scalings.sizes[1] > kMaxSlices) {
    fields.fail("tensor scalings has shape " + shape_text(scalings) +
                "; it should have [slots, slices] with 1 to 16 slices");
    return;
  }
  shape.num_slots = static_cast<std::int32_t>(scalings.sizes[0]);
  shape.num_slices = static_cast<std::int32_t>(scalings.sizes[1]);
  const bool linear = call.op != Op::apply_embedding && testing::makes_y(call.op);
  if (linear) {
    const auto widths = fields.numbers("out_slices");
    if (static_cast<std::int64_t>(widths.size()) != shape.num_slices) {
      fields.fail("attribute out_slices has " + std::to_string(widths.size()) +
                  " numbers; it should have one for each of the " +
                  std::to_string(shape.num_slices) + " slices");
      return;
    }
    std::copy(widths.begin(), widths.end(), shape.out);
  } else {
    std::fill_n(shape.out, shape.num_slices, 1);
    if (call.op == Op::apply_embedding) shape.out[0] = call.y.columns();
  }
  if (testing::has_ids(call.op) && shape.num_slices != 1) {
    fields.fail("tensor scalings has shape " + shape_text(scalings) + "; an embedding has 1 slice");
    return;
  }

  bool known_a = false, known_b = false;
  std::int32_t largest = 0;
  call.entries.resize(static_cast<std::size_t>(scalings.count()));
  for (std::int64_t e = 0; e < scalings.count() && fields.ok(); ++e) {
    HostEntry& entry = call.entries[static_cast<std::size_t>(e)];
    const std::int64_t slice = e % shape.num_slices;
    const std::string at = std::to_string(e / shape.num_slices) + "." + std::to_string(slice);
    entry.scaling = static_cast<float>(scalings.get(e));
    if (testing::uses_a(call.op)) entry.a = fields.tensor("a." + at, 2, kActivations);
    if (testing::uses_b(call.op)) entry.b = fields.tensor("b." + at, 2, kActivations);
    if (linear) entry.bias = fields.tensor("bias." + at, 1, {DType::f32});
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
    if (entry.a.given() && testing::has_ids(call.op)) {
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

// An expectation of the exact value or of the output's own bits.
void read_expectation(CaseFields& fields, HostCall& call, const std::string& name,
                      const HostTensor& like) {
  const HostTensor value =
      fields.tensor("expect." + name, like.sizes.size(), {DType::f64, like.dtype});
  if (!value.given()) return;
  expect_shape(fields, "expect." + name, value, like.sizes);
  call.expect[name] = value;
}

void read_group_tokens(CaseFields& fields, HostCall& call) {
  read_options(fields, call);
  if (call.options.strategy != Strategy::automatic) {
    fields.fail("attribute strategy is \"" + std::string(to_string(call.options.strategy)) +
                "\"; it should be auto, since group_tokens has no choice of strategies");
  }
  if (const auto mode = fields.attribute("addressing"); mode && *mode != "tokens") {
    fields.fail("attribute addressing is \"" + *mode +
                "\"; it should be tokens, which group_tokens groups");
  }
  call.addressing.token_slots = fields.integers("token_slots", true);
  call.addressing.num_tokens = static_cast<std::int64_t>(call.addressing.token_slots.size());
  const auto slots = fields.number("num_slots", 0, kMaxGroupedSlots);
  if (!slots) fields.fail("attribute num_slots is missing; group_tokens needs it");
  call.shape.num_slots = static_cast<std::int32_t>(slots.value_or(0));
  for (const char* name : {"token_order", "segment_offsets", "segment_slots", "num_segments"}) {
    const HostTensor value = fields.tensor(std::string("expect.") + name, 1, {DType::i32});
    if (value.given()) call.expect[name] = value;
  }
}

// All rows of a broadcast x are one row in memory, so a file that stores several stores equals.
void check_broadcast(CaseFields& fields, const HostTensor& x) {
  if (!fields.ok() || x.rows() < 2) return;
  const std::size_t row_bytes = x.bytes.size() / static_cast<std::size_t>(x.rows());
  for (std::int64_t row = 1; row < x.rows(); ++row) {
    const std::byte* const at = x.bytes.data() + static_cast<std::size_t>(row) * row_bytes;
    if (row_bytes == 0 || std::memcmp(x.bytes.data(), at, row_bytes) == 0) continue;
    fields.fail("tensor x has another row " + std::to_string(row) +
                " than row 0; with x_row_stride 0 it should have one row or equal rows");
    return;
  }
}

// How many rows shrink has where x stores one for all: as many as what else has one for each.
std::int64_t rows_of_broadcast(CaseFields& fields) {
  if (fields.attribute("addressing").value_or("") == "grouped") {
    return static_cast<std::int64_t>(fields.integers("token_order", false).size());
  }
  const HostTensor h = fields.tensor("expect.h", 2, {DType::f64, DType::f32});
  return h.given() ? h.rows() : 1;
}

void read_table_operation(CaseFields& fields, HostCall& call) {
  std::int64_t rows = 0;
  read_options(fields, call);
  if (testing::has_x(call.op)) {
    call.x = fields.required("x", 2, kActivations);
    call.shape.in = call.x.columns();
    rows = call.x.rows();
    if (call.x_row_stride == 0) check_broadcast(fields, call.x);
    if (call.op == Op::shrink && call.x_row_stride == 0 && rows == 1) {
      rows = rows_of_broadcast(fields);
    }
  }
  if (call.op == Op::expand) {
    call.h = fields.required("h", 2, {DType::f32});
    call.shape.in = 1;  // not used
    rows = call.h.rows();
  }
  if (testing::has_ids(call.op)) {
    call.ids = fields.required("ids", 1, {DType::i32, DType::i64});
    const auto vocab = fields.number("vocab", 1, std::int64_t{1} << 40);
    if (!vocab) fields.fail("attribute vocab is missing; embeddings need it");
    call.shape.in = vocab.value_or(1);
    rows = call.ids.rows();
  }
  if (testing::makes_y(call.op)) {
    call.y = fields.required("y", 2, kActivations);
    // A broadcast x has one row.
    if (call.op == Op::apply_linear) rows = call.y.rows();
  }
  if (!fields.ok()) return;
  read_addressing(fields, call, rows);
  if (call.x.given() && call.x_row_stride == 0 && call.x.rows() == 0 &&
      call.addressing.num_tokens > 0) {
    fields.fail("tensor x has shape " + shape_text(call.x) +
                "; it should have a row, which x_row_stride 0 gives to all");
  }
  read_entries(fields, call);
  if (!fields.ok()) return;
  // h, and the workspace of what makes y.
  check_replay(fields, std::max<std::int64_t>(call.addressing.num_tokens, 1),
               std::int64_t{call.shape.num_slices} * std::max(call.shape.max_rank, 1),
               sizeof(float), "h",
               "attribute max_rank is " + std::to_string(call.shape.max_rank) + " and there are " +
                   std::to_string(call.addressing.num_tokens) + " rows");
  if (!fields.ok()) return;
  if (testing::makes_h(call.op)) {
    call.h = HostTensor(DType::f32, {call.addressing.num_tokens,
                                     std::int64_t{call.shape.num_slices} * call.shape.max_rank});
    for (std::int64_t i = 0; i < call.h.count(); ++i) {
      call.h.set(i, std::numeric_limits<double>::quiet_NaN());
    }
    read_expectation(fields, call, "h", call.h);
  } else {
    read_expectation(fields, call, "y", call.y);
  }
}

}  // namespace

Result<CaseFile> read_case_file(std::string_view path) {
  const auto read = Safetensors::read(path);
  if (!read.ok()) return read.status();
  CaseFields fields(*read);
  CaseFile file;
  const std::string format = fields.attribute("format").value_or("");
  if (format != "rankfold-case-1") {
    const bool given = read->find_metadata("format") != nullptr;
    fields.fail("attribute format is " + (given ? CaseFields::quote(format) : "missing") +
                "; it should be rankfold-case-1");
    return fields.status();
  }
  const std::string name = fields.attribute("op").value_or("");
  const auto op = parse_op(name);
  if (!op) {
    fields.fail("attribute op is " + CaseFields::quote(name) +
                "; it should be the name of an operation");
    return fields.status();
  }
  file.call.op = *op;
  read_judgement(fields, file);
  if (*op == Op::group_tokens) {
    read_group_tokens(fields, file.call);
  } else if (testing::makes_h(*op) || testing::makes_y(*op)) {
    read_table_operation(fields, file.call);
  } else {
    file.later_operation = true;
    if (!fields.ok()) return fields.status();
    return file;
  }
  if (fields.ok()) fields.refuse_unknown(name);
  if (!fields.ok()) return fields.status();
  return file;
}

}  // namespace rankfold::conformance
