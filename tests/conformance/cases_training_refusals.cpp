// Bad arguments of the training operations: refused, naming them, with nothing written.
#include <limits>
#include <string>

#include "refusals.hpp"

namespace rankfold::conformance {

namespace {

constexpr Op kOps[] = {Op::forward, Op::backward, Op::forward_embedding, Op::backward_embedding};
constexpr auto kInvalid = StatusCode::invalid_argument;

template <class Change>
Spoil dropout(Change change) {
  return [change](CallArguments& call) {
    std::visit(
        [&](auto& args) {
          if constexpr (requires { args.dropout; }) change(args.dropout);
        },
        call.args);
  };
}

template <class Change>
Spoil gradients(Change change) {
  return [change](CallArguments& call) {
    std::visit(
        [&](auto& args) {
          if constexpr (requires { args.grads; }) change(args.grads);
        },
        call.args);
  };
}

void add_dropout(CaseList& list, Op op) {
  const Refusal refusals[] = {
      {"dropout_p_1", kInvalid, "dropout.p", dropout([](Dropout& d) { d.p = 1.0f; })},
      {"dropout_p_negative", kInvalid, "dropout.p", dropout([](Dropout& d) { d.p = -0.1f; })},
      {"dropout_p_nan", kInvalid, "dropout.p",
       dropout([](Dropout& d) { d.p = std::numeric_limits<float>::quiet_NaN(); })},
      {"dropout_row_base", kInvalid, "row_base", dropout([](Dropout& d) { d.row_base = -1; })},
      {"dropout_row_base_huge", kInvalid, "row_base",
       dropout([](Dropout& d) { d.row_base = std::numeric_limits<std::int64_t>::max(); })}};
  for (const Refusal& refusal : refusals) add_refusal(list, op, refusal);
}

void add_backward(CaseList& list, Op op) {
  add_refusal(list, op,
              {"gradient_mode_unknown", kInvalid, "grads.mode",
               gradients([](Gradients& g) { g.mode = static_cast<YMode>(4); })});
  add_refusal(list, op, {"da_misaligned", kInvalid, "grads.da", gradients([](Gradients& g) {
                           g.da = shifted(g.da, 1);
                         })});
  if (op == Op::backward_embedding) {
    add_refusal(list, op,
                {"dbias_of_embedding", kInvalid, "grads.dbias",
                 gradients([](Gradients& g) { g.dbias = g.da; })});
    return;
  }
  add_refusal(
      list, op,
      {"da_without_x", kInvalid, "x is not given", tensor("x", [](auto& view) { view = {}; })});
  add_refusal(list, op, {"db_without_x_and_h", kInvalid, "x is not given", [](CallArguments& call) {
                           auto& args = std::get<BackwardArgs>(call.args);
                           args.x = {};
                           args.h = {};
                           args.grads.da = nullptr;
                         }});
  add_refusal(list, op, {"dx_overlaps_dy", kInvalid, "overlaps", [](CallArguments& call) {
                           auto& args = std::get<BackwardArgs>(call.args);
                           args.dy.data = shifted(static_cast<const void*>(args.dx.data), 2);
                         }});
}

// A tensor that may be left out is not refused for being null.
void add_optional(CaseList& list, Op op, const std::string& name, DType bad_dtype) {
  const auto one = [&](const char* what, auto change) {
    add_refusal(list, op, {name + "_" + what, kInvalid, name, tensor(name, change)});
  };
  one("rows", [](auto& view) { view.sizes[0] += 1; });
  one("columns", [](auto& view) { view.sizes[1] -= 1; });
  one("dtype", [bad_dtype](auto& view) { view.dtype = bad_dtype; });
  one("device", [](auto& view) { view.device.index += 77; });
  one("element_stride", [](auto& view) { view.strides[1] = 2; });
  one("row_stride", [](auto& view) { view.strides[0] -= 1; });
  one("odd_address", [](auto& view) { view.data = shifted(view.data, 1); });
}

}  // namespace

void add_training_refusal_cases(CaseList& list) {
  for (const Op op : kOps) {
    const bool backward = testing::is_backward(op);
    add_addressing_refusals(list, op);
    add_table_refusals(list, op);
    if (op == Op::forward || op == Op::backward) add_dropout(list, op);
    if (op == Op::forward) add_tensor_refusals(list, op, "x", DType::f64);
    if (testing::has_ids(op)) add_tensor_refusals(list, op, "ids", DType::f32);
    if (backward) {
      add_backward(list, op);
      add_tensor_refusals(list, op, "dy", DType::i32);
      add_optional(list, op, "h", DType::f16);
      if (op == Op::backward) {
        add_optional(list, op, "x", DType::f64);
        add_optional(list, op, "dx", DType::f64);
      }
    } else {
      add_tensor_refusals(list, op, "h", DType::f16);
      add_tensor_refusals(list, op, "y", DType::i32);
    }
    add_workspace_refusal(list, op);
  }
}

}  // namespace rankfold::conformance
