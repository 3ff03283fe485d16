// Reads a case file; what operations of experts and of training have stands in files of their own.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "case_fields.hpp"
#include "case_file.hpp"
#include "case_file_parts.hpp"

namespace rankfold::conformance {

using testing::HostCall;
using testing::HostTensor;

std::string shape_text(const HostTensor& tensor) {
  std::string text = "[";
  for (const std::int64_t size : tensor.sizes) {
    text += (text.size() > 1 ? ", " : "") + std::to_string(size);
  }
  return text + "]";
}

void expect_shape(CaseFields& fields, const std::string& name, const HostTensor& tensor,
                  std::vector<std::int64_t> sizes) {
  HostTensor wanted;
  wanted.sizes = std::move(sizes);
  if (!tensor.given() || tensor.sizes == wanted.sizes) return;
  fields.fail("tensor " + name + " has shape " + shape_text(tensor) + "; it should have " +
              shape_text(wanted));
}

HostTensor unwritten(DType dtype, std::vector<std::int64_t> sizes) {
  HostTensor tensor(dtype, std::move(sizes));
  for (std::int64_t i = 0; i < tensor.count(); ++i) {
    tensor.set(i, std::numeric_limits<double>::quiet_NaN());
  }
  return tensor;
}

namespace {

constexpr std::int64_t kMaxStride = std::int64_t{1} << 40;

}  // namespace

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
  if (const auto stride = fields.number("x_row_stride", 0, kMaxStride)) call.x_row_stride = *stride;
  if (const auto stride = fields.number("y_row_stride", 0, kMaxStride)) call.y_row_stride = *stride;
}

void read_expectation(CaseFields& fields, HostCall& call, const std::string& name,
                      const HostTensor& like) {
  const HostTensor value =
      fields.tensor("expect." + name, like.sizes.size(), {DType::f64, like.dtype});
  if (!value.given()) return;
  expect_shape(fields, "expect." + name, value, like.sizes);
  call.expect[name] = value;
}

namespace {

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

void read_group_tokens(CaseFields& fields, HostCall& call) {
  read_options(fields, call);
  if (call.options.strategy != Strategy::automatic) {
    fields.fail("attribute strategy is \"" + std::string(to_string(call.options.strategy)) +
                "\"; it should be auto, since group_tokens has no choice of strategies");
  }
  if (const auto mode = fields.attribute("addressing"); mode && *mode != "tokens") {
    fields.fail("attribute addressing is " + CaseFields::quote(*mode) +
                "; it should be tokens, which group_tokens groups");
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
  check_strides(fields, call);
  if (!fields.ok()) return;
  read_addressing(fields, call, rows);
  check_broadcast_row(fields, call, call.addressing.num_tokens);
  read_entries(fields, call);
  if (!fields.ok()) return;
  check_rows(fields, call);
  if (!fields.ok()) return;
  if (testing::makes_h(call.op)) {
    call.h = unwritten(DType::f32, {call.addressing.num_tokens,
                                    std::int64_t{call.shape.num_slices} * call.shape.max_rank});
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
  } else if (testing::is_experts(*op)) {
    read_experts_operation(fields, file.call);
  } else if (*op >= Op::forward && *op <= Op::backward_embedding) {
    read_training_operation(fields, file.call);
  } else if (*op < Op::shrink_experts) {
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
