// Bits of experts: windows against the whole, a row alone against its batch, run after run.
#include <cstring>
#include <string>

#include "cases_experts.hpp"
#include "check_call.hpp"
#include "invariance.hpp"

namespace rankfold::conformance {

using testing::Fill;
using testing::HostCall;
using testing::HostTensor;
using testing::Routing;

namespace {

CallSpec invariant_spec(Op op, DType dtype, ExpertMode mode, XRows x_rows) {
  CallSpec spec;
  spec.op = op;
  spec.fill = Fill::random;
  spec.x = spec.y = spec.a = spec.b = dtype;
  spec.mode = mode;
  spec.x_rows = x_rows;
  spec.routing = Routing::skewed;
  spec.tokens = 32;
  spec.top_k = 2;
  spec.in = 120;
  spec.out = {40, 24};
  spec.num_experts = 5;
  spec.global_experts = 6;
  spec.num_slots = 3;
  spec.ranks = {16, 8, 33, 5};
  spec.row_weights = spec.token_weights = true;
  return spec;
}

std::vector<Strategy> all_strategies() {
  std::vector<Strategy> strategies = {Strategy::automatic};
  strategies.insert(strategies.end(), forced_strategies().begin(), forced_strategies().end());
  return strategies;
}

// Empty, or where row `part_row` of a part is not, bit for bit, row `row` of the whole.
std::string compare_row(const CallOutput& whole, const CallOutput& part, std::int64_t row,
                        std::int64_t part_row) {
  const std::int64_t columns = whole.expected->columns;
  for (std::int64_t column = 0; column < columns; ++column) {
    const std::int64_t at = row * columns + column, other = part_row * columns + column;
    if (whole.expected->region[static_cast<std::size_t>(at)] == testing::Region::unspecified) {
      continue;
    }
    if (std::memcmp(whole.got->at(at), part.got->at(other), size_of(whole.got->dtype)) != 0) {
      return "row " + std::to_string(row) + ", column " + std::to_string(column) + " is " +
             std::to_string(part.got->get(other)) + ", in the whole " +
             std::to_string(whole.got->get(at));
    }
  }
  return {};
}

// The whole in one call, and in three windows: with the bound of the whole, and under batch
// invariance with bounds of their own.
Outcome check_windows(Session& session, const CallSpec& base) {
  for (const Strategy strategy : all_strategies()) {
    for (const BatchInvariant invariant : {BatchInvariant::off, BatchInvariant::on}) {
      CallSpec spec = base;
      spec.options.strategy = strategy;
      spec.options.batch_invariant = invariant;
      const FilledCall whole = build(spec, session.seed());
      const std::int64_t rows = whole.call.experts.num_rows;
      const CallOutcome outcome = run_call(session.backend(), whole.call, session.stream());
      if (outcome.status.code() == StatusCode::unsupported && strategy != Strategy::automatic) {
        continue;
      }
      const std::string with =
          std::string("strategy ") + rankfold::to_string(strategy) +
          (invariant == BatchInvariant::on ? ", batch invariant, " : ", equal bounds, ");
      if (Outcome judged = judge_outcome(whole, outcome, with + "whole, "); !judged.passed()) {
        return judged;
      }
      const std::int64_t cuts[] = {0, 5, 6, rows / 2, rows};
      for (std::size_t i = 0; i + 1 < std::size(cuts); ++i) {
        FilledCall part = whole;
        part.call.experts.row_begin = cuts[i];
        part.call.experts.row_end = cuts[i + 1];
        part.call.experts.bound_rows =
            invariant == BatchInvariant::on ? cuts[i + 1] - cuts[i] : rows;
        part.oracle = testing::compute(part.call);
        const CallOutcome window = run_call(session.backend(), part.call, session.stream());
        const std::string where = with + "window from row " + std::to_string(cuts[i]) + " to " +
                                  std::to_string(cuts[i + 1]) + ", ";
        if (Outcome judged = judge_outcome(part, window, where); !judged.passed()) return judged;
        const auto all = outputs_of(whole, outcome), some = outputs_of(part, window);
        for (std::int64_t row = cuts[i]; row < cuts[i + 1]; ++row) {
          const std::string difference = compare_row(all[0], some[0], row, row);
          if (!difference.empty()) return Outcome::fail(where + difference);
        }
      }
    }
  }
  return {};
}

HostTensor one_row(const HostTensor& tensor, std::int64_t row) {
  if (!tensor.given()) return {};
  HostTensor picked(tensor.dtype, {1, tensor.columns()});
  if (picked.count() > 0) {
    std::memcpy(picked.bytes.data(), tensor.at(row * tensor.columns()), picked.bytes.size());
  }
  return picked;
}

// A routed row as a batch of its own.
HostCall alone(const HostCall& call, std::int64_t row, ExpertMode mode) {
  const testing::RowRoute route = testing::routes_of(call)[static_cast<std::size_t>(row)];
  HostCall picked = call;
  picked.x = one_row(call.x, route.x_row);
  picked.h = one_row(call.h, row);
  picked.y = one_row(call.y, row);
  picked.addressing.num_tokens = 1;
  picked.addressing.token_slots = {route.slot};
  const std::int64_t token = call.experts.mode == ExpertMode::gather
                                 ? row / call.experts.top_k
                                 : call.experts.row_tokens[static_cast<std::size_t>(row)];
  picked.addressing.token_weights = {
      call.addressing.token_weights[static_cast<std::size_t>(token)]};
  auto& experts = picked.experts;
  experts = {};
  experts.mode = mode;
  experts.num_rows = 1;
  experts.x_rows = call.experts.x_rows;
  experts.row_weights = {call.experts.row_weights[static_cast<std::size_t>(row)]};
  if (mode == ExpertMode::gather) {
    experts.top_k = 1;
    experts.expert_ids = {route.expert};
  } else {
    experts.row_tokens = {0};
    experts.expert_offsets.assign(static_cast<std::size_t>(call.shape.num_experts) + 1, 0);
    for (std::size_t e = static_cast<std::size_t>(route.expert) + 1;
         e < experts.expert_offsets.size(); ++e) {
      experts.expert_offsets[e] = 1;
    }
  }
  return picked;
}

Outcome check_rows_alone(Session& session, const CallSpec& base) {
  for (const Strategy strategy : all_strategies()) {
    CallSpec spec = base;
    spec.options.strategy = strategy;
    spec.options.batch_invariant = BatchInvariant::on;
    const FilledCall whole = build(spec, session.seed());
    const CallOutcome outcome = run_call(session.backend(), whole.call, session.stream());
    if (outcome.status.code() == StatusCode::unsupported && strategy != Strategy::automatic) {
      continue;
    }
    if (Outcome judged = judge_outcome(whole, outcome, ""); !judged.passed()) return judged;
    const auto routes = testing::routes_of(whole.call);
    int compared = 0;
    for (std::size_t row = 0; row < routes.size() && compared < 6; row += 5) {
      if (routes[row].slot < 0) continue;
      const auto at = static_cast<std::int64_t>(row);
      for (const ExpertMode mode : {ExpertMode::grouped, ExpertMode::gather}) {
        FilledCall part;
        part.call = alone(whole.call, at, mode);
        part.oracle = testing::compute(part.call);
        const CallOutcome single = run_call(session.backend(), part.call, session.stream());
        // A strategy may be one of a mode.
        if (single.status.code() == StatusCode::unsupported && strategy != Strategy::automatic) {
          continue;
        }
        const std::string where = std::string("row ") + std::to_string(row) + " alone, strategy " +
                                  rankfold::to_string(strategy) + ", ";
        if (Outcome judged = judge_outcome(part, single, where); !judged.passed()) return judged;
        const std::string difference =
            compare_row(outputs_of(whole, outcome)[0], outputs_of(part, single)[0], at, 0);
        if (!difference.empty()) return Outcome::fail(where + difference);
        ++compared;
      }
    }
    if (compared == 0) return Outcome::fail("no row of this case has an adapter");
  }
  return {};
}

}  // namespace

void add_experts_window_cases(CaseList& list) {
  for (const Op op : kExpertOps) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      for (const ExpertMode mode : {ExpertMode::grouped, ExpertMode::gather}) {
        for (const XRows x_rows : {XRows::own, XRows::token}) {
          if (op == Op::expand_experts && x_rows == XRows::token) continue;
          const CallSpec spec = invariant_spec(op, dtype, mode, x_rows);
          const std::string end = std::string(rankfold::to_string(dtype)) +
                                  (mode == ExpertMode::grouped ? "/grouped" : "/gather") +
                                  (x_rows == XRows::own ? "/own" : "/token");
          list.scenario(name_of(op) + "/windows/" + end,
                        "windows are bit-identical to the whole by equal bounds, and under batch "
                        "invariance by any",
                        [spec](Session& session) { return check_windows(session, spec); });
          list.scenario(name_of(op) + "/invariance/rows_alone/" + end,
                        "G7: a routed row alone and in its batch has the same bits",
                        [spec](Session& session) { return check_rows_alone(session, spec); });
          list.scenario(name_of(op) + "/determinism/20_runs/" + end,
                        "G7: the same call gives the same bits, on every stream",
                        [spec](Session& session) { return check_determinism(session, spec, 20); });
        }
      }
    }
    for (const ExpertMode mode : {ExpertMode::grouped, ExpertMode::gather}) {
      CallSpec spec = invariant_spec(op, DType::bf16, mode, XRows::own);
      spec.fill = Fill::exact;
      const std::string end = mode == ExpertMode::grouped ? "grouped" : "gather";
      list.scenario(name_of(op) + "/configurations/exact/" + end,
                    "G4, G6: every configuration of every strategy gives the same bits",
                    [spec](Session& session) { return check_configurations(session, spec); });
      list.scenario(name_of(op) + "/workspace/monotone/" + end,
                    "a workspace for upper bounds serves every smaller call",
                    [spec](Session& session) { return check_workspace(session, spec); });
    }
  }
}

}  // namespace rankfold::conformance
