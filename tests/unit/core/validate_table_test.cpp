// A table's shape and one entry, and a problem written by hand.
#include <doctest/doctest.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "fake_backend.hpp"
#include "rankfold/operations.hpp"
#include "rankfold/validate.hpp"

using namespace rankfold;

namespace {

TableShape shape() {
  TableShape shape;
  shape.num_slots = 4;
  shape.num_slices = 2;
  shape.max_rank = 8;
  shape.in = 16;
  shape.out[0] = 8;
  shape.out[1] = 24;
  return shape;
}

struct EntryRule {
  const char* name;
  std::function<void(AdapterEntry&)> broken;
  const char* text;
};

}  // namespace

TEST_CASE("the shape of a table by itself") {
  CHECK(validate(shape()).ok());
  TableShape broken = shape();
  broken.num_slices = 17;
  CHECK(std::string(validate(broken).message()) ==
        "table shape: num_slices is 17; it should be 1 to 16");
  broken = shape();
  broken.max_rank = 0;
  broken.num_slots = 0;
  CHECK(validate(broken).ok());
}

TEST_CASE("an entry: every rule") {
  alignas(64) static float memory[1024];
  AdapterEntry good;
  good.a = memory;
  good.b = memory + 512;
  good.bias = memory + 900;
  good.rank = 8;
  good.scaling = 2.0f;
  good.in_limit = 16;
  good.a_row_stride = 16;
  good.b_row_stride = 8;
  REQUIRE(validate(good, shape(), 1).ok());
  const std::int64_t huge = std::numeric_limits<std::int64_t>::max() / 4;
  const std::vector<EntryRule> rules = {
      {"rank", [](AdapterEntry& e) { e.rank = 9; }, "rank is 9; it should be 0 to 8 (max_rank"},
      {"negative rank", [](AdapterEntry& e) { e.rank = -1; }, "rank is -1; it should be 0 to 8"},
      {"NaN", [](AdapterEntry& e) { e.scaling = std::numeric_limits<float>::quiet_NaN(); },
       "scaling is nan; it should be finite"},
      {"infinity", [](AdapterEntry& e) { e.scaling = std::numeric_limits<float>::infinity(); },
       "scaling is inf; it should be finite"},
      {"in_limit", [](AdapterEntry& e) { e.in_limit = 17; },
       "in_limit is 17; it should be 1 to 16 (in of the table)"},
      {"no in_limit", [](AdapterEntry& e) { e.in_limit = 0; }, "in_limit is 0; it should be 1"},
      {"a_row_stride", [](AdapterEntry& e) { e.a_row_stride = 15; },
       "a_row_stride is 15; it should be at least 16 (in_limit)"},
      {"b_row_stride", [](AdapterEntry& e) { e.b_row_stride = 7; },
       "b_row_stride is 7; it should be at least 8 (rank)"},
      {"extent of a", [=](AdapterEntry& e) { e.a_row_stride = huge; },
       "8 rows of it should be below 2^63 bytes"},
      {"extent of b", [=](AdapterEntry& e) { e.b_row_stride = huge; },
       "24 rows of it should be below 2^63 bytes"},
      {"a", [](AdapterEntry& e) { e.a = nullptr; }, "a is null; it should point to 16 elements"},
      {"b", [](AdapterEntry& e) { e.b = nullptr; }, "b is null; it should point to 8 elements"},
      {"alignment of a", [](AdapterEntry& e) { e.a = static_cast<const char*>(e.a) + 2; },
       "a is at 0x"},
      {"alignment of bias",
       [](AdapterEntry& e) {
         e.bias = reinterpret_cast<const float*>(reinterpret_cast<std::uintptr_t>(e.bias) + 1);
       },
       "bias is at 0x"},
  };
  for (const EntryRule& rule : rules) {
    CAPTURE(std::string(rule.name));
    AdapterEntry entry = good;
    rule.broken(entry);
    const Status status = validate(entry, shape(), 1);
    CAPTURE(std::string(status.message()));
    CHECK(status.code() == StatusCode::invalid_argument);
    CHECK(std::string(status.message()).find(rule.text) != std::string::npos);
  }
  for (const std::int32_t slice : {-1, 2}) {
    CHECK(std::string(validate(good, shape(), slice).message()).find("it should be 0 to 1") !=
          std::string::npos);
  }
  CHECK(validate(AdapterEntry{}, shape(), 0).ok());  // rank 0: nothing else is read
  good.bias = nullptr;
  good.in_limit = 10;
  CHECK(validate(good, shape(), 0).ok());
}

TEST_CASE("a problem written by hand: every member is checked before the backend sees it") {
  testing::FakeBackend backend;
  Problem good;
  good.shape = shape();
  REQUIRE(supports(backend, good).ok());
  REQUIRE(workspace_bytes(backend, good).ok());
  struct Rule {
    std::function<void(Problem&)> broken;
    const char* text;
  };
  const std::vector<Rule> rules = {
      {[](Problem& p) { p.op = Op(14); }, "problem: problem.op is 14; it should be 0 to 13"},
      {[](Problem& p) { p.addressing = AddressingMode(3); }, "problem.addressing is 3"},
      {[](Problem& p) { p.x_dtype = DType(6); }, "problem.x_dtype is 6"},
      {[](Problem& p) { p.y_dtype = DType(-1); }, "problem.y_dtype is -1"},
      {[](Problem& p) { p.x_dtype = DType::i32; },
       "problem.x_dtype is i32; it should be f32, f16 or bf16"},
      {[](Problem& p) { p.y_dtype = DType::i64; },
       "problem.y_dtype is i64; it should be f32, f16 or bf16"},
      {[](Problem& p) { p.y_dtype = DType::bf16; },
       "problem.y_dtype is bf16; it should be f32, as problem.x_dtype is"},
      {[](Problem& p) { p.op = Op::gather_shrink; },
       "problem.x_dtype is f32; it should be i32 or i64, the dtype of ids"},
      {[](Problem& p) { p.expert_mode = ExpertMode(2); }, "problem.expert_mode is 2"},
      {[](Problem& p) { p.x_rows = XRows(2); }, "problem.x_rows is 2"},
      {[](Problem& p) { p.shape.in = 0; }, "problem.shape.in is 0; it should be 1 or more"},
      {[](Problem& p) { p.options.strategy = Strategy(9); }, "options.strategy is 9"},
      {[](Problem& p) { p.bounds.rows = -1; }, "problem.bounds.rows is -1"},
      {[](Problem& p) { p.bounds.tokens = -1; }, "problem.bounds.tokens is -1"},
      {[](Problem& p) { p.bounds.segments = -1; }, "problem.bounds.segments is -1"},
      {[](Problem& p) { p.bounds.active_rows = -1; }, "problem.bounds.active_rows is -1"},
      {[](Problem& p) { p.dropout_p = 1.0f; }, "problem.dropout_p is 1"},
  };
  for (const Rule& rule : rules) {
    Problem problem = good;
    rule.broken(problem);
    for (const Status& status :
         {supports(backend, problem).status(), workspace_bytes(backend, problem).status()}) {
      CAPTURE(std::string(status.message()));
      CHECK(status.code() == StatusCode::invalid_argument);
      CHECK(std::string(status.message()).find(rule.text) != std::string::npos);
    }
  }
}
