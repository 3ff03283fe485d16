#include "refusals.hpp"

#include <limits>

#include "check_call.hpp"

namespace rankfold::conformance {

namespace {

constexpr auto kInvalid = StatusCode::invalid_argument;

// Calls with spoiled arguments: the code, the text, and that nothing changed.
Outcome check_refusal(Session& session, Op op, const Refusal& refusal) {
  for (NamedStream& named : session.streams()) {
    const Stream stream = named.stream.get();
    const FilledCall filled = build(refusal_spec(op), session.seed());
    DeviceCall device(session.backend(), filled.call);
    if (Status status = device.prepare(stream); !status.ok())
      return Outcome::fail(status.message());
    CallArguments arguments = device.arguments(stream);
    refusal.spoil(arguments);
    LoraAddressing grouped;
    const Status status = launch(session.backend(), arguments, &grouped);
    CallOutcome outcome = device.collect(stream);
    if (!outcome.status.ok()) return Outcome::fail(outcome.status.message());
    outcome.status = status;
    FilledCall expected = filled;
    expected.call.expect_status = refusal.code;
    const std::string where = named.name + " stream, ";
    if (Outcome judged = judge_outcome(expected, outcome, where); !judged.passed()) return judged;
    const std::string text = status.message();
    if (text.find(refusal.mentions) == std::string::npos) {
      return Outcome::fail(where + "the text does not name \"" + refusal.mentions + "\": " + text);
    }
    if (text.find(name_of(op)) == std::string::npos) {
      return Outcome::fail(where + "the text does not name the operation: " + text);
    }
  }
  return {};
}

// One byte less than asked for; for operations that need none there is nothing to refuse.
Outcome check_small_workspace(Session& session, Op op) {
  const CallSpec spec = refusal_spec(op);
  const FilledCall filled = build(spec, session.seed());
  std::vector<Strategy> strategies = {Strategy::automatic};
  strategies.insert(strategies.end(), forced_strategies().begin(), forced_strategies().end());
  for (const Strategy strategy : strategies) {
    Problem problem = DeviceCall(session.backend(), filled.call).problem();
    problem.options.strategy = strategy;
    const auto need = workspace_bytes(session.backend(), problem);
    if (!need.ok() || *need == 0) continue;
    for (NamedStream& named : session.streams()) {
      const Stream stream = named.stream.get();
      DeviceCall device(session.backend(), filled.call);
      if (Status status = device.prepare(stream, {strategy}); !status.ok()) {
        return Outcome::fail(status.message());
      }
      CallArguments arguments = device.arguments(stream);
      std::visit(
          [&](auto& args) {
            if constexpr (requires { args.options; }) args.options.strategy = strategy;
          },
          arguments.args);
      arguments.workspace.bytes = *need - 1;
      const Status small = launch(session.backend(), arguments);
      arguments.workspace.bytes = *need;
      arguments.workspace.data = nullptr;
      const Status null = launch(session.backend(), arguments);
      CallOutcome outcome = device.collect(stream);
      outcome.status = small;
      FilledCall expected = filled;
      expected.call.expect_status = StatusCode::workspace_too_small;
      const std::string where = named.name + " stream, strategy " + rankfold::to_string(strategy) +
                                ", workspace of " + std::to_string(*need - 1) + " bytes, ";
      if (Outcome judged = judge_outcome(expected, outcome, where); !judged.passed()) return judged;
      const std::string text = small.message();
      if (text.find(std::to_string(*need)) == std::string::npos) {
        return Outcome::fail(where + "the text does not name the bytes needed: " + text);
      }
      if (null.code() != kInvalid) {
        return Outcome::fail(where + "a null workspace returned " + to_string(null.code()));
      }
    }
  }
  return {};
}

}  // namespace

CallSpec refusal_spec(Op op) {
  CallSpec spec;
  spec.op = op;
  spec.tokens = 5;
  spec.in = 16;
  spec.out = {12};
  spec.mode = ExpertMode::gather;
  spec.gives_h = true;
  return spec;
}

void add_refusal(CaseList& list, Op op, const Refusal& refusal) {
  list.scenario(
      name_of(op) + "/refusal/" + refusal.name,
      std::string("refused with ") + to_string(refusal.code) + ", naming " + refusal.mentions,
      [op, refusal](Session& session) { return check_refusal(session, op, refusal); });
}

void add_workspace_refusal(CaseList& list, Op op) {
  list.scenario(name_of(op) + "/refusal/workspace_one_byte_short",
                "a workspace one byte too small is refused, naming what is needed",
                [op](Session& session) { return check_small_workspace(session, op); });
}

void add_tensor_refusals(CaseList& list, Op op, const std::string& name, DType bad_dtype) {
  const auto one = [&](const char* what, auto change) {
    add_refusal(list, op, {name + "_" + what, kInvalid, name, tensor(name, change)});
  };
  one("null", [](auto& view) { view.data = nullptr; });
  one("not_given", [](auto& view) { view = {}; });
  one("rows", [](auto& view) { view.sizes[0] += 1; });
  one("dtype", [bad_dtype](auto& view) { view.dtype = bad_dtype; });
  one("device", [](auto& view) { view.device.index += 77; });
  one("dimensions", [](auto& view) { view.num_dims = 3; });
  one("odd_address", [](auto& view) { view.data = shifted(view.data, 1); });
  if (name == "ids") return;
  one("columns", [](auto& view) { view.sizes[1] -= 1; });
  one("element_stride", [](auto& view) { view.strides[1] = 2; });
  one("row_stride", [](auto& view) { view.strides[0] -= 1; });
  one("row_stride_huge",
      [](auto& view) { view.strides[0] = std::numeric_limits<std::int64_t>::max() / 2; });
  if (name != "x") one("row_stride_0", [](auto& view) { view.strides[0] = 0; });
}

void add_addressing_refusals(CaseList& list, Op op) {
  using A = LoraAddressing;
  const Refusal refusals[] = {
      {"null_stream", kInvalid, "stream", [](CallArguments& call) { call.stream = {}; }},
      {"num_tokens_negative", kInvalid, "num_tokens", addressing([](A& a) { a.num_tokens = -1; })},
      {"E1_metadata_of_more_rows", kInvalid, "num_tokens",
       addressing([](A& a) { a.num_tokens = 830; })},
      {"token_slots_null", kInvalid, "token_slots",
       addressing([](A& a) { a.token_slots = nullptr; })},
      {"grouped_without_arrays", kInvalid, "token_order",
       addressing([](A& a) { a.mode = AddressingMode::grouped; })},
      {"mode_unknown", kInvalid, "mode",
       addressing([](A& a) { a.mode = static_cast<AddressingMode>(9); })},
      {"pairs_per_token", StatusCode::unsupported, "pairs_per_token",
       addressing([](A& a) { a.pairs_per_token = 2; })},
      {"addressing_device", kInvalid, "addressing",
       addressing([](A& a) { a.device.index += 77; })}};
  for (const Refusal& refusal : refusals) add_refusal(list, op, refusal);
}

void add_table_refusals(CaseList& list, Op op) {
  using T = AdapterTableView;
  using O = CallOptions;
  const Refusal refusals[] = {
      {"entries_null", kInvalid, "entries", table([](T& t) { t.entries = nullptr; })},
      {"slot_stride", kInvalid, "slot_stride", table([](T& t) { t.slot_stride = 0; })},
      {"num_slices_0", kInvalid, "num_slices", table([](T& t) { t.shape.num_slices = 0; })},
      {"num_slices_17", kInvalid, "num_slices", table([](T& t) { t.shape.num_slices = 17; })},
      {"in_0", kInvalid, "in", table([](T& t) { t.shape.in = 0; })},
      {"out_negative", kInvalid, "out", table([](T& t) { t.shape.out[0] = -12; })},
      {"a_dtype", kInvalid, "a_dtype", table([](T& t) { t.shape.a_dtype = DType::f64; })},
      {"b_dtype", kInvalid, "b_dtype", table([](T& t) { t.shape.b_dtype = DType::i32; })},
      {"table_device", kInvalid, "table", table([](T& t) { t.device.index += 77; })},
      {"strategy_unknown", kInvalid, "strategy",
       options([](O& o) { o.strategy = static_cast<Strategy>(99); })},
      {"y_mode_unknown", kInvalid, "y_mode",
       options([](O& o) { o.y_mode = static_cast<YMode>(7); })},
      {"overlap_unknown", kInvalid, "overlap",
       options([](O& o) { o.overlap = static_cast<Overlap>(2); })},
      {"batch_invariant_unknown", kInvalid, "batch_invariant",
       options([](O& o) { o.batch_invariant = static_cast<BatchInvariant>(2); })}};
  for (const Refusal& refusal : refusals) add_refusal(list, op, refusal);
  if (testing::is_experts(op)) {
    add_refusal(
        list, op,
        {"num_experts_0", kInvalid, "num_experts", table([](T& t) { t.shape.num_experts = 0; })});
    return;
  }
  add_refusal(list, op, {"num_experts_2", kInvalid, "num_experts", table([](T& t) {
                           t.shape.num_experts = 2;
                           t.slot_stride = 2;
                         })});
}

}  // namespace rankfold::conformance
