// Banks of experts: routing, dtypes, ranks, options, layouts, windows; calls judged by the oracle.
#include <cmath>
#include <limits>
#include <string>

#include "cases_experts.hpp"

namespace rankfold::conformance {

using testing::Fill;
using testing::HostCall;
using testing::Routing;

namespace {

void add_routing(CaseList& list) {
  for (const Op op : kExpertOps) {
    for (const ExpertMode mode : kModes) {
      for (const XRows x_rows : kXRows) {
        if (op == Op::expand_experts && x_rows == XRows::token) continue;
        for (const auto& [routing, name] : {std::pair{Routing::skewed, "skewed"},
                                            {Routing::even, "even"},
                                            {Routing::one, "F8_one"},
                                            {Routing::twice, "F8_twice"},
                                            {Routing::nowhere, "F1_nowhere"}}) {
          CallSpec spec = small_experts(op, mode, x_rows);
          spec.routing = routing;
          const std::string start =
              name_of(op) + "/routing/" + name_of(mode) + "/" + name_of(x_rows) + "/" + name;
          list.call(start, "F1, F8: experts of other shards, none, without rows, chosen twice",
                    spec);
          spec.null_slots = true;
          list.call(start + "_slot_0", "without token_slots every row uses slot 0", spec);
          spec.null_slots = false;
          spec.slots = SlotPattern::out_of_range;
          list.call(start + "_slots_out_of_range", "C4: rows of tokens without adapter", spec);
        }
      }
    }
  }
}

// F1 as it was seen: two tokens, four choices, local experts 3 to 5.
void add_base(CaseList& list) {
  for (const Op op : kExpertOps) {
    const auto add = [&](const std::string& name, std::int32_t base, std::int32_t experts,
                         std::vector<std::int32_t> ids, std::int32_t top_k) {
      CallSpec spec = small_experts(op, ExpertMode::gather, XRows::token);
      spec.num_experts = experts;
      spec.expert_base = base;
      spec.global_experts = 0;
      spec.top_k = top_k;
      spec.tokens = static_cast<std::int64_t>(ids.size()) / top_k;
      spec.routing = Routing::one;  // replaced
      spec.slots = SlotPattern::round_robin;
      spec.ranks = {8, 3, 4, 5, 6};
      spec.adjust = [ids](HostCall& call) { call.experts.expert_ids = ids; };
      list.call(name_of(op) + "/base/" + name, "F1: the local expert is id - expert_base", spec);
    };
    add("F1_0_-1_5_2", 3, 3, {0, -1, 5, 2}, 2);
    add("window_of_64", 32, 8, {0, 31, 32, 33, 39, 40, 63, 8, 7, -1, 35, 34}, 3);
    add("last_shard", 56, 8, {56, 63, 64, 55, 0, 7, 60, 61}, 2);
    constexpr std::int32_t kMin = std::numeric_limits<std::int32_t>::min();
    constexpr std::int32_t kMax = std::numeric_limits<std::int32_t>::max();
    add("far", kMax - 3, 8, {kMax, kMax - 3, kMin, kMin + 1, -1, 0, kMax - 4, -4}, 2);
    add("far_of_5", 5, 4, {kMin, kMin + 3, kMax, 5, 8, 9, kMin + 5, 6}, 2);
  }
  for (const Op op : kExpertOps) {
    for (const ExpertMode mode : kModes) {
      for (const std::int64_t tokens : {0, 1}) {
        CallSpec spec = small_experts(op, mode, XRows::own);
        spec.tokens = tokens;
        spec.top_k = 1;
        spec.num_experts = 128;
        spec.global_experts = 0;
        spec.expert_base = 0;
        spec.routing = Routing::even;
        spec.token_slots = {1};
        spec.token_slots.resize(static_cast<std::size_t>(tokens));
        if (tokens == 0) spec.slots = SlotPattern::one;
        list.call(name_of(op) + "/tokens/F3_" + name_of(mode) + "_T" + number(tokens),
                  "F3, C2: one row or none in a bank of 128 experts", spec);
      }
      for (const std::int64_t tokens : {2, 16, 33, 128}) {
        CallSpec spec = small_experts(op, mode, XRows::token);
        spec.tokens = tokens;
        spec.fill = tokens == 33 ? Fill::random : Fill::exact;
        list.call(name_of(op) + "/tokens/" + name_of(mode) + "_T" + number(tokens),
                  "any number of rows", spec);
      }
    }
  }
}

void add_large_banks(CaseList& list) {
  for (const ExpertMode mode : kModes) {
    for (const Fill fill : {Fill::exact, Fill::random}) {
      CallSpec spec = small_experts(Op::apply_experts, mode, XRows::token);
      spec.fill = fill;
      spec.num_experts = spec.global_experts = 512;
      spec.expert_base = 0;
      spec.top_k = 8;
      spec.tokens = 24;
      spec.num_slots = 2;
      spec.in = 32;
      spec.out = {24};
      spec.ranks = {4, 0, 8};
      spec.routing = Routing::even;
      const std::string end = name_of(mode) + (fill == Fill::exact ? "/exact" : "/random");
      list.call("apply_experts/bank/512_experts/" + end, "a bank of 512 experts", spec);
      spec.routing = Routing::skewed;
      spec.x_rows = XRows::own;
      spec.num_slots = 1;
      spec.ranks = {8};
      list.call("apply_experts/bank/512_skewed/" + end, "F8: most experts without rows", spec);
      spec.num_experts = spec.global_experts = 4;
      spec.tokens = 150;
      spec.top_k = 2;
      spec.num_slots = 2;
      spec.ranks = {16, 8};
      list.call("apply_experts/bank/4_experts/" + end, "many rows an expert", spec);
    }
  }
}

void add_dtypes(CaseList& list) {
  int turn = 0;
  for (const DType x : kFloats) {
    for (const DType y : kFloats) {
      for (const DType a : kFloats) {
        for (const DType b : kFloats) {
          const bool applies = y == x || y == DType::f32;
          for (const Op op : kExpertOps) {
            if (op == Op::apply_experts    ? !applies
                : op == Op::shrink_experts ? y != DType::f32 || b != DType::f32
                                           : x != DType::f32 || a != DType::f32) {
              continue;
            }
            ++turn;
            CallSpec spec = small_experts(op, kModes[turn % 2], kXRows[turn / 2 % 2]);
            spec.fill = turn % 3 == 0 ? Fill::random : Fill::exact;
            spec.x = x;
            spec.y = y;
            spec.a = a;
            spec.b = b;
            std::string name = name_of(op) + "/dtypes";
            if (op != Op::expand_experts) name += std::string("/x_") + rankfold::to_string(x);
            if (op != Op::shrink_experts) name += std::string("/y_") + rankfold::to_string(y);
            if (op != Op::expand_experts) name += std::string("_a_") + rankfold::to_string(a);
            if (op != Op::shrink_experts) name += std::string("_b_") + rankfold::to_string(b);
            list.call(name, "every combination of dtypes", spec);
          }
        }
      }
    }
  }
}

void add_ranks(CaseList& list) {
  for (const std::int32_t rank : {1, 2, 4, 7, 8, 15, 16, 17, 32, 33, 64, 65, 128, 256}) {
    for (const ExpertMode mode : kModes) {
      CallSpec spec = small_experts(Op::apply_experts, mode, XRows::own);
      spec.tokens = 7;
      spec.ranks = {rank};
      spec.max_rank = rank == 8 ? 64 : 0;
      spec.fill = rank % 2 == 0 ? Fill::exact : Fill::random;
      list.call("apply_experts/rank/" + name_of(mode) + "/r" + number(rank),
                "A2, A3, A5: every rank equals the oracle", spec);
    }
  }
  for (const Op op : kExpertOps) {
    CallSpec spec = small_experts(op, ExpertMode::grouped, XRows::own);
    spec.ranks = {0};
    spec.max_rank = 8;
    list.call(name_of(op) + "/rank/all_zero", "rank 0 touches nothing", spec);
    spec.max_rank = 0;
    spec.ranks = {8, 16, 8, 0, 64, 1, 33, 5};
    spec.h_gap = 5;
    spec.fill = Fill::random;
    list.call(name_of(op) + "/rank/mixed/random", "A5: NaN in h past the rank must not matter",
              spec);
  }
  for (const auto& [shared, name] :
       {std::pair{SharedA::slices, "slices"}, {SharedA::experts, "experts"}}) {
    for (const ExpertMode mode : kModes) {
      for (const XRows x_rows : kXRows) {
        for (const Op op : {Op::shrink_experts, Op::apply_experts}) {
          CallSpec spec = small_experts(op, mode, x_rows);
          spec.shared_a = shared;
          spec.ranks = {8};
          spec.top_k = 4;
          list.call(name_of(op) + "/shared_a/" + name + "/" + name_of(mode) + "/" + name_of(x_rows),
                    "one A for several slices, or for all experts of a slot", spec);
        }
      }
    }
  }
}

void add_options(CaseList& list) {
  for (const Op op : kExpertOps) {
    for (const ExpertMode mode : kModes) {
      for (int flags = 1; flags < 32; ++flags) {
        const bool row_weights = (flags & 1) != 0, token_weights = (flags & 2) != 0;
        const bool overwrite = (flags & 4) != 0, invariant = (flags & 8) != 0;
        const bool bias = (flags & 16) != 0;
        if (bias && flags != 16 && flags != 17) continue;
        if (overwrite && op == Op::shrink_experts) continue;
        CallSpec spec = small_experts(op, mode, flags % 3 == 0 ? XRows::token : XRows::own);
        spec.fill = flags == 3 || flags == 15 ? Fill::random : Fill::exact;
        spec.x = spec.y = kFloats[flags % 3];
        spec.row_weights = row_weights;
        spec.token_weights = token_weights;
        spec.options.y_mode = overwrite ? YMode::overwrite : YMode::accumulate;
        spec.options.batch_invariant = invariant ? BatchInvariant::on : BatchInvariant::off;
        std::string name = name_of(op) + "/options/" + name_of(mode) + "/";
        if (row_weights) name += "row_weights_";
        if (token_weights) name += "token_weights_";
        if (overwrite) name += "overwrite_";
        if (invariant) name += "invariant_";
        if (bias) name += "bias_";
        name.pop_back();
        if (bias) {
          // A bank has none: what an entry holds there is ignored.
          spec.adjust = [](HostCall& call) {
            for (std::size_t e = 0; e < call.entries.size(); ++e) {
              if (call.entries[e].rank == 0) continue;
              call.entries[e].bias = testing::HostTensor(
                  DType::f32,
                  {call.shape.out[e % static_cast<std::size_t>(call.shape.num_slices)]});
            }
          };
        }
        list.call(name, "f = scaling * row_weight * token_weight, once; no bias", spec);
      }
    }
  }
}

void add_layouts(CaseList& list) {
  for (const Op op : kExpertOps) {
    for (const ExpertMode mode : kModes) {
      for (const XRows x_rows : kXRows) {
        if (op == Op::expand_experts && x_rows == XRows::token) continue;
        CallSpec spec = small_experts(op, mode, x_rows);
        const std::string end = name_of(mode) + "/" + name_of(x_rows);
        spec.row_weights = true;
        spec.x_gap = 3;
        spec.h_gap = 5;
        spec.y_gap = 7;
        spec.a_gap = 1;
        spec.b_gap = 9;
        spec.slot_gap = 4;
        list.call(name_of(op) + "/layout/strided/" + end,
                  "NaN in every gap stays there and is not read", spec);
        spec.misalignment = 1;
        spec.x = spec.y = spec.a = spec.b = x_rows == XRows::own ? DType::bf16 : DType::f32;
        list.call(name_of(op) + "/layout/misaligned/" + end,
                  "A5: addresses aligned to their element alone", spec);
        if (op == Op::expand_experts) continue;
        spec.broadcast_x = true;
        list.call(name_of(op) + "/layout/broadcast_x/" + end, "row stride 0: one row of x for all",
                  spec);
      }
    }
  }
}

void add_windows(CaseList& list) {
  struct Window {
    std::int64_t begin, end, bound;
  };
  for (const Op op : kExpertOps) {
    for (const ExpertMode mode : kModes) {
      for (const XRows x_rows : kXRows) {
        if (op == Op::expand_experts && x_rows == XRows::token) continue;
        for (const Window& window : {Window{0, 20, 0},
                                     {20, 57, 0},
                                     {13, 31, 18},
                                     {13, 31, 40},
                                     {56, 57, 1},
                                     {30, 30, 0},
                                     {0, 0, 0}}) {
          for (const YMode y_mode : {YMode::accumulate, YMode::overwrite}) {
            if (y_mode == YMode::overwrite && op == Op::shrink_experts) continue;
            CallSpec spec = small_experts(op, mode, x_rows);
            spec.row_begin = window.begin;
            spec.row_end = window.end;
            spec.bound_rows = window.bound;
            spec.row_weights = spec.token_weights = true;
            spec.options.y_mode = y_mode;
            list.call(name_of(op) + "/window/" + name_of(mode) + "/" + name_of(x_rows) + "/" +
                          number(window.begin) + "_" + number(window.end) + "_bound" +
                          number(window.bound) + (y_mode == YMode::overwrite ? "_overwrite" : ""),
                      "rows outside the window keep their bits, overwriting or not", spec);
          }
        }
      }
    }
  }
}

// Rows enough for what backends have for many rows.
void add_many_rows(CaseList& list) {
  for (const XRows x_rows : kXRows) {
    const DType dtype = x_rows == XRows::own ? DType::f16 : DType::bf16;
    const auto add = [&](const std::string& name, const char* why, const CallSpec& spec) {
      list.call("apply_experts/many_rows/" + name + "/" + name_of(x_rows), why, spec);
    };
    CallSpec base = small_experts(Op::apply_experts, ExpertMode::grouped, x_rows);
    base.fill = Fill::random;
    base.x = base.y = base.a = base.b = dtype;
    base.tokens = 1400;
    base.in = 72;
    base.row_weights = true;
    CallSpec spec = base;
    add("mixed_ranks", "ranks and slots that differ from row to row", spec);
    spec.slots = SlotPattern::out_of_range;
    spec.token_weights = true;
    spec.ranks = {15, 8, 3, 0, 4};
    add("odd_rank", "C4: rows of tokens without adapter", spec);
    spec.options.y_mode = YMode::overwrite;
    add("overwrite", "rows without a delta become zero", spec);
    spec = base;
    spec.ranks = {16, 100, 40, 33};
    add("high_ranks", "A2: several passes over x", spec);
    spec.ranks = {16, 40, 9};
    spec.in = 77;
    spec.out = {51, 37};
    spec.x_gap = 3;
    spec.y_gap = 7;
    spec.a_gap = 1;
    spec.b_gap = 9;
    spec.misalignment = 1;
    add("misaligned", "A5: nothing is aligned", spec);
    spec = base;
    spec.out = {264};
    spec.ranks = {16};
    spec.routing = Routing::one;
    spec.num_slots = 2;
    add("one_expert", "F8: all rows are of one expert", spec);
    spec.row_begin = 130;
    spec.row_end = 2345;
    spec.bound_rows = 4200;
    add("window", "rows outside the window keep their bits", spec);
    spec.in = 16;
    spec.out = {8};
    spec.routing = Routing::even;
    spec.num_slots = 64;
    spec.num_experts = spec.global_experts = 512;
    spec.ranks = {16, 4, 0, 9, 12};
    add("512_experts", "512 experts of 64 slots, in a window", spec);
  }
  CallSpec exact = small_experts(Op::apply_experts, ExpertMode::grouped, XRows::token);
  exact.tokens = 1400;
  list.call("apply_experts/many_rows/exact", "exact sums have no error at all", exact);
  exact.null_slots = true;
  list.call("apply_experts/many_rows/slot_0", "without token_slots every row uses slot 0", exact);
}

}  // namespace

void add_experts_cases(CaseList& list) {
  add_routing(list);
  add_base(list);
  add_large_banks(list);
  add_many_rows(list);
  add_dtypes(list);
  add_ranks(list);
  add_options(list);
  add_layouts(list);
  add_windows(list);
}

}  // namespace rankfold::conformance
