// backward and backward_embedding: calls judged by the oracle.
#include <cmath>
#include <limits>
#include <string>

#include "cases_training.hpp"
#include "check_call.hpp"

namespace rankfold::conformance {

using testing::Fill;
using testing::HostCall;

namespace {

constexpr Op kOps[] = {Op::backward, Op::backward_embedding};
constexpr std::uint32_t kAll = kOutputDx | kOutputDa | kOutputDb | kOutputDbias | kOutputDs;

CallSpec small(Op op) {
  CallSpec spec;
  spec.op = op;
  spec.tokens = 29;
  spec.in = 52;
  spec.out = {40, 24};
  spec.num_slots = 4;
  spec.ranks = {8, 3, 16, 0, 8, 1, 5};
  spec.scalings = {0.5f, 2.0f, 0.25f};
  spec.outputs = kAll;
  if (testing::has_ids(op)) {
    spec.out = {40};
    spec.outputs = kOutputDa | kOutputDb | kOutputDs;
  }
  return spec;
}

std::string text_of(std::uint32_t outputs) {
  std::string text;
  if ((outputs & kOutputDx) != 0) text += "dx_";
  if ((outputs & kOutputDa) != 0) text += "da_";
  if ((outputs & kOutputDb) != 0) text += "db_";
  if ((outputs & kOutputDbias) != 0) text += "dbias_";
  if ((outputs & kOutputDs) != 0) text += "ds_";
  if (text.empty()) text = "nothing_";
  text.pop_back();
  return text;
}

void add_outputs(CaseList& list) {
  for (const Op op : kOps) {
    for (std::uint32_t outputs = 0; outputs < 32; ++outputs) {
      if (op == Op::backward_embedding && (outputs & (kOutputDx | kOutputDbias)) != 0) continue;
      for (const bool gives_h : {false, true}) {
        CallSpec spec = small(op);
        spec.outputs = outputs;
        spec.gives_h = gives_h;
        const bool recomputes = (outputs & kOutputDb) != 0 && !gives_h;
        spec.gives_x = (outputs & kOutputDa) != 0 || recomputes;
        spec.fill = outputs % 3 == 2 ? Fill::random : Fill::exact;
        list.call(name_of(op) + "/outputs/" + text_of(outputs) + (gives_h ? "/h_given" : "/no_h"),
                  "every subset of outputs; x and h are given where they are needed alone", spec);
        if ((outputs & kOutputDx) == 0 || gives_h) continue;
        // dx that the kernels of the other outputs do not make themselves.
        spec.dx = DType::f32;
        list.call(name_of(op) + "/outputs/" + text_of(outputs) + "/dx_f32",
                  "every subset of outputs with dx in float32", spec);
        spec.dx = DType::bf16;
        spec.out = {24, 16, 40, 8};
        spec.ranks = {64, 33, 50};
        list.call(name_of(op) + "/outputs/" + text_of(outputs) + "/wide",
                  "every subset of outputs with more than 192 ranks of all slices", spec);
      }
    }
  }
}

void add_modes(CaseList& list) {
  for (const Op op : kOps) {
    for (int flags = 0; flags < 16; ++flags) {
      CallSpec spec = small(op);
      spec.gradient_mode = (flags & 1) != 0 ? YMode::accumulate : YMode::overwrite;
      spec.options.y_mode = (flags & 2) != 0 ? YMode::overwrite : YMode::accumulate;
      spec.token_weights = (flags & 4) != 0;
      spec.options.batch_invariant = (flags & 8) != 0 ? BatchInvariant::on : BatchInvariant::off;
      spec.gives_h = flags % 3 == 0;
      spec.bias = flags % 2 == 1 && op == Op::backward;
      spec.fill = flags % 5 == 4 ? Fill::random : Fill::exact;
      std::string name = name_of(op) + "/modes/gradients_";
      name += (flags & 1) != 0 ? "accumulate" : "overwrite";
      name += (flags & 2) != 0 ? "_dx_overwrite" : "_dx_accumulate";
      if (spec.token_weights) name += "_weights";
      if ((flags & 8) != 0) name += "_invariant";
      list.call(name, "modes of dx and of gradients apart; f = scaling * token_weight throughout",
                spec);
    }
    for (const YMode mode : {YMode::overwrite, YMode::accumulate}) {
      for (const auto& [slots, name] :
           {std::pair{SlotPattern::one, "one_of_4"}, {SlotPattern::none, "none_of_4"}}) {
        CallSpec spec = small(op);
        spec.slots = slots;
        spec.gradient_mode = mode;
        const std::string end = std::string(name) + "_" + rankfold::to_string(mode);
        list.call(name_of(op) + "/idle_slots/" + end,
                  "F8: gradients of slots without rows: zeros, or untouched when accumulating",
                  spec);
        if (slots == SlotPattern::none) spec.active_rows_bound = 0;
        list.call(name_of(op) + "/idle_slots/bound_" + end,
                  "F8: also where the host knows that there are no rows", spec);
        spec.tokens = 0;
        list.call(name_of(op) + "/idle_slots/T0_" + end, "F8, C2: a batch of no rows", spec);
      }
    }
  }
}

void add_shapes(CaseList& list) {
  for (const Op op : kOps) {
    for (const std::int64_t tokens : {1, 2, 7, 33, 64, 257}) {
      for (const Fill fill : {Fill::exact, Fill::random}) {
        CallSpec spec = small(op);
        spec.tokens = tokens;
        spec.fill = fill;
        spec.sweep = tokens < 257;
        list.call(name_of(op) + "/tokens/" + (fill == Fill::exact ? "exact/T" : "random/T") +
                      number(tokens),
                  "several adapters a batch, rank 0 among them", spec);
      }
    }
    for (const std::int32_t rank : {1, 2, 4, 7, 8, 15, 16, 17, 32, 33, 64, 65, 128, 256}) {
      CallSpec spec = small(op);
      spec.tokens = 9;
      spec.ranks = {rank};
      spec.max_rank = rank == 8 ? 40 : 0;
      spec.gives_h = rank % 2 == 0;
      spec.fill = rank % 4 == 1 ? Fill::random : Fill::exact;
      list.call(name_of(op) + "/rank/r" + number(rank), "A2, A5: every rank equals the oracle",
                spec);
    }
    for (const auto& [form, name] : {std::pair{AddressingForm::tokens, "tokens"},
                                     {AddressingForm::grouped_by_host, "grouped_by_host"},
                                     {AddressingForm::grouped_by_backend, "grouped_by_backend"},
                                     {AddressingForm::uniform, "uniform"}}) {
      for (const auto& [pattern, pattern_name] :
           {std::pair{SlotPattern::mixed, "mixed"}, {SlotPattern::out_of_range, "out_of_range"}}) {
        CallSpec spec = small(op);
        spec.form = form;
        spec.slots = pattern;
        spec.token_weights = true;
        list.call(name_of(op) + "/addressing/" + name + "/" + pattern_name,
                  "C4: the same addressing as in serving", spec);
      }
    }
    CallSpec spec = small(op);
    spec.gives_h = true;
    spec.dx_gap = 2;
    add_strided(list, spec);
  }
  CallSpec broadcast = small(Op::backward);
  broadcast.broadcast_x = true;
  list.call("backward/layout/broadcast_x", "row stride 0: one row of x for all", broadcast);
  struct Shape {
    std::int64_t tokens, in, out;
    std::int32_t rank;
  };
  for (const Shape& shape : {Shape{1, 1, 1, 1},
                             {3, 100, 300, 8},
                             {5, 1031, 40, 16},
                             {5, 40, 1031, 16},
                             {70, 129, 127, 5}}) {
    CallSpec spec = small(Op::backward);
    spec.tokens = shape.tokens;
    spec.in = shape.in;
    spec.out = {shape.out};
    spec.ranks = {shape.rank};
    list.call("backward/shape/in" + number(shape.in) + "_out" + number(shape.out),
              "A1: sizes that no list of sizes has", spec);
  }
  for (const std::int64_t tokens : {300, 1000}) {
    CallSpec spec = small(Op::backward);
    spec.fill = Fill::random;
    spec.x = spec.y = spec.a = spec.b = spec.dx = DType::f32;
    spec.tokens = tokens;
    spec.slots = SlotPattern::one;
    spec.in = 48;
    spec.out = {32};
    spec.sweep = false;
    list.call("backward/accumulation/f32_T" + number(tokens),
              "float32 sums over many rows: TF32 fails this", spec);
  }
}

void add_dtypes(CaseList& list) {
  int turn = 0;
  for (const DType x : kFloats) {
    for (const DType dy : kFloats) {
      for (const DType dx : kFloats) {
        for (const DType a : kFloats) {
          for (const DType b : kFloats) {
            const bool allowed = (dy == x || dy == DType::f32) && (dx == x || dx == DType::f32);
            if (!allowed) continue;
            CallSpec spec = small(Op::backward);
            spec.tokens = 11;
            spec.in = 36;
            spec.out = {20, 12};
            spec.x = x;
            spec.y = dy;
            spec.dx = dx;
            spec.a = a;
            spec.b = b;
            spec.fill = ++turn % 2 == 0 ? Fill::random : Fill::exact;
            spec.gives_h = turn % 3 == 0;
            list.call("backward/dtypes/x_" + std::string(rankfold::to_string(x)) + "_dy_" +
                          rankfold::to_string(dy) + "_dx_" + rankfold::to_string(dx) + "_a_" +
                          rankfold::to_string(a) + "_b_" + rankfold::to_string(b),
                      "every combination of dtypes", spec);
          }
        }
      }
    }
  }
  for (const DType dy : kFloats) {
    for (const DType a : kFloats) {
      for (const DType b : kFloats) {
        CallSpec spec = small(Op::backward_embedding);
        spec.tokens = 11;
        spec.y = dy;
        spec.a = a;
        spec.b = b;
        spec.ids = ++turn % 2 == 0 ? DType::i64 : DType::i32;
        spec.fill = turn % 3 == 0 ? Fill::random : Fill::exact;
        list.call("backward_embedding/dtypes/dy_" + std::string(rankfold::to_string(dy)) + "_a_" +
                      rankfold::to_string(a) + "_b_" + rankfold::to_string(b),
                  "every combination of dtypes", spec);
      }
    }
  }
}

void add_dropout(CaseList& list) {
  for (const Drop& drop : kDrops) {
    for (const bool gives_h : {false, true}) {
      CallSpec spec = small(Op::backward);
      spec.dropout = drop.dropout;
      spec.gives_h = gives_h;
      spec.form = gives_h ? AddressingForm::grouped_by_backend : AddressingForm::tokens;
      spec.fill = drop.fill();
      list.call("backward/dropout/" + std::string(drop.name) + (gives_h ? "/h_given" : "/no_h"),
                "the mask of forward in dx and dA, and in h where it is computed again", spec);
    }
  }
  for (const std::uint32_t outputs : {kOutputDx + 0u, kOutputDa + 0u, kOutputDb + 0u}) {
    CallSpec spec = small(Op::backward);
    spec.dropout = kDrops[0].dropout;
    spec.outputs = outputs;
    spec.gives_x = outputs != kOutputDx;
    list.call("backward/dropout/only_" + text_of(outputs), "dropout with one output alone", spec);
  }
  for (const std::int64_t in : {1, 3, 31, 257}) {
    CallSpec spec = small(Op::backward);
    spec.dropout = kDrops[0].dropout;
    spec.in = in;
    spec.x_gap = spec.dx_gap = 1;
    list.call("backward/dropout/in" + number(in), "four columns a block, the last cut", spec);
  }
}

void add_shared(CaseList& list) {
  for (const YMode mode : {YMode::overwrite, YMode::accumulate}) {
    for (const float p : {0.0f, 0.5f}) {
      for (const SlotPattern slots : {SlotPattern::mixed, SlotPattern::one}) {
        CallSpec spec = small(Op::backward);
        spec.shared_a = SharedA::slices;
        spec.out = {40, 16, 24};
        spec.ranks = {8};
        spec.gradient_mode = mode;
        spec.dropout = {3, 0, p, 0};
        spec.slots = slots;
        // No case file says that two slices share a gradient, so this is no single call of the
        // table.
        list.scenario(std::string("backward/shared_a/") + rankfold::to_string(mode) +
                          (p > 0 ? "_dropout" : "") +
                          (slots == SlotPattern::one ? "_idle_slots" : ""),
                      "slices that share A and da: the sum of all, once", [spec](Session& session) {
                        return check_call(session, build(spec, session.seed()), true);
                      });
      }
    }
  }
}

void add_embeddings(CaseList& list) {
  for (const DType ids : {DType::i32, DType::i64}) {
    for (const bool gives_h : {false, true}) {
      CallSpec spec = small(Op::backward_embedding);
      spec.ids = ids;
      spec.in = 128;
      spec.in_limit = 104;
      spec.tokens = 22;
      spec.gives_h = gives_h;
      spec.slots = SlotPattern::round_robin;
      spec.adjust_data = [](HostCall& call) {
        const double wild[] = {0,   99,  100, 103, 104,           -1,
                               127, 128, 0,   99,  -2147483648.0, 2147483647.0};
        for (std::int64_t i = 0; i < call.ids.count(); ++i) {
          call.ids.set(i, wild[static_cast<std::size_t>(i) % std::size(wild)]);
        }
      };
      list.call("backward_embedding/vocabulary/E2_" + std::string(rankfold::to_string(ids)) +
                    (gives_h ? "_h_given" : "_no_h"),
                "E2: ids past the adapter's columns, past the vocabulary and negative add nothing",
                spec);
      spec.in_limit = 0;
      spec.adjust_data = [](HostCall& call) {
        for (std::int64_t i = 0; i < call.ids.count(); ++i) {
          call.ids.set(i, static_cast<double>(i % 2 == 0 ? 5 : 77));
        }
      };
      spec.slots = SlotPattern::one;
      spec.fill = Fill::random;
      list.call("backward_embedding/vocabulary/repeated_" + std::string(rankfold::to_string(ids)) +
                    (gives_h ? "_h_given" : "_no_h"),
                "many rows of one id are added up in its column", spec);
    }
  }
}

enum class Poisoned { x, dy, dy_of_slice_0, h };

// Rows 3 and 11, and all rows without adapter.
void poison_rows(HostCall& call, Poisoned what, double bad) {
  testing::HostTensor& tensor = what == Poisoned::x   ? call.x
                                : what == Poisoned::h ? call.h
                                                      : call.dy;
  const std::int64_t columns = tensor.columns();
  const std::int64_t end = what == Poisoned::dy_of_slice_0 ? call.shape.out[0] : columns;
  const auto routes = testing::routes_of(call);
  for (std::int64_t row = 0; row < tensor.rows(); ++row) {
    const bool none = routes[static_cast<std::size_t>(row)].slot < 0;
    if (row != 3 && row != 11 && !none) continue;
    for (std::int64_t i = 0; i < end; ++i) tensor.set(row * columns + i, bad);
  }
}

void add_isolation(CaseList& list) {
  for (const Op op : kOps) {
    for (const double bad :
         {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
      for (const auto& [what, name] : {std::pair{Poisoned::x, "x"},
                                       {Poisoned::dy, "dy"},
                                       {Poisoned::dy_of_slice_0, "dy_of_slice_0"},
                                       {Poisoned::h, "h"}}) {
        if (op == Op::backward_embedding && what != Poisoned::dy) continue;
        for (const std::int64_t tokens : {23, 90}) {
          CallSpec spec = small(op);
          spec.fill = Fill::random;
          spec.ranks = {8, 5, 16};
          spec.num_slots = 5;
          spec.tokens = tokens;
          spec.gives_h = what == Poisoned::h;
          spec.adjust_data = [what = what, bad](HostCall& call) { poison_rows(call, what, bad); };
          list.call(name_of(op) + "/isolation/" + name + (std::isnan(bad) ? "_nan/T" : "_inf/T") +
                        number(tokens),
                    "a row's NaN reaches its own dx and its own (slot, slice)'s gradients alone",
                    spec);
        }
      }
      CallSpec spec = small(op);
      spec.fill = Fill::random;
      spec.ranks = {8, 5, 16};
      spec.adjust_data = [bad](HostCall& call) {
        for (std::int64_t slice = 0; slice < call.shape.num_slices; ++slice) {
          testing::HostEntry& entry =
              call.entries[static_cast<std::size_t>(testing::entry_index(call.shape, 1, 0, slice))];
          for (testing::HostTensor* tensor : {&entry.a, &entry.b}) {
            for (std::int64_t i = 0; i < tensor->count(); ++i) tensor->set(i, bad);
          }
        }
      };
      list.call(name_of(op) + "/isolation/adapter" + (std::isnan(bad) ? "_nan" : "_inf"),
                "an adapter's NaN reaches no row and no gradient of another", spec);
    }
  }
}

}  // namespace

void add_backward_cases(CaseList& list) {
  add_outputs(list);
  add_modes(list);
  add_shapes(list);
  add_dtypes(list);
  add_dropout(list);
  add_shared(list);
  add_embeddings(list);
  add_isolation(list);
}

}  // namespace rankfold::conformance
