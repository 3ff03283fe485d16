// Same inputs, same bits; a row's bits apart from its batch; every configuration; workspace sizes.
#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

#include "case.hpp"
#include "check_call.hpp"
#include "invariance.hpp"

namespace rankfold::conformance {

using testing::Fill;
using testing::HostCall;
using testing::HostTensor;

namespace {

constexpr Op kOps[] = {Op::shrink, Op::expand, Op::apply_linear, Op::gather_shrink,
                       Op::apply_embedding};

HostTensor pick_rows(const HostTensor& tensor, const std::vector<std::int64_t>& rows) {
  if (!tensor.given()) return {};
  std::vector<std::int64_t> sizes = tensor.sizes;
  sizes[0] = static_cast<std::int64_t>(rows.size());
  HostTensor picked(tensor.dtype, sizes);
  const std::size_t bytes = static_cast<std::size_t>(tensor.columns()) * size_of(tensor.dtype);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (bytes == 0) break;
    std::memcpy(picked.bytes.data() + i * bytes,
                tensor.bytes.data() + static_cast<std::size_t>(rows[i]) * bytes, bytes);
  }
  return picked;
}

// The same rows of a call as a smaller one.
HostCall pick_rows(const HostCall& call, const std::vector<std::int64_t>& rows) {
  HostCall picked = call;
  picked.x = pick_rows(call.x, rows);
  picked.ids = pick_rows(call.ids, rows);
  picked.h = pick_rows(call.h, rows);
  picked.y = pick_rows(call.y, rows);
  picked.dy = pick_rows(call.dy, rows);
  picked.dx = pick_rows(call.dx, rows);
  auto& addressing = picked.addressing;
  addressing = {};
  addressing.num_tokens = static_cast<std::int64_t>(rows.size());
  for (const std::int64_t row : rows) {
    const auto at = static_cast<std::size_t>(row);
    addressing.token_slots.push_back(call.addressing.token_slots[at]);
    if (!call.addressing.token_weights.empty()) {
      addressing.token_weights.push_back(call.addressing.token_weights[at]);
    }
  }
  return picked;
}

const HostTensor& output_of(const HostCall& call, const CallOutcome& outcome) {
  if (testing::is_backward(call.op)) return outcome.dx;
  return testing::makes_y(call.op) ? outcome.y : outcome.h;
}

const testing::Expected& expected_of(const FilledCall& filled) {
  if (testing::is_backward(filled.call.op)) return filled.oracle.dx;
  return testing::makes_y(filled.call.op) ? filled.oracle.y : filled.oracle.h;
}

// Whether row `row` of `whole` has the bits of row `i` of `part`, where both are defined.
std::string compare_rows(const FilledCall& whole_call, const HostTensor& whole,
                         const HostTensor& part, const std::vector<std::int64_t>& rows,
                         const std::string& what) {
  const testing::Expected& expected = expected_of(whole_call);
  const std::int64_t columns = expected.columns;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    for (std::int64_t column = 0; column < columns; ++column) {
      const std::int64_t at = rows[i] * columns + column;
      if (expected.region[static_cast<std::size_t>(at)] == testing::Region::unspecified) continue;
      const std::int64_t other = static_cast<std::int64_t>(i) * columns + column;
      if (std::memcmp(whole.at(at), part.at(other), size_of(whole.dtype)) != 0) {
        return what + ": row " + std::to_string(rows[i]) + ", column " + std::to_string(column) +
               " is " + std::to_string(part.get(other)) + ", in the whole batch " +
               std::to_string(whole.get(at));
      }
    }
  }
  return {};
}

CallSpec invariant_spec(Op op, DType dtype) {
  CallSpec spec;
  spec.op = op;
  spec.fill = Fill::random;
  spec.x = spec.y = dtype;
  spec.a = spec.b = dtype;
  spec.tokens = 64;
  spec.in = 200;
  spec.out = {72, 40};
  if (testing::has_ids(op)) spec.out = {72};
  spec.num_slots = 5;
  spec.ranks = {16, 8, 33, 64, 5};
  spec.bias = testing::uses_b(op) && !testing::has_ids(op);
  spec.token_weights = testing::makes_y(op);
  spec.options.batch_invariant = BatchInvariant::on;
  return spec;
}

Outcome compare_part(Session& session, const FilledCall& whole, const HostTensor& bits,
                     const HostCall& part, const std::vector<std::int64_t>& rows,
                     const std::string& what) {
  const CallOutcome outcome = run_call(session.backend(), part, session.stream());
  if (outcome.status.code() == StatusCode::unsupported &&
      part.options.strategy != Strategy::automatic) {
    return {};
  }
  if (!outcome.status.ok()) return Outcome::fail(what + ": " + outcome.status.message());
  const std::string difference = compare_rows(whole, bits, output_of(part, outcome), rows, what);
  return difference.empty() ? Outcome{} : Outcome::fail(difference);
}

// The first, one in the middle and the last.
std::vector<std::int64_t> some_rows_with_adapter(const HostCall& call) {
  std::vector<std::int64_t> rows;
  const std::vector<std::int32_t> slots = testing::row_slots(call);
  for (std::size_t row = 0; row < slots.size(); ++row) {
    if (slots[row] >= 0) rows.push_back(static_cast<std::int64_t>(row));
  }
  if (rows.empty()) throw std::logic_error("no row of this case has an adapter");
  return {rows.front(), rows[rows.size() / 2], rows.back()};
}

Outcome check_batch_invariance(Session& session, const CallSpec& base) {
  std::vector<Strategy> strategies = {Strategy::automatic};
  strategies.insert(strategies.end(), forced_strategies().begin(), forced_strategies().end());
  for (const Strategy strategy : strategies) {
    CallSpec spec = base;
    spec.options.strategy = strategy;
    const FilledCall whole = build(spec, session.seed());
    const CallOutcome outcome = run_call(session.backend(), whole.call, session.stream());
    if (outcome.status.code() == StatusCode::unsupported && strategy != Strategy::automatic) {
      continue;
    }
    if (!outcome.status.ok()) return Outcome::fail(outcome.status.message());
    const HostTensor& bits = output_of(whole.call, outcome);
    std::vector<std::int64_t> all, some, backwards;
    for (std::int64_t row = 0; row < spec.tokens; ++row) {
      all.push_back(row);
      if (row % 3 == 1) some.push_back(row);
      backwards.insert(backwards.begin(), row);
    }
    const std::string with = std::string(" with strategy ") + rankfold::to_string(strategy);
    for (const auto& [rows, what] :
         {std::pair{some, "every third row"}, {backwards, "rows in reverse"}, {all, "all rows"}}) {
      HostCall part = pick_rows(whole.call, rows);
      Outcome compared = compare_part(session, whole, bits, part, rows, what + with);
      if (!compared.passed()) return compared;
      part.addressing.mode = AddressingMode::grouped;
      testing::group_on_host(part.addressing, part.shape.num_slots);
      compared = compare_part(session, whole, bits, part, rows, what + with + ", grouped");
      if (!compared.passed()) return compared;
    }
    for (const std::int64_t row : some_rows_with_adapter(whole.call)) {
      HostCall part = pick_rows(whole.call, {row});
      Outcome compared = compare_part(session, whole, bits, part, {row}, "a row alone" + with);
      if (!compared.passed()) return compared;
      part.addressing.mode = AddressingMode::uniform;
      part.addressing.uniform_slot = part.addressing.token_slots.front();
      compared = compare_part(session, whole, bits, part, {row}, "a row alone, uniform" + with);
      if (!compared.passed()) return compared;
    }
  }
  return {};
}

// 64 slots with the same weights must give what one slot gives.
Outcome check_single_and_many(Session& session, const CallSpec& base) {
  CallSpec spec = base;
  spec.num_slots = 64;
  spec.ranks = {16};
  spec.scalings = {0.75f};
  spec.slots = SlotPattern::one;
  FilledCall one = build(spec, session.seed());
  for (std::size_t e = 0; e < one.call.entries.size(); ++e) {
    const auto slices = static_cast<std::size_t>(one.call.shape.num_slices);
    if (e >= slices) one.call.entries[e] = one.call.entries[e % slices];
  }
  HostCall many = one.call;
  for (std::size_t i = 0; i < many.addressing.token_slots.size(); ++i) {
    many.addressing.token_slots[i] = static_cast<std::int32_t>(i);
  }
  const CallOutcome single = run_call(session.backend(), one.call, session.stream());
  if (Outcome judged = judge_outcome(one, single, "one adapter, "); !judged.passed()) return judged;
  std::vector<std::int64_t> rows;
  for (std::int64_t row = 0; row < spec.tokens; ++row) rows.push_back(row);
  return compare_part(session, one, output_of(one.call, single), many, rows, "64 equal adapters");
}

// Rows of training, and of a table with more slots than what groups rows on a device may hold.
void add_more_batches(CaseList& list) {
  const auto add = [&](const std::string& name, const std::string& about, const CallSpec& spec) {
    list.scenario(name_of(spec.op) + "/invariance/" + name + "/" + rankfold::to_string(spec.x),
                  about,
                  [spec](Session& session) { return check_batch_invariance(session, spec); });
  };
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (const Op op : {Op::forward, Op::forward_embedding}) {
      add("batch", "G7: a row alone and in a batch of 64 has the same bits",
          invariant_spec(op, dtype));
    }
    CallSpec backward = invariant_spec(Op::backward, dtype);
    backward.bias = false;
    backward.outputs = kOutputDx;
    backward.gives_x = false;
    backward.out = {600};
    backward.dx = DType::f32;  // shows more bits of ds
    add("batch", "G7: dx of a row alone and in a batch of 64 has the same bits", backward);
  }
  for (const Op op : {Op::shrink, Op::expand, Op::apply_linear}) {
    CallSpec many = invariant_spec(op, DType::bf16);
    many.tokens = 70;
    many.num_slots = 1100;
    many.in = 96;
    many.out = {24};
    many.ranks = {16, 5};
    add("batch_of_many_slots", "G7: however many slots the table has", many);
  }
}

}  // namespace

void add_invariance_cases(CaseList& list) {
  add_more_batches(list);
  for (const Op op : kOps) {
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      const CallSpec spec = invariant_spec(op, dtype);
      const std::string end = std::string("/") + rankfold::to_string(dtype);
      list.scenario(name_of(op) + "/invariance/batch" + end,
                    "G7: a row alone and in a batch of 64 has the same bits",
                    [spec](Session& session) { return check_batch_invariance(session, spec); });
      list.scenario(name_of(op) + "/invariance/single_and_many" + end,
                    "J6: 64 equal adapters give the bits of one",
                    [spec](Session& session) { return check_single_and_many(session, spec); });
      CallSpec free = spec;
      free.options = {};
      list.scenario(
          name_of(op) + "/determinism/100_runs" + end,
          "G7: the same call gives the same bits, on every stream",
          [free](Session& session) { return check_determinism(session, free, 100); }, true);
    }
    CallSpec spec = invariant_spec(op, DType::bf16);
    spec.fill = Fill::exact;
    spec.scalings = {1.0f, 0.25f};
    spec.options = {};
    list.scenario(name_of(op) + "/configurations/exact",
                  "G4, G6: every configuration of every strategy gives the same bits",
                  [spec](Session& session) { return check_configurations(session, spec); });
    list.scenario(name_of(op) + "/workspace/monotone",
                  "a workspace for upper bounds serves every smaller call",
                  [spec](Session& session) { return check_workspace(session, spec); });
  }
}

}  // namespace rankfold::conformance
