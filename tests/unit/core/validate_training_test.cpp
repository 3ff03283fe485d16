// forward, backward and their embedding and experts forms.
#include "rules.hpp"

using namespace rankfold;
using namespace rankfold::testing;

namespace {

constexpr auto kInvalid = StatusCode::invalid_argument;

template <class Args>
std::vector<Rule<Args>> dropout_rules() {
  return {
      {"p 1", [](Args& a) { a.dropout.p = 1.0f; }, kInvalid,
       "dropout.p is 1; it should be in [0, 1)"},
      {"p negative", [](Args& a) { a.dropout.p = -0.5f; }, kInvalid, "dropout.p is -0.5; it"},
      {"p NaN", [](Args& a) { a.dropout.p = std::numeric_limits<float>::quiet_NaN(); }, kInvalid,
       "dropout.p is nan; it should be in [0, 1)"},
      {"row_base", [](Args& a) { a.dropout.row_base = -1; }, kInvalid,
       "dropout.row_base is -1; it should be 0 or more"},
      {"row_base + rows", [](Args& a) { a.dropout.row_base = kMax64 - 3; }, kInvalid,
       "dropout.row_base is 9223372036854775804; it should be"},
  };
}

template <class Args>
std::vector<Rule<Args>> gradient_rules() {
  return {
      {"mode", [](Args& a) { a.grads.mode = YMode(5); }, kInvalid,
       "grads.mode is 5; it should be accumulate (0) or overwrite (1)"},
      {"alignment of da", [](Args& a) { a.grads.da = shifted(a.grads.da, 4); }, kInvalid,
       "grads.da is at 0x"},
      {"alignment of db", [](Args& a) { a.grads.db = shifted(a.grads.db, 4); }, kInvalid,
       "grads.db is at 0x"},
      {"ds on da", [](Args& a) { a.ds.data = const_cast<float**>(a.grads.da); }, kInvalid,
       "overlaps grads.da at"},
  };
}

template <class Args>
void append(std::vector<Rule<Args>>* rules, const std::vector<Rule<Args>>& more) {
  rules->insert(rules->end(), more.begin(), more.end());
}

Gradients gradients(Parts& parts) {
  Gradients grads;
  grads.da = parts.memory.take<float*>(18 * 8);
  grads.db = parts.memory.take<float*>(18 * 8);
  return grads;
}

// Rules of an optional tensor do not hold where it is simply not given.
template <class Args>
std::vector<Rule<Args>> without(std::vector<Rule<Args>> rules, const std::string& name) {
  std::erase_if(rules, [&](const Rule<Args>& rule) { return rule.name == name; });
  return rules;
}

template <class Args, class View>
std::vector<Rule<Args>> optional_matrix_rules(View Args::*member, const char* name,
                                              std::int64_t columns) {
  std::vector<Rule<Args>> rules;
  add_matrix_rules(&rules, member, name, columns, std::string(name) == "x");
  return without(rules, "not given");
}

}  // namespace

TEST_CASE("forward: every rule") {
  using Args = ForwardArgs;
  Parts parts;
  const Args good{.x = parts.x(),
                  .table = parts.table(),
                  .addressing = parts.tokens(),
                  .y = parts.y(),
                  .h = parts.h()};
  auto rules = layer_rules<Args>();
  append(&rules, dropout_rules<Args>());
  add_matrix_rules(&rules, &Args::x, "x", kIn, true);
  add_matrix_rules(&rules, &Args::y, "y", kOut, false);
  add_matrix_rules(&rules, &Args::h, "h", kHCols, false);
  rules.push_back(overlap<Args>(
      "y with h", [](Args& a) { a.h.data = a.y.data; }, "y at [0x"));
  rules.push_back(overlap<Args>(
      "h with x", [](Args& a) { a.h.data = const_cast<void*>(a.x.data); }, "h at [0x"));
  check_rules(good, rules, "forward");
  check_grouped_rules(good, parts.grouped(), "forward");
  check_legal<Args>(good, {[](Args& a) { a.dropout.p = 0.999f; },
                           [](Args& a) { a.dropout.row_base = kMax64 - 4; }});
}

TEST_CASE("backward: every rule") {
  using Args = BackwardArgs;
  Parts parts;
  const Args good{.dy = parts.y(),
                  .x = parts.x(),
                  .h = parts.h(),
                  .table = parts.table(),
                  .addressing = parts.tokens(),
                  .dx = parts.x(),
                  .grads = gradients(parts),
                  .ds = parts.h()};
  auto rules = layer_rules<Args>();
  append(&rules, dropout_rules<Args>());
  append(&rules, gradient_rules<Args>());
  add_matrix_rules(&rules, &Args::dy, "dy", kOut, false);
  append(&rules, optional_matrix_rules(&Args::x, "x", kIn));
  append(&rules, optional_matrix_rules(&Args::h, "h", kHCols));
  append(&rules, optional_matrix_rules(&Args::dx, "dx", kIn));
  append(&rules, optional_matrix_rules(&Args::ds, "ds", kHCols));
  append<Args>(
      &rules,
      {{"da needs x", [](Args& a) { a.x = {}; }, kInvalid,
        "x is not given; it should be, since grads.da is"},
       {"db needs x or h",
        [](Args& a) {
          a.x = {};
          a.h = {};
          a.grads.da = nullptr;
        },
        kInvalid, "x is not given; it should be, since grads.db is and h is not"},
       {"dy in another half", [](Args& a) { a.dy.dtype = DType::bf16; }, kInvalid,
        "dy has dtype bf16; it should be f32, or f16 as x is"},
       {"dx in another half", [](Args& a) { a.dx.dtype = DType::bf16; }, kInvalid,
        "dx has dtype bf16; it should be f32, or f16 as x is"},
       overlap<Args>(
           "dx is dy", [](Args& a) { a.dx.data = const_cast<void*>(a.dy.data); }, "dx at [0x"),
       overlap<Args>(
           "dx is x", [](Args& a) { a.dx.data = const_cast<void*>(a.x.data); }, "overlaps x"),
       overlap<Args>(
           "ds is h", [](Args& a) { a.ds.data = const_cast<void*>(a.h.data); }, "overlaps h"),
       overlap<Args>(
           "dx with ds", [](Args& a) { a.ds.data = a.dx.data; }, "overlaps ds")});
  check_rules(good, rules, "backward");
  check_grouped_rules(good, parts.grouped(), "backward");
  check_legal<Args>(good, {[](Args& a) { a.dx = {}; }, [](Args& a) { a.ds = {}; },
                           [](Args& a) { a.h = {}; }, [](Args& a) { a.grads = {}; },
                           [](Args& a) {
                             a.x = {};
                             a.grads.da = nullptr;
                           }});
}

TEST_CASE("forward_embedding and backward_embedding: every rule") {
  Parts parts;
  {
    using Args = ForwardEmbeddingArgs;
    const Args good{.ids = parts.ids(),
                    .table = parts.table(),
                    .addressing = parts.tokens(),
                    .y = parts.y(),
                    .h = parts.h()};
    auto rules = layer_rules<Args>();
    add_matrix_rules(&rules, &Args::y, "y", kOut, false);
    add_matrix_rules(&rules, &Args::h, "h", kHCols, false);
    rules.push_back({"ids", [](Args& a) { a.ids.sizes[0] = 5; }, kInvalid,
                     "ids has 5 elements; it should have 4"});
    check_rules(good, rules, "forward_embedding");
  }
  using Args = BackwardEmbeddingArgs;
  const Args good{.dy = parts.y(),
                  .ids = parts.ids(),
                  .h = parts.h(),
                  .table = parts.table(),
                  .addressing = parts.tokens(),
                  .grads = gradients(parts),
                  .ds = parts.h()};
  auto rules = layer_rules<Args>();
  append(&rules, gradient_rules<Args>());
  add_matrix_rules(&rules, &Args::dy, "dy", kOut, false);
  append(&rules, optional_matrix_rules(&Args::h, "h", kHCols));
  append(&rules, optional_matrix_rules(&Args::ds, "ds", kHCols));
  rules.push_back({"dbias", [](Args& a) { a.grads.dbias = a.grads.da; }, kInvalid,
                   "grads.dbias is given; it should be null, since embeddings have no bias"});
  rules.push_back({"ids", [](Args& a) { a.ids = {}; }, kInvalid, "ids is not given; it should"});
  check_rules(good, rules, "backward_embedding");
}

TEST_CASE("backward_experts: its rules, although no backend has it yet") {
  using Args = BackwardExpertsArgs;
  Parts parts;
  Args good{.dy = parts.y(),
            .x = parts.x(),
            .h = parts.h(),
            .table = parts.table(3),
            .dx = parts.x(),
            .grads = gradients(parts),
            .ds = parts.h()};
  good.addressing.num_tokens = good.addressing.num_rows = kT;
  good.addressing.expert_offsets = parts.memory.take<std::int32_t>(16);
  good.addressing.device = kDevice;
  auto rules = common_rules<Args>();
  append(&rules, gradient_rules<Args>());
  add_matrix_rules(&rules, &Args::dy, "dy", kOut, false);
  append(&rules, optional_matrix_rules(&Args::dx, "dx", kIn));
  rules.push_back({"expert_offsets", [](Args& a) { a.addressing.expert_offsets = nullptr; },
                   kInvalid, "addressing.expert_offsets is null"});
  check_rules(good, rules, "backward_experts");
}
