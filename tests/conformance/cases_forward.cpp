// forward and forward_embedding: apply_linear and apply_embedding that also return h.
#include <string>

#include "cases_training.hpp"

namespace rankfold::conformance {

using testing::Fill;
using testing::HostCall;

namespace {

CallSpec small(Op op) {
  CallSpec spec;
  spec.op = op;
  spec.tokens = 29;
  spec.in = 52;
  spec.out = {40, 24};
  if (testing::has_ids(op)) spec.out = {40};
  spec.num_slots = 4;
  spec.ranks = {8, 3, 16, 0, 8, 1, 5};
  return spec;
}

void add_shapes(CaseList& list) {
  for (const Op op : {Op::forward, Op::forward_embedding}) {
    for (const std::int64_t tokens : {0, 1, 2, 7, 33, 64, 133}) {
      for (const Fill fill : {Fill::exact, Fill::random}) {
        CallSpec spec = small(op);
        spec.tokens = tokens;
        spec.fill = fill;
        list.call(name_of(op) + "/tokens/" + (fill == Fill::exact ? "exact/T" : "random/T") +
                      number(tokens),
                  "y as the operation without h, and h unscaled", spec);
      }
    }
    for (const std::int32_t rank : {1, 4, 7, 8, 16, 17, 33, 64, 128, 256}) {
      CallSpec spec = small(op);
      spec.tokens = 9;
      spec.ranks = {rank};
      spec.max_rank = rank == 8 ? 40 : 0;
      list.call(name_of(op) + "/rank/r" + number(rank), "A2, A5: every rank equals the oracle",
                spec);
    }
    for (const auto& [form, name] : {std::pair{AddressingForm::tokens, "tokens"},
                                     {AddressingForm::grouped_by_host, "grouped_by_host"},
                                     {AddressingForm::grouped_by_backend, "grouped_by_backend"},
                                     {AddressingForm::uniform, "uniform"}}) {
      CallSpec spec = small(op);
      spec.form = form;
      spec.slots = SlotPattern::out_of_range;
      list.call(name_of(op) + "/addressing/" + name, "C4: rows without adapter keep their bits",
                spec);
    }
    CallSpec none = small(op);
    none.slots = SlotPattern::none;
    none.active_rows_bound = 0;
    none.options.y_mode = YMode::overwrite;
    list.call(name_of(op) + "/addressing/active_rows_0_overwrite", "C5: overwriting makes zeros",
              none);
  }
}

void add_options(CaseList& list) {
  for (const Op op : {Op::forward, Op::forward_embedding}) {
    for (int flags = 1; flags < 16; ++flags) {
      const bool weights = (flags & 1) != 0, bias = (flags & 2) != 0;
      const bool overwrite = (flags & 4) != 0, invariant = (flags & 8) != 0;
      if (bias && op == Op::forward_embedding) continue;
      CallSpec spec = small(op);
      spec.fill = flags == 15 ? Fill::random : Fill::exact;
      spec.x = spec.y = kFloats[flags % 3];
      spec.token_weights = weights;
      spec.bias = bias;
      spec.options.y_mode = overwrite ? YMode::overwrite : YMode::accumulate;
      spec.options.batch_invariant = invariant ? BatchInvariant::on : BatchInvariant::off;
      std::string name = name_of(op) + "/options/";
      if (weights) name += "weights_";
      if (bias) name += "bias_";
      if (overwrite) name += "overwrite_";
      if (invariant) name += "invariant_";
      name.pop_back();
      list.call(name, "options and optional tensors; none of them reaches h", spec);
    }
    CallSpec spec = small(op);
    add_strided(list, spec);
  }
  int turn = 0;
  for (const DType x : kFloats) {
    for (const DType y : kFloats) {
      for (const DType a : kFloats) {
        for (const DType b : kFloats) {
          CallSpec spec = small(Op::forward);
          spec.tokens = 13;
          spec.x = x;
          spec.y = y;
          spec.a = a;
          spec.b = b;
          spec.fill = ++turn % 2 == 0 ? Fill::random : Fill::exact;
          const std::string end = std::string("y_") + rankfold::to_string(y) + "_a_" +
                                  rankfold::to_string(a) + "_b_" + rankfold::to_string(b);
          if (y == x || y == DType::f32) {
            list.call("forward/dtypes/x_" + std::string(rankfold::to_string(x)) + "_" + end,
                      "every combination of dtypes", spec);
          }
          if (x != DType::f32) continue;
          spec.op = Op::forward_embedding;
          spec.out = {40};
          spec.ids = turn % 3 == 0 ? DType::i64 : DType::i32;
          list.call("forward_embedding/dtypes/" + end, "every combination of dtypes", spec);
        }
      }
    }
  }
  CallSpec shared = small(Op::forward);
  shared.shared_a = SharedA::slices;
  shared.ranks = {8};
  list.call("forward/shared_a", "slices share the pointer of A: h of each", shared);
  shared.dropout.p = 0.5f;
  list.call("forward/dropout/shared_a", "slices that share A still draw a mask each", shared);
  CallSpec ids = small(Op::forward_embedding);
  ids.in = 128;
  ids.in_limit = 104;
  ids.tokens = 8;
  ids.slots = SlotPattern::round_robin;
  ids.adjust_data = [](HostCall& call) {
    const double wild[] = {0, 103, 104, -1, 127, 128, -2147483648.0, 2147483647.0};
    for (std::int64_t i = 0; i < call.ids.count(); ++i) call.ids.set(i, wild[i]);
  };
  list.call("forward_embedding/vocabulary/E2", "E2: ids past the adapter's columns add nothing",
            ids);
  for (const Op op : {Op::forward_embedding, Op::apply_embedding}) {
    CallSpec ignored = small(op);
    ignored.out = {40};
    ignored.adjust = [](HostCall& call) {
      for (testing::HostEntry& entry : call.entries) {
        if (entry.rank > 0) entry.bias = testing::HostTensor(DType::f32, {call.shape.out[0]});
      }
    };
    list.call(name_of(op) + "/options/bias_ignored",
              "embeddings have no bias, whatever an entry says", ignored);
  }
}

void add_dropout(CaseList& list) {
  for (const Drop& drop : kDrops) {
    for (const auto& [form, form_name] : {std::pair{AddressingForm::tokens, "tokens"},
                                          {AddressingForm::grouped_by_backend, "grouped"}}) {
      CallSpec spec = small(Op::forward);
      spec.dropout = drop.dropout;
      spec.form = form;
      spec.fill = drop.fill();
      list.call("forward/dropout/" + std::string(drop.name) + "/" + form_name,
                "dropout by Philox4x32-10 of seed, row, slice and column", spec);
    }
  }
  for (const std::int64_t in : {1, 2, 3, 5, 31, 257}) {
    CallSpec spec = small(Op::forward);
    spec.dropout = kDrops[0].dropout;
    spec.in = in;
    spec.x_gap = 1;
    list.call("forward/dropout/in" + number(in), "four columns a block, the last cut", spec);
  }
}

}  // namespace

void add_forward_cases(CaseList& list) {
  add_shapes(list);
  add_options(list);
  add_dropout(list);
}

}  // namespace rankfold::conformance
