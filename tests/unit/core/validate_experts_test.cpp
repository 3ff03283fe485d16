// shrink_experts, expand_experts, apply_experts.
#include "rules.hpp"

using namespace rankfold;
using namespace rankfold::testing;

namespace {

constexpr std::int32_t kExperts = 3;
constexpr auto kInvalid = StatusCode::invalid_argument;

struct ExpertParts : Parts {
  // 4 routed rows of 2 tokens.
  ExpertAddressing grouped_rows() {
    ExpertAddressing addressing;
    addressing.num_tokens = 2;
    addressing.num_rows = kT;
    addressing.expert_offsets = memory.take<std::int32_t>((kExperts + 1) * 4);
    addressing.row_tokens = memory.take<std::int32_t>(kT * 4);
    addressing.token_slots = memory.take<std::int32_t>(2 * 4);
    addressing.row_weights = memory.take<float>(kT * 4);
    addressing.token_weights = memory.take<float>(2 * 4);
    addressing.device = kDevice;
    return addressing;
  }
  ExpertAddressing gathered_rows() {
    ExpertAddressing addressing = grouped_rows();
    addressing.mode = ExpertMode::gather;
    addressing.expert_offsets = nullptr;
    addressing.row_tokens = nullptr;
    addressing.expert_ids = memory.take<std::int32_t>(kT * 4);
    addressing.top_k = 2;
    addressing.expert_base = -7;
    return addressing;
  }
};

template <class Args>
std::vector<Rule<Args>> grouped_rules() {
  auto rules = common_rules<Args>();
  const std::vector<Rule<Args>> more = {
      {"mode", [](Args& a) { a.addressing.mode = ExpertMode(2); }, kInvalid,
       "addressing.mode is 2; it should be grouped (0) or gather (1)"},
      {"x_rows", [](Args& a) { a.addressing.x_rows = XRows(-1); }, kInvalid,
       "addressing.x_rows is -1; it should be own (0) or token (1)"},
      {"num_tokens", [](Args& a) { a.addressing.num_tokens = -2; }, kInvalid,
       "addressing.num_tokens is -2; it should be 0 or more"},
      {"num_rows", [](Args& a) { a.addressing.num_rows = -1; }, kInvalid,
       "addressing.num_rows is -1; it should be 0 or more"},
      {"row_begin", [](Args& a) { a.addressing.row_begin = -1; }, kInvalid,
       "addressing.row_begin is -1; it should be 0 to 4 (num_rows)"},
      {"row_begin past the rows", [](Args& a) { a.addressing.row_begin = 5; }, kInvalid,
       "addressing.row_begin is 5; it should be 0 to 4 (num_rows)"},
      {"row_end", [](Args& a) { a.addressing.row_end = 5; }, kInvalid,
       "addressing.row_end is 5; it should be -1, or 0 (row_begin) to 4 (num_rows)"},
      {"row_end before row_begin",
       [](Args& a) {
         a.addressing.row_begin = 3;
         a.addressing.row_end = 2;
       },
       kInvalid, "addressing.row_end is 2; it should be -1, or 3 (row_begin) to 4 (num_rows)"},
      {"row_end -2", [](Args& a) { a.addressing.row_end = -2; }, kInvalid,
       "addressing.row_end is -2; it should be -1"},
      {"bound_rows", [](Args& a) { a.addressing.bound_rows = 3; }, kInvalid,
       "addressing.bound_rows is 3; it should be 0 (num_rows), or at least the 4 rows"},
      {"negative bound", [](Args& a) { a.addressing.bound_rows = -1; }, kInvalid,
       "addressing.bound_rows is -1; it should be 0"},
      {"expert_offsets", [](Args& a) { a.addressing.expert_offsets = nullptr; }, kInvalid,
       "addressing.expert_offsets is null; it should point to 4 elements"},
      {"row_tokens for token_slots", [](Args& a) { a.addressing.row_tokens = nullptr; }, kInvalid,
       "addressing.row_tokens is null; it should be given, since token_slots needs"},
      {"row_tokens for token_weights",
       [](Args& a) {
         a.addressing.row_tokens = nullptr;
         a.addressing.token_slots = nullptr;
       },
       kInvalid, "addressing.row_tokens is null; it should be given, since token_weights needs"},
      {"row_tokens for x_rows",
       [](Args& a) {
         a.addressing.x_rows = XRows::token;
         a.addressing.row_tokens = nullptr;
       },
       kInvalid, "addressing.row_tokens is null; it should be given, since x_rows token needs"},
      {"too many rows", [](Args& a) { a.addressing.num_rows = 2147483648; }, kInvalid,
       "addressing.num_rows is 2147483648; it should be at most 2147483647 in mode grouped"},
      {"too many tokens", [](Args& a) { a.addressing.num_tokens = 2147483648; }, kInvalid,
       "addressing.num_tokens is 2147483648; it should be at most 2147483647 in mode grouped"},
      {"alignment",
       [](Args& a) { a.addressing.row_weights = shifted(a.addressing.row_weights, 1); }, kInvalid,
       "addressing.row_weights is at 0x"},
  };
  rules.insert(rules.end(), more.begin(), more.end());
  return rules;
}

template <class Args>
void check_gather(const Args& grouped, ExpertAddressing gathered, const char* op) {
  Args args = grouped;
  args.addressing = gathered;
  check_rules<Args>(
      args,
      {{"expert_ids", [](Args& a) { a.addressing.expert_ids = nullptr; }, kInvalid,
        "addressing.expert_ids is null; it should point to 4 elements"},
       {"alignment", [](Args& a) { a.addressing.expert_ids = shifted(a.addressing.expert_ids, 2); },
        kInvalid, "addressing.expert_ids is at 0x"},
       {"top_k", [](Args& a) { a.addressing.top_k = 0; }, kInvalid,
        "addressing.top_k is 0; it should be 1 or more in mode gather"},
       {"rows", [](Args& a) { a.addressing.top_k = 3; }, kInvalid,
        "addressing.num_rows is 4; it should be num_tokens * top_k = 2 * 3 in mode gather"},
       {"overflow",
        [](Args& a) {
          a.addressing.num_tokens = kMax64;
          a.addressing.top_k = 3;
        },
        kInvalid, "it should be num_tokens * top_k = 9223372036854775807 * 3"}},
      op);
  check_legal<Args>(args, {[](Args& a) { a.addressing.token_slots = nullptr; },
                           [](Args& a) { a.addressing.row_weights = nullptr; }});
}

}  // namespace

TEST_CASE("shrink_experts: every rule") {
  using Args = ShrinkExpertsArgs;
  ExpertParts parts;
  const Args good{.x = parts.x(),
                  .table = parts.table(kExperts),
                  .addressing = parts.grouped_rows(),
                  .h = parts.h()};
  auto rules = grouped_rules<Args>();
  add_matrix_rules(&rules, &Args::x, "x", kIn, true);
  add_matrix_rules(&rules, &Args::h, "h", kHCols, false);
  rules.push_back(overlap<Args>(
      "h with row_tokens",
      [](Args& a) { a.h.data = const_cast<std::int32_t*>(a.addressing.row_tokens); },
      "overlaps addressing.row_tokens"));
  check_rules(good, rules, "shrink_experts");
  check_gather(good, parts.gathered_rows(), "shrink_experts");
}

TEST_CASE("expand_experts: every rule") {
  using Args = ExpandExpertsArgs;
  ExpertParts parts;
  const Args good{.h = parts.h(),
                  .table = parts.table(kExperts),
                  .addressing = parts.grouped_rows(),
                  .y = parts.y()};
  auto rules = grouped_rules<Args>();
  add_matrix_rules(&rules, &Args::h, "h", kHCols, false);
  add_matrix_rules(&rules, &Args::y, "y", kOut, false);
  rules.push_back(overlap<Args>(
      "y with row_weights",
      [](Args& a) { a.y.data = const_cast<float*>(a.addressing.row_weights); },
      "overlaps addressing.row_weights"));
  check_rules(good, rules, "expand_experts");
  check_gather(good, parts.gathered_rows(), "expand_experts");
}

TEST_CASE("apply_experts: every rule") {
  using Args = ApplyExpertsArgs;
  ExpertParts parts;
  const Args good{.x = parts.x(),
                  .table = parts.table(kExperts),
                  .addressing = parts.grouped_rows(),
                  .y = parts.y()};
  auto rules = grouped_rules<Args>();
  add_matrix_rules(&rules, &Args::x, "x", kIn, true);
  add_matrix_rules(&rules, &Args::y, "y", kOut, false);
  rules.push_back({"one x row per token", [](Args& a) { a.addressing.x_rows = XRows::token; },
                   kInvalid, "x has 4 rows; it should have 2 (addressing.num_tokens)"});
  rules.push_back(overlap<Args>(
      "y with expert_offsets",
      [](Args& a) { a.y.data = const_cast<std::int32_t*>(a.addressing.expert_offsets); },
      "overlaps addressing.expert_offsets"));
  check_rules(good, rules, "apply_experts");
  check_gather(good, parts.gathered_rows(), "apply_experts");
  check_legal<Args>(good, {[](Args& a) {
                             a.addressing.x_rows = XRows::token;
                             a.x.sizes[0] = 2;
                           },
                           [](Args& a) { a.addressing.token_slots = nullptr; },
                           [](Args& a) {
                             a.addressing.row_begin = 1;
                             a.addressing.row_end = 3;
                             a.addressing.bound_rows = 2;
                           },
                           [](Args& a) { a.addressing.row_begin = 4; },
                           [](Args& a) { a.addressing.bound_rows = 1000; },
                           [](Args& a) {
                             a.addressing.row_tokens = nullptr;
                             a.addressing.token_slots = nullptr;
                             a.addressing.token_weights = nullptr;
                           }});
}

TEST_CASE("experts: no rows, no arrays") {
  ApplyExpertsArgs args;
  ExpertParts parts;
  args.table = parts.table(kExperts);
  args.addressing.device = kDevice;
  args.x = const_matrix(nullptr, DType::f32, 0, kIn, kDevice);
  args.y = matrix(nullptr, DType::f32, 0, kOut, kDevice);
  for (const ExpertMode mode : {ExpertMode::grouped, ExpertMode::gather}) {
    args.addressing.mode = mode;
    CHECK(validate(args, kDevice).ok());
  }
}
