// shrink, expand, apply_linear: each rule broken alone.
#include "rules.hpp"

using namespace rankfold;
using namespace rankfold::testing;

namespace {

struct Calls : Parts {
  ShrinkArgs shrink{.x = x(), .table = table(), .addressing = tokens(), .h = h()};
  ExpandArgs expand{.h = h(), .table = table(), .addressing = tokens(), .y = y()};
  ApplyLinearArgs apply{.x = x(), .table = table(), .addressing = tokens(), .y = y()};
};

template <class Args>
void rest(const Args& good, std::vector<Rule<Args>> rules, const char* op, Parts& parts) {
  const auto layer = layer_rules<Args>();
  rules.insert(rules.end(), layer.begin(), layer.end());
  check_rules(good, rules, op);
  check_grouped_rules(good, parts.grouped(), op);
}

// The written view is moved so that its first element is the last of `other`, which ends at
// `bytes`.
template <class View, class T>
void onto_last_element(View& written, T* other, std::int64_t bytes) {
  const auto last = reinterpret_cast<std::uintptr_t>(other) + static_cast<std::uintptr_t>(bytes);
  written.data = reinterpret_cast<void*>(last - size_of(written.dtype));
}

}  // namespace

TEST_CASE("shrink: every rule") {
  Calls calls;
  std::vector<Rule<ShrinkArgs>> rules;
  add_matrix_rules(&rules, &ShrinkArgs::x, "x", kIn, true);
  add_matrix_rules(&rules, &ShrinkArgs::h, "h", kHCols, false);
  rules.push_back({"h in half", [](ShrinkArgs& a) { a.h.dtype = DType::f16; },
                   StatusCode::invalid_argument, "h has dtype f16; it should be f32"});
  rules.push_back(overlap<ShrinkArgs>(
      "h with x", [](ShrinkArgs& a) { onto_last_element(a.h, a.x.data, 48); },
      "overlaps x at [0x"));
  rules.push_back(overlap<ShrinkArgs>(
      "h with token_slots",
      [](ShrinkArgs& a) { onto_last_element(a.h, a.addressing.token_slots, 16); },
      "overlaps addressing.token_slots at [0x"));
  rules.push_back(overlap<ShrinkArgs>(
      "h with entries", [](ShrinkArgs& a) { onto_last_element(a.h, a.table.entries, 6 * 64); },
      "overlaps table.entries at [0x"));
  rest(calls.shrink, rules, "shrink", calls);
}

TEST_CASE("expand: every rule") {
  Calls calls;
  std::vector<Rule<ExpandArgs>> rules;
  add_matrix_rules(&rules, &ExpandArgs::h, "h", kHCols, false);
  add_matrix_rules(&rules, &ExpandArgs::y, "y", kOut, false);
  rules.push_back(overlap<ExpandArgs>(
      "y with h", [](ExpandArgs& a) { onto_last_element(a.y, a.h.data, 64); },
      "overlaps h at [0x"));
  rules.push_back(overlap<ExpandArgs>(
      "y with token_weights",
      [](ExpandArgs& a) { onto_last_element(a.y, a.addressing.token_weights, 16); },
      "overlaps addressing.token_weights at [0x"));
  rest(calls.expand, rules, "expand", calls);
}

TEST_CASE("apply_linear: every rule") {
  Calls calls;
  using Args = ApplyLinearArgs;
  std::vector<Rule<Args>> rules;
  add_matrix_rules(&rules, &Args::x, "x", kIn, true);
  add_matrix_rules(&rules, &Args::y, "y", kOut, false);
  rules.push_back({"y in another half", [](Args& a) { a.y.dtype = DType::bf16; },
                   StatusCode::invalid_argument,
                   "y has dtype bf16; it should be f32, or f16 as x is"});
  rules.push_back({"y narrower than x",
                   [](Args& a) { a.x = const_matrix(a.x.data, DType::f32, kT, kIn, kDevice); },
                   StatusCode::invalid_argument, "y has dtype f16; it should be f32, as x is"});
  rules.push_back(overlap<Args>(
      "y with x", [](Args& a) { onto_last_element(a.y, a.x.data, 48); }, "overlaps x at [0x"));
  rules.push_back(overlap<Args>(
      "y is x", [](Args& a) { a.x.data = a.y.data; }, "overlaps x"));
  rules.push_back(overlap<Args>(
      "x's last byte in y", [](Args& a) { a.x.data = shifted(static_cast<char*>(a.y.data), -46); },
      "overlaps x"));
  rules.push_back(overlap<Args>(
      "x in y's gaps",
      [](Args& a) {
        a.y.strides[0] = 64;
        a.x.data = shifted(static_cast<char*>(a.y.data), 32);
      },
      "overlaps x"));
  rest(calls.apply, rules, "apply_linear", calls);
}

TEST_CASE("the text names the argument, what it is and what it should be") {
  Calls calls;
  calls.apply.x.sizes[1] = 3;
  CHECK(std::string(validate(calls.apply, kDevice).message()) ==
        "apply_linear: x has 3 columns; it should have 6 (table.shape.in)");
}

TEST_CASE("apply_linear: what is ordinary") {
  Calls calls;
  using Args = ApplyLinearArgs;
  check_legal<Args>(
      calls.apply,
      {[](Args& a) { a.x.strides[0] = 0; }, [](Args& a) { a.x.strides[0] = 7; },
       [](Args& a) {
         a.y.dtype = DType::f32;
         a.y.data = shifted(static_cast<char*>(a.y.data), 0);
       },
       [](Args& a) { a.addressing.token_weights = nullptr; },
       [](Args& a) { a.addressing.active_rows_bound = 0; },
       [](Args& a) { a.addressing.active_rows_bound = 1000; },
       [](Args& a) {
         a.table.slot_stride = 9;
         a.table.shape.num_slots = 1;
       },
       [](Args& a) {
         a.table.shape.num_slots = 0;
         a.table.entries = nullptr;
       },
       [](Args& a) { a.table.shape.max_rank = 0; },
       // Zero tokens: nothing needs to be there.
       [](Args& a) {
         a.addressing.num_tokens = 0;
         a.addressing.token_slots = nullptr;
         a.addressing.token_weights = nullptr;
         a.x = const_matrix(nullptr, DType::f16, 0, kIn, kDevice);
         a.y = matrix(nullptr, DType::f16, 0, kOut, kDevice);
       },
       // Adjacent, not overlapping.
       [](Args& a) { a.x.data = shifted(static_cast<char*>(a.y.data), kT * kOut * 2); },
       [](Args& a) { a.x.data = shifted(static_cast<char*>(a.y.data), -kT * kIn * 2); }});
}

TEST_CASE("C2: zero tokens in grouped form need no arrays") {
  Calls calls;
  ApplyLinearArgs args = calls.apply;
  args.addressing = {};
  args.addressing.mode = AddressingMode::grouped;
  args.addressing.device = kDevice;
  args.x = const_matrix(nullptr, DType::f16, 0, kIn, kDevice);
  args.y = matrix(nullptr, DType::f16, 0, kOut, kDevice);
  CHECK(validate(args, kDevice).ok());
}

TEST_CASE("column windows of one buffer: their extents cross, their elements do not") {
  Calls calls;
  ApplyLinearArgs args = calls.apply;
  auto* const buffer = calls.memory.take<char>(kT * 32 * 2);
  // Rows of 32: x in columns [x_at, x_at + 6), y in columns [y_at, y_at + 8).
  const auto place = [&](std::int64_t x_at, std::int64_t y_at, std::int64_t y_stride) {
    args.x = const_matrix(shifted(buffer, x_at * 2), DType::f16, kT, kIn, kDevice, 32);
    args.y = matrix(shifted(buffer, y_at * 2), DType::f16, kT, kOut, kDevice, y_stride);
    return validate(args, kDevice).ok();
  };
  CHECK(place(0, 6, 32));
  CHECK(place(8, 0, 32));
  CHECK(place(26, 0, 32));
  CHECK(place(0, 24, 32));
  CHECK(!place(0, 5, 32));
  CHECK(!place(7, 0, 32));
  CHECK(!place(27, 24, 32));
  // y's rows run on into the next row of the buffer, where x begins.
  CHECK(!place(0, 25, 32));
  CHECK(place(1, 25, 32));
  // Windows of other strides are judged by their extents.
  CHECK(!place(0, 6, 31));
}

TEST_CASE("B1: extents are exact in 64 bits: a strided y of 4.6 GB ends where x begins") {
  Calls calls;
  ApplyLinearArgs args = calls.apply;
  args.addressing.num_tokens = 2200;
  args.addressing.token_weights = nullptr;
  const std::uintptr_t base = std::uintptr_t{1} << 40;
  const std::int64_t stride = std::int64_t{1} << 20;
  const std::uintptr_t bytes = 2199ull * (1ull << 21) + kOut * 2;
  args.addressing.token_slots = reinterpret_cast<const std::int32_t*>(base - 4096 * 4);
  args.y = matrix(reinterpret_cast<void*>(base), DType::f16, 2200, kOut, kDevice, stride);
  const auto x_at = [&](std::uintptr_t address) {
    args.x = const_matrix(reinterpret_cast<const void*>(address), DType::f16, 2200, kIn, kDevice);
    return validate(args, kDevice).ok();
  };
  CHECK(x_at(base + bytes));
  CHECK(!x_at(base + bytes - 2));
}
