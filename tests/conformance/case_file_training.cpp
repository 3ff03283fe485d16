// Case files of forward, backward, forward_embedding and backward_embedding.
#include <algorithm>
#include <charconv>
#include <string_view>

#include "case_file_parts.hpp"
#include "rankfold/problem.hpp"

namespace rankfold::conformance {

using testing::HostCall;
using testing::HostTensor;

namespace {

void read_dropout(CaseFields& fields, HostCall& call) {
  const auto parse = [&](const char* name, auto& value) {
    const auto text = fields.attribute(name);
    if (!text) return;
    const char* const end = text->data() + text->size();
    const auto parsed = std::from_chars(text->data(), end, value);
    if (parsed.ec != std::errc{} || parsed.ptr != end) {
      fields.fail(std::string("attribute ") + name + " is " + CaseFields::quote(*text) +
                  "; it should be a decimal number");
    }
  };
  parse("dropout_p", call.dropout.p);
  parse("seed", call.dropout.seed);
  parse("row_base", call.dropout.row_base);
}

// "dx,da,db,dbias" or some of them, as bits of Outputs.
std::uint32_t read_outputs(CaseFields& fields, Op op) {
  const auto text = fields.attribute("outputs");
  if (!text) {
    fields.fail("attribute outputs is missing; " + std::string(to_string(op)) + " needs it");
    return 0;
  }
  std::uint32_t outputs = 0;
  std::string_view rest = *text;
  while (!rest.empty()) {
    const std::size_t comma = rest.find(',');
    const std::string_view name = rest.substr(0, comma);
    const bool linear = op == Op::backward;
    std::uint32_t bit = 0;
    if (name == "da") bit = kOutputDa;
    if (name == "db") bit = kOutputDb;
    if (linear && name == "dx") bit = kOutputDx;
    if (linear && name == "dbias") bit = kOutputDbias;
    if (bit == 0 || comma == rest.size() - 1) {
      fields.fail("attribute outputs is " + CaseFields::quote(*text) + "; it should be some of " +
                  (linear ? "dx,da,db,dbias" : "da,db"));
      return outputs;
    }
    outputs |= bit;
    rest.remove_prefix(comma == std::string_view::npos ? rest.size() : comma + 1);
  }
  return outputs;
}

// dx: given, it is accumulated into; absent, overwritten.
void read_dx(CaseFields& fields, HostCall& call, std::uint32_t outputs, std::int64_t rows) {
  if (call.op != Op::backward) return;
  const bool has_mode = fields.attribute("y_mode").has_value();
  const bool wanted = (outputs & kOutputDx) != 0;
  if (call.dx.given()) {
    if (!wanted) fields.fail("tensor dx is there; attribute outputs does not ask for it");
    expect_shape(fields, "dx", call.dx, {rows, call.shape.in});
  } else if (wanted) {
    if (has_mode && call.options.y_mode == YMode::accumulate) {
      fields.fail("attribute y_mode is \"accumulate\"; tensor dx, which is added to, is missing");
    }
    const HostTensor expected =
        fields.tensor("expect.dx", 2, {DType::f64, DType::f32, DType::f16, DType::bf16});
    const DType dtype = expected.given() && expected.dtype != DType::f64 ? expected.dtype
                        : call.x.given()                                 ? call.x.dtype
                                                                         : call.dy.dtype;
    check_replay(fields, rows, std::max(call.shape.in, call.x_row_stride), size_of(dtype), "dx",
                 "x has " + std::to_string(call.shape.in) + " columns and x_row_stride is " +
                     std::to_string(call.x_row_stride));
    if (!fields.ok()) return;
    call.dx = unwritten(dtype, {rows, call.shape.in});
    call.options.y_mode = YMode::overwrite;
  }
  if (call.x_row_stride > 0 && call.dx.given()) call.dx_row_stride = call.x_row_stride;
  if (wanted) read_expectation(fields, call, "dx", call.dx);
}

void read_gradients(CaseFields& fields, HostCall& call, std::uint32_t outputs) {
  call.wants_da = (outputs & kOutputDa) != 0;
  call.wants_db = (outputs & kOutputDb) != 0;
  call.wants_dbias = (outputs & kOutputDbias) != 0;
  const bool adds = fields.number("accumulate", 0, 1).value_or(0) == 1;
  call.gradient_mode = adds ? YMode::accumulate : YMode::overwrite;
  call.gradients.resize(call.entries.size());
  std::int64_t total = 0;
  for (std::size_t e = 0; e < call.entries.size() && fields.ok(); ++e) {
    const testing::HostEntry& entry = call.entries[e];
    if (entry.rank == 0) continue;
    const std::string at = testing::entry_name(call, e);
    const std::int64_t out = entry.b.rows();
    const auto one = [&](const char* kind, bool wanted, std::vector<std::int64_t> sizes) {
      if (!wanted || !fields.ok()) return HostTensor{};
      const std::string name = kind + at;
      // Of da and db, A and B of the file may hold less, vocab being wider than A.
      check_replay(fields, sizes[0], sizes.size() > 1 ? sizes[1] : 1, sizeof(float), name,
                   "rank " + at + " is " + std::to_string(entry.rank));
      if (!fields.ok()) return HostTensor{};
      total += sizes[0] * (sizes.size() > 1 ? sizes[1] : 1);
      check_replay(fields, 1, total, sizeof(float), "the sum of all gradients",
                   "rank " + at + " is " + std::to_string(entry.rank));
      if (!fields.ok()) return HostTensor{};
      HostTensor value = unwritten(DType::f32, sizes);
      if (adds) {
        value = fields.required(name, sizes.size(), {DType::f32});
        expect_shape(fields, name, value, sizes);
      }
      if (fields.ok()) read_expectation(fields, call, name, value);
      return value;
    };
    testing::HostGradient& gradient = call.gradients[e];
    gradient.da = one("da.", call.wants_da, {entry.rank, call.shape.in});
    gradient.db = one("db.", call.wants_db, {out, entry.rank});
    gradient.dbias = one("dbias.", call.wants_dbias, {out});
  }
}

void read_backward(CaseFields& fields, HostCall& call) {
  const std::int64_t rows = call.dy.rows();
  const std::int64_t columns = std::int64_t{call.shape.num_slices} * call.shape.max_rank;
  const std::uint32_t outputs = read_outputs(fields, call.op);
  if (!fields.ok()) return;
  expect_shape(fields, "h", call.h, {rows, columns});
  read_dx(fields, call, outputs, rows);
  read_gradients(fields, call, outputs);
  if (!fields.ok() || !fields.has_tensor("expect.ds")) return;
  call.ds = unwritten(DType::f32, {rows, columns});
  read_expectation(fields, call, "ds", call.ds);
}

}  // namespace

void read_training_operation(CaseFields& fields, HostCall& call) {
  const bool backward = testing::is_backward(call.op);
  if (backward) {
    call.dy = fields.required("dy", 2, kActivations);
    call.h = fields.tensor("h", 2, {DType::f32});
  } else {
    call.y = fields.required("y", 2, kActivations);
  }
  call.shape.in = 0;
  if (testing::has_ids(call.op)) {
    call.ids = fields.required("ids", 1, {DType::i32, DType::i64});
    const auto vocab = fields.number("vocab", 1, std::int64_t{1} << 40);
    if (!vocab) fields.fail("attribute vocab is missing; embeddings need it");
    call.shape.in = vocab.value_or(1);
  } else {
    call.x = backward ? fields.tensor("x", 2, kActivations) : fields.required("x", 2, kActivations);
    if (backward) call.dx = fields.tensor("dx", 2, kActivations);
    if (call.x.given() || call.dx.given()) {
      call.shape.in = (call.x.given() ? call.x : call.dx).columns();
    }
    read_dropout(fields, call);
  }
  read_options(fields, call);
  check_strides(fields, call);
  if (!fields.ok()) return;
  const std::int64_t rows = (backward ? call.dy : call.y).rows();
  read_addressing(fields, call, rows);
  check_broadcast_row(fields, call, call.addressing.num_tokens);
  read_entries(fields, call);
  if (call.shape.in == 0) call.shape.in = 1;  // no entry has an A
  if (!fields.ok()) return;
  check_rows(fields, call);
  if (!fields.ok()) return;
  if (backward) return read_backward(fields, call);
  call.h = unwritten(DType::f32, {call.addressing.num_tokens,
                                  std::int64_t{call.shape.num_slices} * call.shape.max_rank});
  read_expectation(fields, call, "h", call.h);
  read_expectation(fields, call, "y", call.y);
}

}  // namespace rankfold::conformance
