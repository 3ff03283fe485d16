// Bad arguments: refused by code and by a text that names the argument, with nothing written.
#include "refusals.hpp"

namespace rankfold::conformance {

namespace {

constexpr Op kOps[] = {Op::shrink, Op::expand, Op::apply_linear, Op::gather_shrink,
                       Op::apply_embedding};

constexpr auto kInvalid = StatusCode::invalid_argument;

void add_tensors(CaseList& list, Op op) {
  if (testing::has_x(op)) add_tensor_refusals(list, op, "x", DType::f64);
  if (testing::has_ids(op)) add_tensor_refusals(list, op, "ids", DType::f32);
  if (testing::makes_h(op) || op == Op::expand) add_tensor_refusals(list, op, "h", DType::f16);
  if (testing::makes_y(op)) add_tensor_refusals(list, op, "y", DType::i32);
  if (op != Op::apply_linear) return;
  add_refusal(list, op, {"y_dtype_of_neither", kInvalid, "y", tensor("y", [](auto& view) {
                           view.dtype = DType::f16;
                         })});
  add_refusal(list, op, {"y_overlaps_x", kInvalid, "overlaps", [](CallArguments& call) {
                           auto& args = std::get<ApplyLinearArgs>(call.args);
                           args.x.data = shifted(static_cast<const void*>(args.y.data), 2);
                         }});
}

void add_group_tokens(CaseList& list) {
  const auto spoil = [](auto change_args) {
    return
        [change_args](CallArguments& call) { change_args(std::get<GroupTokensArgs>(call.args)); };
  };
  const Refusal refusals[] = {
      {"null_stream", kInvalid, "stream", [](CallArguments& call) { call.stream = {}; }},
      {"memory_one_byte_short", StatusCode::workspace_too_small, "memory",
       spoil([](GroupTokensArgs& args) { args.memory_bytes -= 1; })},
      {"memory_null", kInvalid, "memory",
       spoil([](GroupTokensArgs& args) { args.memory = nullptr; })},
      {"memory_misaligned", kInvalid, "memory", spoil([](GroupTokensArgs& args) {
         args.memory = static_cast<std::byte*>(args.memory) + 8;
       })},
      {"token_slots_null", kInvalid, "token_slots",
       spoil([](GroupTokensArgs& args) { args.token_slots = nullptr; })},
      {"num_tokens_negative", kInvalid, "num_tokens",
       spoil([](GroupTokensArgs& args) { args.num_tokens = -1; })},
      {"num_slots_negative", kInvalid, "num_slots",
       spoil([](GroupTokensArgs& args) { args.num_slots = -1; })},
      {"device", kInvalid, "device",
       spoil([](GroupTokensArgs& args) { args.device.index += 77; })}};
  for (const Refusal& refusal : refusals) add_refusal(list, Op::group_tokens, refusal);
}

}  // namespace

void add_refusal_cases(CaseList& list) {
  add_group_tokens(list);
  for (const Op op : kOps) {
    add_addressing_refusals(list, op);
    add_table_refusals(list, op);
    add_tensors(list, op);
    add_workspace_refusal(list, op);
  }
}

}  // namespace rankfold::conformance
