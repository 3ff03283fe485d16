// Accuracy where 16-bit shortcuts lose it, embeddings, and what may not leak from row to row.
#include <cmath>
#include <limits>
#include <string>

#include "case.hpp"
#include "check_call.hpp"

namespace rankfold::conformance {

using testing::Fill;
using testing::HostCall;

namespace {

void set_dtypes(CallSpec& spec, DType dtype) { spec.x = spec.y = spec.a = spec.b = dtype; }

}  // namespace

void add_number_cases(CaseList& list) {
  for (const DType dtype : {DType::f16, DType::bf16, DType::f32}) {
    for (const Op op : {Op::apply_linear, Op::shrink, Op::expand}) {
      CallSpec spec;
      spec.op = op;
      spec.fill = Fill::cancelling;
      set_dtypes(spec, dtype);
      spec.tokens = 24;
      spec.in = 256;
      spec.out = {96};
      spec.ranks = {256};
      spec.x_scale = dtype == DType::f16 ? 4e-3 : 1.0;
      list.call(name_of(op) + "/cancelling/" + rankfold::to_string(dtype),
                "F7, G1: terms that cancel need a float32 rank vector", spec);
    }
  }
  for (const DType dtype : {DType::bf16, DType::f16}) {
    CallSpec folded;
    folded.fill = Fill::random;
    set_dtypes(folded, dtype);
    folded.y = DType::f32;
    folded.scalings = {0.333333343f};
    folded.ranks = {16};
    list.call("apply_linear/scaling/third_" + std::string(rankfold::to_string(dtype)),
              "H6: the scaling stays float32 and is not folded into 16-bit weights", folded);
    folded.bias = true;
    folded.token_weights = true;
    list.call("apply_linear/scaling/bias_and_weights_" + std::string(rankfold::to_string(dtype)),
              "H6: factors of bias and delta alike", folded);
  }
  for (const std::int64_t in : {256, 4096}) {
    CallSpec long_sum;
    long_sum.fill = Fill::random;
    set_dtypes(long_sum, DType::f32);
    long_sum.tokens = 17;
    long_sum.in = in;
    list.call("apply_linear/accumulation/f32_in" + std::to_string(in),
              "float32 products: TF32 and half accumulation fail this", long_sum);
  }
  CallSpec small_tile;
  small_tile.tokens = 16;
  small_tile.out = {1024};
  small_tile.slots = SlotPattern::one;
  list.call("apply_linear/tiles/G6_T16_out1024", "G6: several column blocks of a small tile",
            small_tile);
}

void add_embedding_cases(CaseList& list) {
  for (const Op op : {Op::gather_shrink, Op::apply_embedding}) {
    for (const DType ids : {DType::i32, DType::i64}) {
      for (const Fill fill : {Fill::exact, Fill::random}) {
        for (const std::int32_t rank : {1, 2, 6, 8, 16, 33, 64, 129, 1024}) {
          CallSpec spec;
          spec.op = op;
          spec.fill = fill;
          spec.ids = ids;
          spec.tokens = 23;
          spec.in = 100;
          spec.out = {64};
          spec.ranks = {rank};
          list.call(name_of(op) + "/rank/" + (fill == Fill::exact ? "exact/" : "random/") +
                        rankfold::to_string(ids) + "/r" + std::to_string(rank),
                    "columns of A by id", spec);
        }
      }
      CallSpec added;
      added.op = op;
      added.ids = ids;
      added.tokens = 11;
      added.in = 128;
      added.in_limit = 104;
      added.out = {32};
      added.slots = SlotPattern::round_robin;
      added.adjust_data = [ids](HostCall& call) {
        const double wild[] = {0,
                               99,
                               100,
                               103,
                               104,
                               -1,
                               127,
                               128,
                               -2147483648.0,
                               2147483647.0,
                               ids == DType::i64 ? 1.0e15 : 105.0};
        for (std::int64_t i = 0; i < call.ids.count(); ++i) call.ids.set(i, wild[i]);
      };
      list.call(name_of(op) + "/vocabulary/E2_" + rankfold::to_string(ids),
                "E2: ids past the adapter's columns, past the vocabulary and negative add nothing",
                added);
      added.in_limit = 0;
      added.in = 104;
      list.call(name_of(op) + "/vocabulary/out_of_range_" + rankfold::to_string(ids),
                "E2: ids past the vocabulary and negative add nothing", added);
    }
    for (const std::int64_t tokens : {0, 1, 2, 64, 257}) {
      CallSpec spec;
      spec.op = op;
      spec.tokens = tokens;
      spec.ranks = {8, 1, 16};
      list.call(name_of(op) + "/tokens/T" + std::to_string(tokens), "any number of rows", spec);
    }
  }
  for (const DType y : {DType::f32, DType::f16, DType::bf16}) {
    for (const DType a : {DType::f32, DType::f16, DType::bf16}) {
      for (const DType b : {DType::f32, DType::f16, DType::bf16}) {
        CallSpec spec;
        spec.op = Op::apply_embedding;
        spec.y = y;
        spec.a = a;
        spec.b = b;
        list.call("apply_embedding/dtypes/y_" + std::string(rankfold::to_string(y)) + "_a_" +
                      rankfold::to_string(a) + "_b_" + rankfold::to_string(b),
                  "every combination of dtypes", spec);
      }
    }
  }
}

namespace {

constexpr double kBad[] = {std::numeric_limits<double>::quiet_NaN(),
                           std::numeric_limits<double>::infinity()};

// Rows 3 and 10 of x (or h) hold something that is not finite.
void poison_rows(HostCall& call, double bad) {
  testing::HostTensor& tensor = testing::has_x(call.op) ? call.x : call.h;
  for (const std::int64_t row : {3, 10}) {
    if (row >= tensor.rows()) continue;
    for (std::int64_t j = 0; j < tensor.columns(); j += 2) {
      tensor.set(row * tensor.columns() + j, bad);
    }
  }
}

// Everything of slot 1 that is a weight.
void poison_adapter(HostCall& call, double bad) {
  for (std::int64_t slice = 0; slice < call.shape.num_slices; ++slice) {
    testing::HostEntry& entry =
        call.entries[static_cast<std::size_t>(testing::entry_index(call.shape, 1, 0, slice))];
    for (testing::HostTensor* tensor : {&entry.a, &entry.b, &entry.bias}) {
      for (std::int64_t i = 0; i < tensor->count(); i += 3) tensor->set(i, bad);
    }
  }
}

}  // namespace

void add_isolation_cases(CaseList& list) {
  for (const double bad : kBad) {
    const std::string what = std::isnan(bad) ? "nan" : "inf";
    for (const Op op : {Op::shrink, Op::expand, Op::apply_linear, Op::apply_embedding}) {
      for (const std::int64_t tokens : {14, 70}) {
        CallSpec spec;
        spec.op = op;
        spec.fill = Fill::random;
        spec.tokens = tokens;
        spec.out = {24};
        spec.ranks = {8, 5, 16};
        spec.bias = testing::uses_b(op) && op != Op::apply_embedding;
        const std::string end = what + "/T" + std::to_string(tokens);
        if (op != Op::apply_embedding) {
          spec.adjust_data = [bad](HostCall& call) { poison_rows(call, bad); };
          list.call(name_of(op) + "/isolation/row_" + end, "a row's NaN reaches no other row",
                    spec);
          spec.slots = SlotPattern::one;
          list.call(name_of(op) + "/isolation/row_of_one_adapter_" + end,
                    "a row's NaN reaches no other row of its adapter", spec);
          spec.slots = SlotPattern::mixed;
        }
        spec.adjust_data = [bad](HostCall& call) { poison_adapter(call, bad); };
        list.call(name_of(op) + "/isolation/adapter_" + end,
                  "an adapter's NaN reaches no row of another", spec);
      }
    }
  }
}

}  // namespace rankfold::conformance
