// group_tokens, gather_shrink, apply_embedding.
#include "rankfold/addressing.hpp"
#include "rules.hpp"

using namespace rankfold;
using namespace rankfold::testing;

namespace {

template <class Args>
std::vector<Rule<Args>> ids_rules() {
  constexpr auto kInvalid = StatusCode::invalid_argument;
  auto rules = layer_rules<Args>();
  const std::vector<Rule<Args>> more = {
      {"not given", [](Args& a) { a.ids = {}; }, kInvalid,
       "ids is not given; it should be [addressing.num_tokens] = [4]"},
      {"a matrix", [](Args& a) { a.ids.num_dims = 2; }, kInvalid,
       "ids has 2 dimensions; it should have 1"},
      {"dtype", [](Args& a) { a.ids.dtype = DType::f32; }, kInvalid,
       "ids has dtype f32; it should be i32 or i64"},
      {"E1: 3 ids for a plan of 4", [](Args& a) { a.ids.sizes[0] = 3; }, kInvalid,
       "ids has 3 elements; it should have 4 (addressing.num_tokens)"},
      {"stride", [](Args& a) { a.ids.strides[0] = 2; }, kInvalid,
       "ids has element stride 2; it should be 1"},
      {"null", [](Args& a) { a.ids.data = nullptr; }, kInvalid,
       "ids is null; it should point to 4 elements"},
      {"alignment", [](Args& a) { a.ids.data = shifted(static_cast<const char*>(a.ids.data), 4); },
       kInvalid, "ids is at 0x"},
      {"device", [](Args& a) { a.ids.device = {}; }, kInvalid, "ids is on cpu:0; it should be on"},
  };
  rules.insert(rules.end(), more.begin(), more.end());
  return rules;
}

}  // namespace

TEST_CASE("gather_shrink: every rule") {
  using Args = GatherShrinkArgs;
  Parts parts;
  const Args good{
      .ids = parts.ids(), .table = parts.table(), .addressing = parts.tokens(), .h = parts.h()};
  auto rules = ids_rules<Args>();
  add_matrix_rules(&rules, &Args::h, "h", kHCols, false);
  rules.push_back(overlap<Args>(
      "h with ids", [](Args& a) { a.h.data = const_cast<void*>(a.ids.data); }, "overlaps ids at"));
  check_rules(good, rules, "gather_shrink");
  check_grouped_rules(good, parts.grouped(), "gather_shrink");
}

TEST_CASE("apply_embedding: every rule") {
  using Args = ApplyEmbeddingArgs;
  Parts parts;
  const Args good{
      .ids = parts.ids(), .table = parts.table(), .addressing = parts.tokens(), .y = parts.y()};
  auto rules = ids_rules<Args>();
  add_matrix_rules(&rules, &Args::y, "y", kOut, false);
  rules.push_back(overlap<Args>(
      "y with ids", [](Args& a) { a.y.data = const_cast<void*>(a.ids.data); }, "overlaps ids at"));
  check_rules(good, rules, "apply_embedding");
  check_grouped_rules(good, parts.grouped(), "apply_embedding");
  check_legal<Args>(
      good, {[](Args& a) { a.ids.dtype = DType::i32; }, [](Args& a) { a.y.dtype = DType::bf16; }});
}

TEST_CASE("E1: an operation on fewer rows than the plan has is refused") {
  Parts parts;
  ApplyEmbeddingArgs args{
      .ids = parts.ids(), .table = parts.table(), .addressing = parts.tokens(), .y = parts.y()};
  args.addressing.num_tokens = 830;
  CHECK(std::string(validate(args, kDevice).message()) ==
        "apply_embedding: ids has 4 elements; it should have 830 (addressing.num_tokens)");
  args.ids.sizes[0] = 830;
  CHECK(std::string(validate(args, kDevice).message()) ==
        "apply_embedding: y has 4 rows; it should have 830 (addressing.num_tokens)");
}

TEST_CASE("group_tokens: every rule") {
  using Args = GroupTokensArgs;
  constexpr auto kInvalid = StatusCode::invalid_argument;
  Parts parts;
  const std::uint64_t bytes = grouping_bytes(kT, 3);
  const Args good{.num_tokens = kT,
                  .num_slots = 3,
                  .token_slots = parts.memory.take<std::int32_t>(kT * 4),
                  .memory = parts.memory.take(bytes),
                  .memory_bytes = bytes,
                  .device = kDevice};
  check_rules<Args>(
      good,
      {{"num_tokens", [](Args& a) { a.num_tokens = -1; }, kInvalid,
        "num_tokens is -1; it should be 0 to 2147483647"},
       {"too many tokens", [](Args& a) { a.num_tokens = 2147483648; }, kInvalid,
        "num_tokens is 2147483648; it should be 0 to 2147483647"},
       {"num_slots", [](Args& a) { a.num_slots = -1; }, kInvalid, "num_slots is -1; it should"},
       {"token_slots", [](Args& a) { a.token_slots = nullptr; }, kInvalid,
        "token_slots is null; it should point to 4 elements"},
       {"alignment of token_slots", [](Args& a) { a.token_slots = shifted(a.token_slots, 1); },
        kInvalid, "token_slots is at 0x"},
       {"device", [](Args& a) { a.device = {}; }, kInvalid, "args is on cpu:0; it should be on"},
       {"bytes", [](Args& a) { --a.memory_bytes; }, StatusCode::workspace_too_small,
        "memory has 95 bytes; it should have at least 96 (grouping_bytes(4, 3))"},
       {"more slots", [](Args& a) { a.num_slots = 100000; }, StatusCode::workspace_too_small,
        "memory has 96 bytes; it should have at least"},
       {"memory", [](Args& a) { a.memory = nullptr; }, kInvalid,
        "memory is null; it should point to 96 bytes"},
       {"alignment", [](Args& a) { a.memory = shifted(static_cast<char*>(a.memory), 8); }, kInvalid,
        "memory is at 0x"},
       {"address space", [](Args& a) { a.memory = shifted(static_cast<char*>(nullptr), -64); },
        kInvalid, "it should end inside the address space"},
       {"overlap",
        [](Args& a) { a.token_slots = shifted(static_cast<const std::int32_t*>(a.memory), 92); },
        kInvalid, "overlaps token_slots at [0x"}},
      "group_tokens");
  check_legal<Args>(
      good,
      {[](Args& a) { a.num_slots = 0; }, [](Args& a) { a.memory_bytes += 1; },
       [](Args& a) { a = {.device = kDevice}; },
       [](Args& a) { a.token_slots = shifted(static_cast<const std::int32_t*>(a.memory), 96); }});
}
