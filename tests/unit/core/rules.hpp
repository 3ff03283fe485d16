// A valid call of each operation on real memory, to be broken one field at a time; and the table of
// such breaks: what is done to the call, the code and a piece of the text that must come back.
#pragma once

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "rankfold/validate.hpp"

namespace rankfold::testing {

inline constexpr std::int64_t kMax64 = std::numeric_limits<std::int64_t>::max();
inline constexpr Device kDevice{DeviceType::cuda, 1};

template <class Args>
struct Rule {
  const char* name;
  std::function<void(Args&)> broken;
  StatusCode code;
  const char* text;
};

/// Memory of a call: blocks of 64-byte alignment that do not touch.
class Memory {
 public:
  Memory() : bytes_(1 << 16) {}
  template <class T = void>
  T* take(std::size_t bytes) {
    const auto base = reinterpret_cast<std::uintptr_t>(bytes_.data());
    const std::uintptr_t begin = (base + used_ + 63) / 64 * 64;
    used_ = begin - base + bytes + 64;
    REQUIRE(used_ <= bytes_.size());
    return reinterpret_cast<T*>(begin);
  }

 private:
  std::vector<std::byte> bytes_;
  std::size_t used_ = 0;
};

inline constexpr std::int64_t kT = 4;
inline constexpr std::int64_t kIn = 6;
inline constexpr std::int64_t kOut = 8;    // 3 + 5
inline constexpr std::int64_t kHCols = 4;  // 2 slices of max_rank 2

/// The parts of valid calls. Device memory by its tag, never dereferenced.
struct Parts {
  Memory memory;

  AdapterTableView table(std::int32_t num_experts = 1) {
    AdapterTableView table;
    table.shape.num_slots = 3;
    table.shape.num_experts = num_experts;
    table.shape.num_slices = 2;
    table.shape.max_rank = 2;
    table.shape.in = kIn;
    table.shape.out[0] = 3;
    table.shape.out[1] = 5;
    table.shape.a_dtype = DType::f16;
    table.shape.b_dtype = DType::bf16;
    table.slot_stride = 2 * num_experts;
    table.entries = memory.take<AdapterEntry>(3u * 2u * static_cast<unsigned>(num_experts) * 64u);
    table.device = kDevice;
    return table;
  }
  LoraAddressing tokens() {
    LoraAddressing addressing;
    addressing.num_tokens = kT;
    addressing.token_slots = memory.take<std::int32_t>(kT * 4);
    addressing.token_weights = memory.take<float>(kT * 4);
    addressing.device = kDevice;
    return addressing;
  }
  LoraAddressing grouped() {
    LoraAddressing addressing = tokens();
    addressing.mode = AddressingMode::grouped;
    addressing.token_slots = nullptr;
    addressing.max_segments = 3;
    addressing.token_order = memory.take<std::int32_t>(kT * 4);
    addressing.segment_offsets = memory.take<std::int32_t>(16);
    addressing.segment_slots = memory.take<std::int32_t>(12);
    addressing.num_segments = memory.take<std::int32_t>(4);
    return addressing;
  }
  TensorView tensor(DType dtype, std::int64_t rows, std::int64_t columns) {
    const auto bytes = static_cast<std::size_t>(rows * columns) * size_of(dtype);
    return matrix(memory.take(bytes), dtype, rows, columns, kDevice);
  }
  TensorView x() { return tensor(DType::f16, kT, kIn); }
  TensorView y() { return tensor(DType::f16, kT, kOut); }
  TensorView h() { return tensor(DType::f32, kT, kHCols); }
  ConstTensorView ids() { return const_vector(memory.take(kT * 8), DType::i64, kT, kDevice); }
};

/// Checks that the call is accepted as it is and refused as each rule says.
template <class Args>
void check_rules(const Args& good, const std::vector<Rule<Args>>& rules, const char* op) {
  const Status status = validate(good, kDevice);
  REQUIRE_MESSAGE(status.ok(), std::string(status.message()));
  for (const Rule<Args>& rule : rules) {
    CAPTURE(std::string(op));
    CAPTURE(std::string(rule.name));
    Args args = good;
    rule.broken(args);
    const Status got = validate(args, kDevice);
    const std::string text = got.message();
    CAPTURE(text);
    CHECK(got.code() == rule.code);
    CHECK(text.rfind(std::string(op) + ": ", 0) == 0);
    CHECK(text.find(rule.text) != std::string::npos);
  }
}

/// Checks that each change leaves the call legal.
template <class Args>
void check_legal(const Args& good, const std::vector<std::function<void(Args&)>>& changes) {
  for (std::size_t i = 0; i < changes.size(); ++i) {
    Args args = good;
    changes[i](args);
    const Status got = validate(args, kDevice);
    CAPTURE(i);
    CHECK_MESSAGE(got.ok(), std::string(got.message()));
  }
}

/// A pointer past `pointer` by some bytes.
template <class T>
T* shifted(T* pointer, std::ptrdiff_t bytes) {
  return reinterpret_cast<T*>(reinterpret_cast<std::uintptr_t>(pointer) +
                              static_cast<std::uintptr_t>(bytes));
}

/// The rules of a matrix argument.
template <class Args, class View>
void add_matrix_rules(std::vector<Rule<Args>>* rules, View Args::*member, std::string name,
                      std::int64_t columns, bool may_broadcast) {
  static std::vector<std::string> texts;  // outlive the rules
  texts.reserve(4096);
  const auto text = [&](const std::string& rest) {
    REQUIRE(texts.size() < texts.capacity());
    texts.push_back(name + rest);
    return texts.back().c_str();
  };
  constexpr auto kInvalid = StatusCode::invalid_argument;
  const auto add = [&](const char* what, std::function<void(View&)> broken, const char* expected) {
    rules->push_back({what, [=](Args& args) { broken(args.*member); }, kInvalid, expected});
  };
  const std::string at_least = "should be at least " + std::to_string(columns);
  add(
      "not given", [](View& v) { v = {nullptr, v.dtype, 0, {}, {}, v.device}; },
      text(" is not given; it should be ["));
  add(
      "one dimension", [](View& v) { v.num_dims = 1; },
      text(" has 1 dimensions; it should have 2, ["));
  add(
      "three dimensions", [](View& v) { v.num_dims = 3; }, text(" has 3 dimensions"));
  add(
      "too few rows", [](View& v) { --v.sizes[0]; }, text(" has 3 rows; it should have 4 ("));
  add(
      "negative rows", [](View& v) { v.sizes[0] = -1; }, text(" has -1 rows; it should have 4"));
  add(
      "too many columns",
      [](View& v) {
        ++v.sizes[1];
        ++v.strides[0];
      },
      text(" has " + std::to_string(columns + 1) + " columns; it should have " +
           std::to_string(columns) + " ("));
  add(
      "element stride", [](View& v) { v.strides[1] = 2; },
      text(" has element stride 2; it should be 1"));
  add(
      "row stride", [](View& v) { --v.strides[0]; },
      text(" has row stride " + std::to_string(columns - 1) + "; it " + at_least));
  add(
      "negative row stride", [](View& v) { v.strides[0] = -v.strides[0]; },
      text(" has row stride -" + std::to_string(columns) + "; it " + at_least));
  if (!may_broadcast) {
    add(
        "broadcast", [](View& v) { v.strides[0] = 0; }, text(" has row stride 0; it " + at_least));
  }
  add(
      "extent", [](View& v) { v.strides[0] = kMax64; },
      text(" has 4 rows of row stride 9223372036854775807; it should end inside"));
  add(
      "extent in bytes", [](View& v) { v.strides[0] = kMax64 / 4; }, text(" has 4 rows of row"));
  add(
      "past the address space", [](View& v) { v.data = shifted(static_cast<char*>(nullptr), -16); },
      text(" has 4 rows of row"));
  add(
      "null", [](View& v) { v.data = nullptr; }, text(" is null; it should point to 4 x"));
  add(
      "misaligned",
      [](View& v) { v.data = shifted(const_cast<char*>(static_cast<const char*>(v.data)), 1); },
      text(" is at 0x"));
  add(
      "device type", [](View& v) { v.device = {}; },
      text(" is on cpu:0; it should be on cuda:1, the backend's device"));
  add(
      "device index", [](View& v) { v.device.index = 0; }, text(" is on cuda:0; it should"));
  add(
      "dtype i32", [](View& v) { v.dtype = DType::i32; }, text(" has dtype i32; it should be f32"));
  add(
      "no dtype", [](View& v) { v.dtype = static_cast<DType>(99); },
      text(" has dtype 99; it should be f32"));
}

/// options and the table: every operation has them.
template <class Args>
std::vector<Rule<Args>> common_rules() {
  constexpr auto kInvalid = StatusCode::invalid_argument;
  return {
      {"batch_invariant", [](Args& a) { a.options.batch_invariant = BatchInvariant(2); }, kInvalid,
       "options.batch_invariant is 2; it should be"},
      {"overlap", [](Args& a) { a.options.overlap = Overlap(2); }, kInvalid,
       "options.overlap is 2; it should be"},
      {"strategy", [](Args& a) { a.options.strategy = Strategy(9); }, kInvalid,
       "options.strategy is 9; it should be"},
      {"negative strategy", [](Args& a) { a.options.strategy = Strategy(-1); }, kInvalid,
       "options.strategy is -1"},
      {"y_mode", [](Args& a) { a.options.y_mode = YMode(2); }, kInvalid,
       "options.y_mode is 2; it should be"},
      {"configuration", [](Args& a) { a.options.configuration = -1; }, kInvalid,
       "options.configuration is -1; it should be"},
      {"num_slots", [](Args& a) { a.table.shape.num_slots = -1; }, kInvalid,
       "table.shape.num_slots is -1; it should be 0 or more"},
      {"num_experts", [](Args& a) { a.table.shape.num_experts = 0; }, kInvalid,
       "table.shape.num_experts is 0; it should be 1 or more"},
      {"no slices", [](Args& a) { a.table.shape.num_slices = 0; }, kInvalid,
       "table.shape.num_slices is 0; it should be 1 to 16"},
      {"too many slices", [](Args& a) { a.table.shape.num_slices = kMaxSlices + 1; }, kInvalid,
       "table.shape.num_slices is 17; it should be 1 to 16"},
      {"max_rank", [](Args& a) { a.table.shape.max_rank = -1; }, kInvalid,
       "table.shape.max_rank is -1; it should be 0 or more"},
      {"in", [](Args& a) { a.table.shape.in = 0; }, kInvalid,
       "table.shape.in is 0; it should be 1 or more"},
      {"out", [](Args& a) { a.table.shape.out[1] = -5; }, kInvalid,
       "table.shape.out[1] is -5; it should be 1 or more"},
      {"sum of out", [](Args& a) { a.table.shape.out[1] = kMax64; }, kInvalid,
       "the sum of out should be below 2^63"},
      {"a_dtype", [](Args& a) { a.table.shape.a_dtype = DType::i64; }, kInvalid,
       "table.shape.a_dtype is i64; it should be f32, f16 or bf16"},
      {"b_dtype", [](Args& a) { a.table.shape.b_dtype = DType(-3); }, kInvalid,
       "table.shape.b_dtype is -3; it should be f32, f16 or bf16"},
      {"slot_stride", [](Args& a) { --a.table.slot_stride; }, kInvalid, "table.slot_stride is "},
      {"extent of entries", [](Args& a) { a.table.slot_stride = kMax64; }, kInvalid,
       "3 slots of it should be below 2^63 bytes"},
      {"entries", [](Args& a) { a.table.entries = nullptr; }, kInvalid,
       "table.entries is null; it should point to"},
      {"alignment of entries", [](Args& a) { a.table.entries = shifted(a.table.entries, 32); },
       kInvalid, "table.entries is at 0x"},
      {"device of table", [](Args& a) { a.table.device = {}; }, kInvalid,
       "table is on cpu:0; it should be on cuda:1"},
      {"device of addressing", [](Args& a) { a.addressing.device.index = 3; }, kInvalid,
       "addressing is on cuda:3; it should be on cuda:1"},
      {"unknown device", [](Args& a) { a.addressing.device.type = DeviceType(5); }, kInvalid,
       "addressing is on type 5:1; it should be on cuda:1"},
  };
}

/// LoraAddressing in mode tokens, and the rule that a layer's table is no bank.
template <class Args>
std::vector<Rule<Args>> layer_rules() {
  constexpr auto kInvalid = StatusCode::invalid_argument;
  auto rules = common_rules<Args>();
  const std::vector<Rule<Args>> more = {
      {"a bank",
       [](Args& a) {
         a.table.shape.num_experts = 2;
         a.table.slot_stride = 4;
       },
       kInvalid, "table.shape.num_experts is 2; it should be 1 (a bank of experts"},
      {"mode", [](Args& a) { a.addressing.mode = AddressingMode(3); }, kInvalid,
       "addressing.mode is 3; it should be tokens (0), grouped (1) or uniform (2)"},
      {"num_tokens", [](Args& a) { a.addressing.num_tokens = -1; }, kInvalid,
       "addressing.num_tokens is -1; it should be 0 or more"},
      {"active_rows_bound", [](Args& a) { a.addressing.active_rows_bound = -2; }, kInvalid,
       "addressing.active_rows_bound is -2; it should be -1 (unknown) or more"},
      {"pairs_per_token", [](Args& a) { a.addressing.pairs_per_token = 2; },
       StatusCode::unsupported, "addressing.pairs_per_token is 2; it should be 1"},
      {"no pairs", [](Args& a) { a.addressing.pairs_per_token = 0; }, StatusCode::unsupported,
       "addressing.pairs_per_token is 0; it should be 1"},
      {"token_slots", [](Args& a) { a.addressing.token_slots = nullptr; }, kInvalid,
       "addressing.token_slots is null; it should point to 4 elements"},
      {"alignment of token_slots",
       [](Args& a) { a.addressing.token_slots = shifted(a.addressing.token_slots, 2); }, kInvalid,
       "addressing.token_slots is at 0x"},
      {"alignment of token_weights",
       [](Args& a) { a.addressing.token_weights = shifted(a.addressing.token_weights, 2); },
       kInvalid, "addressing.token_weights is at 0x"},
      {"extent of token_slots", [](Args& a) { a.addressing.num_tokens = kMax64 / 2; }, kInvalid,
       "addressing.token_slots has 4611686018427387903 elements; it should end inside"},
  };
  rules.insert(rules.end(), more.begin(), more.end());
  return rules;
}

template <class Args>
void check_grouped_rules(const Args& good, LoraAddressing grouped, const char* op) {
  constexpr auto kInvalid = StatusCode::invalid_argument;
  Args args = good;
  args.addressing = grouped;
  check_rules<Args>(
      args,
      {{"token_order", [](Args& a) { a.addressing.token_order = nullptr; }, kInvalid,
        "addressing.token_order is null; it should point to 4 elements"},
       {"segment_offsets", [](Args& a) { a.addressing.segment_offsets = nullptr; }, kInvalid,
        "addressing.segment_offsets is null; it should point to 4 elements"},
       {"segment_slots", [](Args& a) { a.addressing.segment_slots = nullptr; }, kInvalid,
        "addressing.segment_slots is null; it should point to 3 elements"},
       {"num_segments", [](Args& a) { a.addressing.num_segments = nullptr; }, kInvalid,
        "addressing.num_segments is null; it should point to 1 elements"},
       {"max_segments", [](Args& a) { a.addressing.max_segments = -1; }, kInvalid,
        "addressing.max_segments is -1; it should be 0 to 2147483647"},
       {"too many segments", [](Args& a) { a.addressing.max_segments = 2147483648; }, kInvalid,
        "addressing.max_segments is 2147483648; it should be"},
       {"too many rows", [](Args& a) { a.addressing.num_tokens = 2147483648; }, kInvalid,
        "addressing.num_tokens is 2147483648; it should be at most 2147483647 in mode grouped"},
       {"alignment",
        [](Args& a) { a.addressing.num_segments = shifted(a.addressing.num_segments, 1); },
        kInvalid, "addressing.num_segments is at 0x"}},
      op);
  check_legal<Args>(args, {[](Args& a) {
                             a.addressing.max_segments = 0;
                             a.addressing.segment_slots = nullptr;
                           },
                           [](Args& a) {
                             a.addressing.mode = AddressingMode::uniform;
                             a.addressing.token_order = nullptr;
                             a.addressing.uniform_slot = 77;
                           }});
}

/// Adds one rule of overlap: the first view is moved onto the other's last byte.
template <class Args>
Rule<Args> overlap(const char* name, std::function<void(Args&)> moved, const char* text) {
  return {name, std::move(moved), StatusCode::invalid_argument, text};
}

}  // namespace rankfold::testing
