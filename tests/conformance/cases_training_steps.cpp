// Training in steps of one memory, run after run, row by row, and forward against backward.
#include <algorithm>
#include <cstring>
#include <string>

#include "case.hpp"
#include "check_call.hpp"
#include "invariance.hpp"

namespace rankfold::conformance {

using testing::Fill;
using testing::HostCall;
using testing::HostTensor;

namespace {

constexpr Op kOps[] = {Op::forward, Op::backward, Op::forward_embedding, Op::backward_embedding};

CallSpec step_spec(Op op) {
  CallSpec spec;
  spec.op = op;
  spec.tokens = 24;
  spec.in = 40;
  spec.out = {32};
  spec.num_slots = 4;
  spec.ranks = {8, 3, 16, 5};
  spec.scalings = {0.5f, 2.0f, 0.25f};
  spec.outputs = kOutputDx | kOutputDa | kOutputDb | kOutputDbias | kOutputDs;
  if (testing::has_ids(op)) {
    spec.outputs = kOutputDa | kOutputDb | kOutputDs;
  } else {
    spec.dropout = {11, 0, 0.5f, 0};
  }
  return spec;
}

// The steps of one call whose slots change in place; everything else is set back between them, so
// that what a step reads of the one before stands in the workspace or in the backend.
Outcome run_steps(Session& session, const CallSpec& spec,
                  const std::vector<std::vector<std::int32_t>>& steps) {
  for (NamedStream& named : session.streams()) {
    const Stream stream = named.stream.get();
    const auto call_of = [&](std::size_t step) {
      CallSpec one = spec;
      for (std::int64_t i = 0; i < spec.tokens; ++i) {
        one.token_slots.push_back(steps[step][static_cast<std::size_t>(i) % steps[step].size()]);
      }
      return build(one, session.seed());
    };
    FilledCall filled = call_of(0);
    DeviceCall device(session.backend(), filled.call);
    if (Status status = device.prepare(stream); !status.ok())
      return Outcome::fail(status.message());
    for (std::size_t step = 0; step < steps.size(); ++step) {
      filled.call.addressing = call_of(step).call.addressing;
      filled.oracle = testing::compute(filled.call);
      Status status = device.update(filled.call.addressing, stream);
      if (status.ok()) status = device.run(stream, filled.call.options);
      CallOutcome outcome = device.collect(stream);
      if (!status.ok()) outcome.status = status;
      const Outcome judged = judge_outcome(
          filled, outcome, named.name + " stream, step " + std::to_string(step + 1) + ", ");
      if (!judged.passed()) return judged;
    }
  }
  return {};
}

// Accumulating twice in the same memory: gradients of two equal micro-batches.
Outcome run_micro_batches(Session& session, const CallSpec& spec) {
  for (NamedStream& named : session.streams()) {
    const Stream stream = named.stream.get();
    FilledCall filled = build(spec, session.seed());
    DeviceCall device(session.backend(), filled.call);
    Status status = device.prepare(stream);
    for (int i = 0; i < 2 && status.ok(); ++i) status = device.run(stream, filled.call.options);
    if (!status.ok()) return Outcome::fail(status.message());
    const CallOutcome outcome = device.collect(stream);
    const auto twice = [](testing::Expected& expected) {
      for (std::size_t i = 0; i < expected.exact.size(); ++i) {
        if (expected.region[i] == testing::Region::computed) expected.exact[i] += expected.delta[i];
      }
    };
    twice(filled.oracle.dx);
    for (auto* all : {&filled.oracle.da, &filled.oracle.db, &filled.oracle.dbias}) {
      for (testing::Expected& expected : *all) twice(expected);
    }
    if (Outcome judged = judge_outcome(filled, outcome, named.name + " stream, ");
        !judged.passed()) {
      return judged;
    }
  }
  return {};
}

HostTensor one_row(const HostTensor& tensor, std::int64_t row) {
  if (!tensor.given()) return {};
  std::vector<std::int64_t> sizes = tensor.sizes;
  sizes[0] = 1;
  HostTensor picked(tensor.dtype, sizes);
  std::memcpy(picked.bytes.data(), tensor.at(row * tensor.columns()), picked.bytes.size());
  return picked;
}

// Under batch invariance y, h, dx and ds of a row alone have the bits of the batch. Dropout counts
// rows from row_base, so that a row alone can be given its number.
Outcome check_rows_alone(Session& session, const CallSpec& spec) {
  const FilledCall whole = build(spec, session.seed());
  const CallOutcome outcome = run_call(session.backend(), whole.call, session.stream());
  if (Outcome judged = judge_outcome(whole, outcome, ""); !judged.passed()) return judged;
  const auto routes = testing::routes_of(whole.call);
  for (const std::int64_t row : {0, 5, 10, 23}) {
    if (routes[static_cast<std::size_t>(row)].slot < 0) continue;
    FilledCall part = whole;
    HostCall& call = part.call;
    for (HostTensor* tensor :
         {&call.x, &call.ids, &call.h, &call.y, &call.dy, &call.dx, &call.ds}) {
      *tensor = one_row(*tensor, row);
    }
    call.dropout.row_base += row;
    call.addressing = {};
    call.addressing.num_tokens = 1;
    call.addressing.token_slots = {routes[static_cast<std::size_t>(row)].slot};
    part.oracle = testing::compute(call);
    const CallOutcome single = run_call(session.backend(), call, session.stream());
    const std::string where = "row " + std::to_string(row) + " alone, ";
    if (Outcome judged = judge_outcome(part, single, where); !judged.passed()) return judged;
    const auto all = outputs_of(whole, outcome), one = outputs_of(part, single);
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (all[i].name.find('.') != std::string::npos) continue;  // a sum over rows
      for (std::int64_t column = 0; column < all[i].expected->columns; ++column) {
        const std::int64_t at = row * all[i].expected->columns + column;
        if (all[i].expected->region[static_cast<std::size_t>(at)] == testing::Region::unspecified) {
          continue;
        }
        if (std::memcmp(all[i].got->at(at), one[i].got->at(column), size_of(all[i].got->dtype)) !=
            0) {
          return Outcome::fail(where + all[i].name + " of column " + std::to_string(column) +
                               " has other bits than in the batch");
        }
      }
    }
  }
  return {};
}

// backward with the h that forward of the same backend saved, and without: both within the
// tolerances, and with dropout both by one mask.
Outcome check_saved_h(Session& session, const CallSpec& base) {
  CallSpec spec = base;
  spec.op = Op::forward;
  spec.fill = Fill::random;
  spec.x = spec.y = spec.a = spec.b = spec.dx = DType::f32;
  const FilledCall forward = build(spec, session.seed());
  const CallOutcome saved = run_call(session.backend(), forward.call, session.stream());
  if (Outcome judged = judge_outcome(forward, saved, "forward, "); !judged.passed()) return judged;
  spec.op = Op::backward;
  FilledCall without = build(spec, session.seed());
  spec.gives_h = true;
  FilledCall with = build(spec, session.seed());
  for (std::int64_t i = 0; i < saved.h.count(); ++i) {
    if (forward.oracle.h.region[static_cast<std::size_t>(i)] == testing::Region::computed) {
      with.call.h.set(i, saved.h.get(i));
    }
  }
  with.oracle = without.oracle;  // of the exact h
  for (const FilledCall* filled : {&without, &with}) {
    const CallOutcome outcome = run_call(session.backend(), filled->call, session.stream());
    Outcome judged = judge_outcome(*filled, outcome, filled == &with ? "h saved, " : "no h, ");
    if (!judged.passed()) return judged;
  }
  return {};
}

}  // namespace

void add_training_step_cases(CaseList& list) {
  for (const Op op : kOps) {
    for (const auto& [form, form_name] :
         {std::pair{AddressingForm::tokens, "tokens"},
          {AddressingForm::grouped_by_host, "grouped_by_host"},
          {AddressingForm::grouped_by_backend, "grouped_by_backend"}}) {
      CallSpec spec = step_spec(op);
      spec.form = form;
      list.scenario(
          name_of(op) + "/steps/C1_D1/" + form_name,
          "C1, D1: slots change from step to step, to none and back", [spec](Session& session) {
            return run_steps(session, spec, {{0, 0, 1}, {-1}, {0, 1, 2, 3}, {3}, {2, -1}});
          });
    }
    for (const DType dtype : {DType::f32, DType::bf16}) {
      CallSpec spec = step_spec(op);
      spec.fill = Fill::random;
      spec.x = spec.y = spec.a = spec.b = spec.dx = dtype;
      spec.tokens = 70;
      spec.in = 200;
      spec.out = {72};
      const std::string end = std::string("/") + rankfold::to_string(dtype);
      list.scenario(name_of(op) + "/determinism/20_runs" + end,
                    "G7: the same call gives the same bits, on every stream",
                    [spec](Session& session) { return check_determinism(session, spec, 20); });
      spec.tokens = 24;
      spec.options.batch_invariant = BatchInvariant::on;
      list.scenario(name_of(op) + "/invariance/rows_alone" + end,
                    "G7: a row alone and in its batch has the same bits",
                    [spec](Session& session) { return check_rows_alone(session, spec); });
    }
    CallSpec spec = step_spec(op);
    list.scenario(name_of(op) + "/configurations/exact",
                  "G4, G6: every configuration of every strategy gives the same bits",
                  [spec](Session& session) { return check_configurations(session, spec); });
    list.scenario(name_of(op) + "/workspace/monotone",
                  "a workspace for upper bounds serves every smaller call",
                  [spec](Session& session) { return check_workspace(session, spec); });
    if (!testing::is_backward(op)) continue;
    CallSpec accumulating = step_spec(op);
    accumulating.gradient_mode = YMode::accumulate;
    accumulating.dx = DType::f32;
    accumulating.x = accumulating.y = DType::f32;
    list.scenario(
        name_of(op) + "/steps/micro_batches",
        "gradients of micro-batches add up in the same memory",
        [accumulating](Session& session) { return run_micro_batches(session, accumulating); });
  }
  list.scenario("backward/saved_h/dropout", "the h of forward and the h of x give one gradient",
                [](Session& session) { return check_saved_h(session, step_spec(Op::backward)); });
}

}  // namespace rankfold::conformance
