// Shapes, ranks, dtypes, addressings, options, layouts: calls judged against the oracle.
#include <string>

#include "case.hpp"

namespace rankfold::conformance {

using testing::Fill;

namespace {

const char* to_string(Fill fill) {
  switch (fill) {
    case Fill::exact:
      return "exact";
    case Fill::random:
      return "random";
    case Fill::cancelling:
      return "cancelling";
  }
  return "?";
}

void set_dtypes(CallSpec& spec, DType dtype) { spec.x = spec.y = spec.a = spec.b = dtype; }

}  // namespace

void add_group_tokens_cases(CaseList& list) {
  struct Line {
    std::int64_t tokens;
    std::int32_t slots;
  };
  for (const Line line : {Line{0, 4},
                          {1, 1},
                          {2, 3},
                          {7, 4},
                          {33, 1},
                          {257, 64},
                          {1024, 5},
                          {1025, 5},
                          {3000, 17},
                          {5, 1000}}) {
    for (const auto& [pattern, name] : {std::pair{SlotPattern::mixed, "mixed"},
                                        {SlotPattern::none, "none"},
                                        {SlotPattern::one, "one_slot"},
                                        {SlotPattern::out_of_range, "out_of_range"},
                                        {SlotPattern::round_robin, "round_robin"}}) {
      CallSpec spec;
      spec.op = Op::group_tokens;
      spec.tokens = line.tokens;
      spec.num_slots = line.slots;
      spec.slots = pattern;
      list.call("group_tokens/" + std::string(name) + "/T" + number(line.tokens) + "_slots" +
                    number(line.slots),
                "rows grouped by ascending slot, stable, out-of-range slots left out", spec);
    }
  }
}

void add_shape_cases(CaseList& list) {
  struct Shape {
    std::int64_t tokens, in, out;
    std::int32_t rank;
  };
  constexpr Shape kShapes[] = {{1, 1, 1, 1},       {3, 3424, 3696, 8}, {3, 100, 300, 8},
                               {1, 64, 48, 8},     {2, 65, 63, 5},     {16, 128, 256, 16},
                               {33, 127, 129, 9},  {64, 256, 64, 32},  {133, 96, 80, 16},
                               {257, 64, 72, 8},   {5, 4096, 40, 16},  {5, 40, 4096, 16},
                               {17, 1000, 999, 7}, {7, 31, 17, 3}};
  for (const Shape& shape : kShapes) {
    for (const Fill fill : {Fill::exact, Fill::random}) {
      for (const DType dtype : {DType::bf16, DType::f32}) {
        CallSpec spec;
        spec.fill = fill;
        set_dtypes(spec, dtype);
        spec.tokens = shape.tokens;
        spec.in = shape.in;
        spec.out = {shape.out};
        spec.ranks = {shape.rank};
        list.call("apply_linear/shape/" + std::string(to_string(fill)) + "/" +
                      rankfold::to_string(dtype) + "/T" + number(shape.tokens) + "_in" +
                      number(shape.in) + "_out" + number(shape.out) + "_r" + number(shape.rank),
                  "A1: sizes that no list of sizes has; A8: the smallest", spec);
      }
    }
  }
  for (const std::int64_t tokens : {0, 1, 2, 7, 16, 33, 64, 133, 257}) {
    for (const Op op : {Op::shrink, Op::expand, Op::apply_linear}) {
      CallSpec spec;
      spec.op = op;
      spec.fill = op == Op::apply_linear ? Fill::exact : Fill::random;
      spec.tokens = tokens;
      spec.in = 80;
      spec.out = {40, 24, 8};
      spec.ranks = {8, 4, 16, 2, 1, 0, 12};
      list.call(std::string(rankfold::to_string(op)) + "/tokens/T" + number(tokens),
                "C2: any number of rows, none as well; three slices of different ranks", spec);
    }
  }
}

void add_rank_cases(CaseList& list) {
  for (const std::int32_t rank : {1,  2,  3,  4,  7,   8,   12,  15,  16,  17,  24,  31,   32,  33,
                                  63, 64, 65, 96, 127, 128, 129, 255, 256, 320, 512, 1000, 1024}) {
    for (const Fill fill : {Fill::exact, Fill::random}) {
      for (const Op op : {Op::apply_linear, Op::shrink, Op::expand}) {
        if (op != Op::apply_linear && fill == Fill::random) continue;
        CallSpec spec;
        spec.op = op;
        spec.fill = fill;
        if (fill == Fill::random) set_dtypes(spec, DType::f16);
        spec.tokens = 5;
        spec.in = 72;
        spec.out = {56};
        spec.ranks = {rank};
        list.call(
            std::string(rankfold::to_string(op)) + "/rank/" + to_string(fill) + "/r" + number(rank),
            "A2, A3, A9, A10: every rank equals the oracle", spec);
      }
    }
    CallSpec padded;
    padded.tokens = 9;
    padded.in = 48;
    padded.out = {32, 16};
    padded.ranks = {rank, 1, 3};
    padded.max_rank = 1024;
    padded.sweep = rank <= 64;
    list.call("apply_linear/rank/in_wide_table/r" + number(rank),
              "J3: a small rank in a table of a large max_rank", padded);
  }
  CallSpec mixed;
  mixed.tokens = 19;
  mixed.out = {64, 32, 32};
  mixed.num_slots = 6;
  mixed.ranks = {8, 16, 8, 0, 64, 1, 33, 5};
  mixed.max_rank = 64;
  list.call("apply_linear/rank/mixed/exact", "A5: ranks differ between slots and slices", mixed);
  mixed.fill = Fill::random;
  mixed.scalings = {2.0f, 0.333333343f, 8.0f, 0.1f, 1.5f};
  list.call("apply_linear/rank/mixed/random", "A5: ranks differ between slots and slices", mixed);
  mixed.op = Op::expand;
  mixed.h_gap = 5;
  list.call("expand/rank/mixed/random", "A5: NaN in h past the rank must not matter", mixed);
  mixed.op = Op::shrink;
  list.call("shrink/rank/mixed/random", "A5: ranks differ between slots and slices", mixed);
  for (const Op op : {Op::shrink, Op::expand, Op::apply_linear}) {
    CallSpec zero;
    zero.op = op;
    zero.ranks = {0};
    zero.max_rank = 8;
    zero.out = {16, 24};
    list.call(std::string(rankfold::to_string(op)) + "/rank/all_zero", "rank 0 touches nothing",
              zero);
  }
}

void add_dtype_cases(CaseList& list) {
  for (const DType x : kFloats) {
    for (const DType y : kFloats) {
      if (y != x && y != DType::f32) continue;
      for (const DType a : kFloats) {
        for (const DType b : kFloats) {
          for (const Fill fill : {Fill::exact, Fill::random}) {
            CallSpec spec;
            spec.fill = fill;
            spec.x = x;
            spec.y = y;
            spec.a = a;
            spec.b = b;
            spec.tokens = 21;
            spec.in = 68;
            spec.out = {36, 20};
            spec.ranks = {8, 5};
            list.call("apply_linear/dtypes/" + std::string(to_string(fill)) + "/x_" +
                          rankfold::to_string(x) + "_y_" + rankfold::to_string(y) + "_a_" +
                          rankfold::to_string(a) + "_b_" + rankfold::to_string(b),
                      "every combination of dtypes", spec);
          }
        }
      }
    }
  }
  for (const DType first : kFloats) {
    for (const DType second : kFloats) {
      CallSpec spec;
      spec.tokens = 9;
      spec.fill = Fill::random;
      spec.op = Op::shrink;
      spec.x = first;
      spec.a = second;
      list.call("shrink/dtypes/x_" + std::string(rankfold::to_string(first)) + "_a_" +
                    rankfold::to_string(second),
                "every combination of dtypes", spec);
      spec.op = Op::expand;
      spec.fill = Fill::exact;
      spec.y = first;
      spec.b = second;
      list.call("expand/dtypes/y_" + std::string(rankfold::to_string(first)) + "_b_" +
                    rankfold::to_string(second),
                "every combination of dtypes", spec);
    }
  }
}

}  // namespace rankfold::conformance
