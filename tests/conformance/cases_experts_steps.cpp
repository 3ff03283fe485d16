// Experts in steps of one memory, without rows, and with arguments that are refused.
#include <limits>
#include <string>

#include "cases_experts.hpp"
#include "check_call.hpp"
#include "refusals.hpp"

namespace rankfold::conformance {

using testing::HostCall;
using testing::Routing;

namespace {

constexpr auto kInvalid = StatusCode::invalid_argument;

CallSpec step_spec(Op op, ExpertMode mode) {
  CallSpec spec;
  spec.op = op;
  spec.mode = mode;
  spec.tokens = 16;
  spec.in = 40;
  spec.out = {32};
  spec.num_slots = 3;
  spec.ranks = {8, 3, 16, 5, 1};
  spec.x_rows = XRows::token;
  return spec;
}

// Steps of one call whose routing and slots change in place; each is judged by its own oracle.
Outcome run_routing_steps(Session& session, CallSpec spec,
                          const std::vector<std::pair<Routing, SlotPattern>>& steps) {
  // What one step does not read another does.
  spec.adjust_data = [](HostCall& call) {
    for (std::int64_t i = 0; testing::reads_h(call.op) && i < call.h.count(); ++i) {
      call.h.set(i, static_cast<double>(i % 5) - 2);
    }
  };
  for (NamedStream& named : session.streams()) {
    const Stream stream = named.stream.get();
    FilledCall filled = build(spec, session.seed());
    DeviceCall device(session.backend(), filled.call);
    if (Status status = device.prepare(stream); !status.ok())
      return Outcome::fail(status.message());
    for (std::size_t step = 0; step < steps.size(); ++step) {
      CallSpec other = spec;
      other.routing = steps[step].first;
      other.slots = steps[step].second;
      const HostCall routed = build_skeleton(other, session.seed() + step);
      filled.call.experts = routed.experts;
      filled.call.addressing = routed.addressing;
      filled.oracle = testing::compute(filled.call);
      Status status = device.update(filled.call.addressing, filled.call.experts, stream);
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

// Zero rows with null pointers wherever nothing is to be read or written.
Outcome check_null_of_nothing(Session& session, const CallSpec& spec) {
  const FilledCall filled = build(spec, session.seed());
  DeviceCall device(session.backend(), filled.call);
  if (Status status = device.prepare(session.stream()); !status.ok()) {
    return Outcome::fail(status.message());
  }
  CallArguments arguments = device.arguments(session.stream());
  std::visit(
      [](auto& args) {
        if constexpr (requires { args.addressing.expert_ids; }) {
          args.addressing.expert_offsets = args.addressing.expert_ids = nullptr;
          args.addressing.row_tokens = args.addressing.token_slots = nullptr;
        }
        if constexpr (requires { args.x; }) args.x.data = nullptr;
        if constexpr (requires { args.h; }) args.h.data = nullptr;
        if constexpr (requires { args.y; }) args.y.data = nullptr;
      },
      arguments.args);
  const Status status = launch(session.backend(), arguments);
  CallOutcome outcome = device.collect(session.stream());
  if (!status.ok()) outcome.status = status;
  return judge_outcome(filled, outcome, "");
}

void add_refusals(CaseList& list, Op op) {
  using A = ExpertAddressing;
  const auto spoil = [](auto change) { return addressing([change](A& a) { change(a); }); };
  const Refusal refusals[] = {
      {"null_stream", kInvalid, "stream", [](CallArguments& call) { call.stream = {}; }},
      {"mode_unknown", kInvalid, "mode", spoil([](A& a) { a.mode = static_cast<ExpertMode>(7); })},
      {"x_rows_unknown", kInvalid, "x_rows", spoil([](A& a) { a.x_rows = static_cast<XRows>(5); })},
      {"num_tokens_negative", kInvalid, "num_tokens", spoil([](A& a) { a.num_tokens = -1; })},
      {"num_rows_negative", kInvalid, "num_rows", spoil([](A& a) { a.num_rows = -1; })},
      {"F3_rows_of_another_batch", kInvalid, "num_rows", spoil([](A& a) { a.num_rows += 64; })},
      {"row_begin_negative", kInvalid, "row_begin", spoil([](A& a) { a.row_begin = -1; })},
      {"row_begin_past_end", kInvalid, "row_end", spoil([](A& a) {
         a.row_begin = 4;
         a.row_end = 3;
       })},
      {"row_end_past_rows", kInvalid, "row_end", spoil([](A& a) { a.row_end = a.num_rows + 1; })},
      {"bound_rows_below_window", kInvalid, "bound_rows", spoil([](A& a) { a.bound_rows = 3; })},
      {"bound_rows_negative", kInvalid, "bound_rows", spoil([](A& a) { a.bound_rows = -2; })},
      {"expert_ids_null", kInvalid, "expert_ids", spoil([](A& a) { a.expert_ids = nullptr; })},
      {"top_k_0", kInvalid, "top_k", spoil([](A& a) { a.top_k = 0; })},
      {"top_k_of_another_batch", kInvalid, "num_rows", spoil([](A& a) { a.top_k = 3; })},
      {"grouped_without_offsets", kInvalid, "expert_offsets", spoil([](A& a) {
         a.mode = ExpertMode::grouped;
         a.row_tokens = a.expert_ids;
       })},
      {"grouped_without_row_tokens", kInvalid, "row_tokens", spoil([](A& a) {
         a.mode = ExpertMode::grouped;
         a.expert_offsets = a.expert_ids;
       })},
      {"addressing_device", kInvalid, "addressing", spoil([](A& a) { a.device.index += 77; })}};
  for (const Refusal& refusal : refusals) add_refusal(list, op, refusal);
  add_table_refusals(list, op);
  if (testing::has_x(op)) add_tensor_refusals(list, op, "x", DType::f64);
  if (testing::has_x(op) != testing::makes_y(op)) {
    add_tensor_refusals(list, op, "h", DType::f16);
  }
  if (testing::makes_y(op)) add_tensor_refusals(list, op, "y", DType::i32);
  add_workspace_refusal(list, op);
}

}  // namespace

void add_experts_step_cases(CaseList& list) {
  for (const Op op : kExpertOps) {
    for (const auto& [mode, mode_name] :
         {std::pair{ExpertMode::grouped, "grouped"}, {ExpertMode::gather, "gather"}}) {
      const CallSpec spec = step_spec(op, mode);
      const std::string end = std::string("/") + mode_name;
      list.scenario(name_of(op) + "/steps/C1_all_base_after_adapters" + end,
                    "C1: a batch without adapters, or without local rows, gets none of the batch "
                    "before",
                    [spec](Session& session) {
                      return run_routing_steps(session, spec,
                                               {{Routing::even, SlotPattern::mixed},
                                                {Routing::even, SlotPattern::none},
                                                {Routing::skewed, SlotPattern::one},
                                                {Routing::nowhere, SlotPattern::one},
                                                {Routing::one, SlotPattern::mixed},
                                                {Routing::twice, SlotPattern::round_robin}});
                    });
      CallSpec none = spec;
      none.tokens = 0;
      none.slots = SlotPattern::one;
      list.scenario(name_of(op) + "/tables/null_without_rows" + end,
                    "C2: without rows every pointer may be null",
                    [none](Session& session) { return check_null_of_nothing(session, none); });
      CallSpec no_slots = spec;
      no_slots.num_slots = 0;
      no_slots.token_slots.assign(16, 0);
      list.call(name_of(op) + "/tables/no_slots" + end, "a table without slots", no_slots);
      CallSpec no_rank = spec;
      no_rank.ranks = {0};
      no_rank.adjust = [](HostCall& call) {
        call.shape.max_rank = 0;
        if (call.h.given()) call.h = testing::HostTensor(DType::f32, {call.h.rows(), 0});
      };
      list.call(name_of(op) + "/tables/max_rank_0" + end, "a table without room for any rank",
                no_rank);
    }
    add_refusals(list, op);
  }
}

}  // namespace rankfold::conformance
