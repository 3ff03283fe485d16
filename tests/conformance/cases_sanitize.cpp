// A small set of calls that reaches every kernel of a backend: what tools run that slow a device
// down a hundred times, like compute-sanitizer (./run gpu; a test of the cuda backend counts what
// the set reaches).
#include <string>

#include "case.hpp"
#include "invariance.hpp"

namespace rankfold::conformance {

using testing::Fill;

namespace {

constexpr Op kOps[] = {
    Op::shrink,          Op::expand,         Op::apply_linear,      Op::gather_shrink,
    Op::apply_embedding, Op::shrink_experts, Op::expand_experts,    Op::apply_experts,
    Op::forward,         Op::backward,       Op::forward_embedding, Op::backward_embedding};

// Beside the other cases they find little: quick runs do without.
constexpr bool kSlow = true;

struct Regime {
  const char* name;
  std::int64_t tokens;
  AddressingForm form;
  SlotPattern slots;
};
// One row, few rows of several adapters, a batch, and many rows a segment.
constexpr Regime kRegimes[] = {
    {"one_row", 1, AddressingForm::uniform, SlotPattern::one},
    {"few_rows", 9, AddressingForm::tokens, SlotPattern::mixed},
    {"rows_of_all", 40, AddressingForm::grouped_by_backend, SlotPattern::mixed},
    {"many_rows", 300, AddressingForm::grouped_by_host, SlotPattern::sorted}};

CallSpec make_spec(Op op, const Regime& regime, std::int32_t rank) {
  CallSpec spec;
  spec.op = op;
  spec.fill = Fill::random;
  spec.tokens = regime.tokens;
  spec.slots = regime.slots;
  spec.in = 128;
  spec.out = {64, 32};
  spec.num_slots = 3;
  spec.ranks = {rank, rank, rank / 2, rank, 3, rank - 1};
  spec.max_rank = rank;
  if (testing::is_experts(op)) {
    spec.mode =
        regime.form == AddressingForm::grouped_by_host || regime.form == AddressingForm::tokens
            ? ExpertMode::grouped
            : ExpertMode::gather;
    spec.x_rows = op == Op::expand_experts || regime.tokens == 9 ? XRows::own : XRows::token;
    spec.num_experts = 3;
    spec.row_weights = true;
  } else {
    spec.form = regime.form;
    spec.uniform_slot = 0;
  }
  if (testing::has_ids(op)) spec.out = {96};
  if (op == Op::backward)
    spec.outputs = kOutputDx | kOutputDa | kOutputDb | kOutputDbias | kOutputDs;
  if (op == Op::backward_embedding) spec.outputs = kOutputDa | kOutputDb | kOutputDs;
  if (op == Op::forward || op == Op::backward) spec.dropout.p = regime.tokens == 9 ? 0.25f : 0.0f;
  spec.bias = testing::uses_bias(op) && regime.tokens == 9;
  return spec;
}

void set_dtypes(CallSpec& spec, DType x, DType weights) {
  spec.x = spec.y = spec.dx = x;
  spec.a = spec.b = weights;
}

std::string name_of_dtypes(DType x, DType weights) {
  return std::string(to_string(x)) + "_" + to_string(weights);
}

// Slices of a target, by how many there are.
std::vector<std::int64_t> slices_of(int count, bool odd) {
  std::vector<std::int64_t> out;
  for (int i = 0; i < count; ++i) out.push_back(odd ? 51 - 14 * i : 64 - 16 * i);
  return out;
}

void add(CaseList& list, const CallSpec& spec, const std::string& name) {
  list.call("sanitize/" + name_of(spec.op) + "/" + name, "one of a set that reaches every kernel",
            spec, kSlow);
}

// Every pair of dtypes, and y in float32. Odd sizes: nothing is aligned.
void add_dtypes(CaseList& list, Op op) {
  for (const DType x : kFloats) {
    for (const DType weights : kFloats) {
      CallSpec spec = make_spec(op, kRegimes[1], 8);
      set_dtypes(spec, x, weights);
      spec.in = 77;
      spec.out = slices_of(testing::has_ids(op) ? 1 : 2, true);
      add(list, spec, "odd/" + name_of_dtypes(x, weights));
      if (x == DType::f32 || !testing::makes_y(op)) continue;
      spec.y = DType::f32;
      add(list, spec, "odd/" + name_of_dtypes(x, weights) + "_y_f32");
    }
  }
}

// What fast strategies are for: aligned sizes, 16-bit activations, adapters of the same dtype or
// float32.
void add_regimes(CaseList& list, Op op) {
  for (const Regime& regime : kRegimes) {
    for (const DType x : {DType::bf16, DType::f16}) {
      for (const DType weights : {x, DType::f32}) {
        for (const std::int32_t rank : {8, 16, 32, 64, 128, 256}) {
          if (rank != 16 && rank != 64 && rank != 128 && weights != x) continue;
          CallSpec spec = make_spec(op, regime, rank);
          set_dtypes(spec, x, weights);
          add(list, spec,
              std::string(regime.name) + "/" + name_of_dtypes(x, weights) + "_r" + number(rank));
        }
      }
    }
  }
}

// One to three slices in every way to say which row uses which slot.
void add_slices(CaseList& list, Op op) {
  if (testing::has_ids(op) || testing::is_backward(op)) return;
  for (const Regime& regime : {kRegimes[1], kRegimes[2]}) {
    for (int slices = 1; slices <= 3; ++slices) {
      for (const auto& [form, name] : {std::pair{AddressingForm::tokens, "tokens"},
                                       {AddressingForm::uniform, "uniform"},
                                       {AddressingForm::grouped_by_backend, "grouped"}}) {
        for (const DType dtype : {DType::bf16, DType::f16}) {
          CallSpec spec = make_spec(op, regime, 16);
          set_dtypes(spec, dtype, dtype);
          spec.out = slices_of(slices, false);
          spec.dropout.p = 0.0f;
          if (!testing::is_experts(op)) spec.form = form;
          spec.slots = SlotPattern::mixed;
          if (slices == 2 && testing::makes_y(op)) spec.options.y_mode = YMode::overwrite;
          add(list, spec,
              std::string(regime.name) + "/" + name + "/" + number(slices) + "_slices_" +
                  to_string(dtype));
          if (testing::is_experts(op) || dtype != DType::bf16) continue;
          // Adapters in float32 beside it.
          spec.a = spec.b = DType::f32;
          add(list, spec,
              std::string(regime.name) + "/" + name + "/" + number(slices) + "_slices_" +
                  to_string(dtype) + "_f32");
        }
      }
    }
  }
}

// Without dropout, in which fast backwards have no part.
void add_backward(CaseList& list) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    for (const std::int32_t rank : {16, 32, 64}) {
      for (int slices = 1; slices <= 4; ++slices) {
        for (const bool odd : {false, true}) {
          for (const auto& [form, name] : {std::pair{AddressingForm::tokens, "tokens"},
                                           {AddressingForm::uniform, "uniform"}}) {
            CallSpec spec = make_spec(Op::backward, kRegimes[2], rank);
            set_dtypes(spec, dtype, dtype);
            spec.form = form;
            spec.tokens = 150;
            spec.in = odd ? 77 : 160;
            spec.out =
                slices == 4 ? std::vector<std::int64_t>(4, odd ? 37 : 40) : slices_of(slices, odd);
            spec.gives_h = slices % 2 == 0;
            spec.options.y_mode = slices % 2 == 1 ? YMode::overwrite : YMode::accumulate;
            spec.gradient_mode = slices >= 3 ? YMode::accumulate : YMode::overwrite;
            add(list, spec,
                std::string("slices/") + name + "/" + to_string(dtype) + "_r" + number(rank) + "_" +
                    number(slices) + (odd ? "_odd" : "_aligned"));
          }
        }
      }
    }
  }
  // Blocks of many stages: columns of dy or x enough that rows are not cut.
  for (const std::int32_t rank : {16, 64}) {
    CallSpec spec = make_spec(Op::backward, kRegimes[2], rank);
    set_dtypes(spec, DType::bf16, DType::bf16);
    spec.form = AddressingForm::uniform;
    spec.gives_h = true;
    spec.tokens = 260;
    spec.out = {rank == 16 ? 34816 : 20480};
    add(list, spec, "stages/dy_r" + number(rank));
    spec.tokens = 150;
    spec.out = {4096};
    add(list, spec, "stages/wide_r" + number(rank));
    spec.tokens = 330;
    spec.in = 10240;
    spec.out = {136};
    add(list, spec, "stages/x_r" + number(rank));
  }
}

// Kernels that the cases above miss: the lowest ranks, a long K, y in float32 where rows or ranks
// are many, and experts with few and with many rows a pair.
void add_rest(CaseList& list) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    const std::string of = to_string(dtype);
    for (const int slices : {1, 3}) {
      for (const auto& [form, name] : {std::pair{AddressingForm::tokens, "tokens"},
                                       {AddressingForm::uniform, "uniform"},
                                       {AddressingForm::grouped_by_backend, "grouped"}}) {
        CallSpec spec = make_spec(Op::apply_linear, kRegimes[1], 8);
        set_dtypes(spec, dtype, dtype);
        spec.form = form;
        spec.out = slices_of(slices, false);
        add(list, spec, std::string("low_rank/") + name + "/" + number(slices) + "_slices_" + of);
      }
    }
    CallSpec shrink = make_spec(Op::shrink, kRegimes[1], 16);
    set_dtypes(shrink, dtype, dtype);
    shrink.in = 1100;
    add(list, shrink, "long_k/" + of);
    for (const std::int32_t rank : {16, 64, 128}) {
      for (const DType weights : {dtype, DType::f32}) {
        CallSpec linear = make_spec(Op::apply_linear, kRegimes[3], rank);
        set_dtypes(linear, dtype, weights);
        linear.y = DType::f32;
        linear.tokens = 600;
        add(list, linear,
            "many_rows/" + name_of_dtypes(dtype, weights) + "_y_f32_r" + number(rank));
      }
    }
    // More rows, of so many tiles of ranks that one block has them all.
    for (const std::int32_t rank : {64, 96}) {
      CallSpec linear = make_spec(Op::apply_linear, kRegimes[3], rank);
      set_dtypes(linear, dtype, dtype);
      linear.tokens = 1100;
      add(list, linear, "many_rows/aligned_" + of + "_r" + number(rank));
    }
    // Rows of x, A and y of odd length; rows of B that are multiples of eight bytes.
    for (const std::int32_t rank : {16, 64, 128}) {
      for (const DType y : {dtype, DType::f32}) {
        CallSpec linear = make_spec(Op::apply_linear, kRegimes[3], rank);
        set_dtypes(linear, dtype, dtype);
        linear.y = y;
        linear.tokens = 600;
        linear.in = 333;
        linear.out = slices_of(rank == 16 ? 1 : 2, true);
        add(list, linear, "many_rows/odd_" + of + "_y_" + to_string(y) + "_r" + number(rank));
      }
    }
    for (const std::int32_t rank : {4, 44, 100}) {
      CallSpec linear = make_spec(Op::apply_linear, kRegimes[3], rank);
      set_dtypes(linear, dtype, dtype);
      linear.tokens = 600;
      linear.in = 332;
      linear.out = {200, 72};
      add(list, linear, "many_rows/eight_bytes_" + of + "_r" + number(rank));
    }
    // The same with weights of float32, and aligned; stages of 64 of which a part is there.
    for (const std::int32_t rank : {16, 64, 128}) {
      for (const DType y : {dtype, DType::f32}) {
        for (const bool odd : {false, true}) {
          CallSpec linear = make_spec(Op::apply_linear, kRegimes[3], rank);
          set_dtypes(linear, dtype, DType::f32);
          linear.y = y;
          linear.tokens = rank == 16 ? 1100 : 600;
          linear.in = odd && y == DType::f32 ? 333 : 1100;
          linear.out = slices_of(2, odd);
          add(list, linear,
              "many_rows/" + std::string(odd ? "odd_" : "aligned_") + of + "_f32_y_" +
                  to_string(y) + "_r" + number(rank));
        }
      }
    }
    // h given, of a width that no wide access fits.
    CallSpec backward = make_spec(Op::backward, kRegimes[2], 15);
    set_dtypes(backward, dtype, dtype);
    backward.gives_h = true;
    add(list, backward, "given_h/" + of + "_r15");
    for (const std::int32_t rank : {16, 40}) {
      for (const int slices : {1, 2}) {
        CallSpec experts = make_spec(Op::apply_experts, kRegimes[3], rank);
        set_dtypes(experts, dtype, dtype);
        experts.out = slices_of(slices, false);
        list.scenario(
            "sanitize/apply_experts/configurations/" + number(slices) + "_slices_" + of + "_r" +
                number(rank),
            "every configuration for sorted rows",
            [experts](Session& session) { return check_configurations(session, experts); }, kSlow);
      }
    }
    for (const std::int64_t tokens : {1, 300}) {
      for (const DType y : {dtype, DType::f32}) {
        CallSpec experts = make_spec(Op::apply_experts, kRegimes[tokens == 1 ? 0 : 3], 16);
        set_dtypes(experts, dtype, dtype);
        experts.y = y;
        experts.tokens = tokens;
        experts.out = slices_of(1, false);
        experts.num_experts = tokens == 1 ? 9 : 2;
        experts.options.y_mode = y == DType::f32 ? YMode::overwrite : YMode::accumulate;
        add(list, experts, "pairs/" + number(tokens) + "_tokens_" + of + "_y_" + to_string(y));
      }
    }
  }
}

// Few rows: tables far wider than their adapters, more ranks than stand on chip at a time, rows of
// odd length, and a K of few parts.
void add_few_rows(CaseList& list) {
  struct Few {
    const char* name;
    std::int32_t max_rank;
    std::vector<std::int32_t> ranks;
    std::int64_t in;
    bool odd;
  };
  const Few kinds[] = {{"pool_r8", 256, {8, 0, 5, 8, 3, 8, 1}, 640, false},
                       {"pool_r40", 256, {40, 8, 24, 16, 0, 33, 64}, 640, false},
                       {"r200", 200, {200, 128, 3, 72, 130}, 640, false},
                       {"r300", 300, {300, 7, 257, 64}, 640, false},
                       {"odd_r40", 40, {40, 7, 33, 24}, 1021, true},
                       {"odd_r150", 150, {150, 150, 8, 100}, 1021, true}};
  for (const Few& kind : kinds) {
    for (const Regime& regime : {kRegimes[0], kRegimes[1], kRegimes[2]}) {
      for (const int slices : {1, 3, 4}) {
        if (slices == 4 && regime.tokens != 9) continue;
        for (const auto& [dtype, weights] : {std::pair{DType::bf16, DType::bf16},
                                             {DType::f16, DType::f16},
                                             {DType::bf16, DType::f32}}) {
          if (slices != 3 && weights == DType::f32) continue;
          CallSpec spec = make_spec(Op::apply_linear, regime, kind.max_rank);
          set_dtypes(spec, dtype, weights);
          spec.bias = false;
          spec.in = kind.in;
          spec.ranks = kind.ranks;
          spec.out = slices == 4 ? std::vector<std::int64_t>(4, kind.odd ? 37 : 40)
                                 : slices_of(slices, kind.odd);
          add(list, spec,
              std::string("few/") + kind.name + "/" + regime.name + "/" + number(slices) +
                  "_slices_" + name_of_dtypes(dtype, weights));
        }
      }
    }
  }
}

}  // namespace

void add_sanitize_cases(CaseList& list) {
  add_rest(list);
  add_few_rows(list);
  for (const Op op : kOps) {
    add_dtypes(list, op);
    add_regimes(list, op);
    add_slices(list, op);
    CallSpec spec = make_spec(op, kRegimes[2], 16);
    spec.fill = Fill::exact;
    list.scenario(
        "sanitize/" + name_of(op) + "/configurations", "every configuration of every strategy",
        [spec](Session& session) { return check_configurations(session, spec); }, kSlow);
  }
  add_backward(list);
  CallSpec grouping;
  grouping.op = Op::group_tokens;
  for (const std::int64_t tokens : {1, 300, 3000, 20000}) {
    grouping.tokens = tokens;
    grouping.num_slots = 17;
    add(list, grouping, "T" + number(tokens));
  }
  grouping.tokens = 3000;
  grouping.num_slots = 1100;  // too many for the counters of one launch
  add(list, grouping, "T3000_slots_1100");
}

}  // namespace rankfold::conformance
