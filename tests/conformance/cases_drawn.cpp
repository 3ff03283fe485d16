// Calls drawn at random: what no table of cases thought of. A call depends on the seed and its
// number alone, so a failure is repeated by these two.
#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <stdexcept>
#include <string>

#include "cases_drawn.hpp"
#include "check_call.hpp"
#include "invariance.hpp"

namespace rankfold::conformance {

using testing::Fill;
using testing::HostCall;

namespace {

constexpr std::uint64_t kStream = 0xd4a3;
// Multiply-adds of a call at most: the oracle takes about 10 ms for them.
constexpr double kMostWork = 2e6;

class Draw {
 public:
  Draw(std::uint64_t seed, std::uint64_t number) noexcept
      : seed_(testing::random_bits(seed, kStream, number)) {}

  std::int64_t between(std::int64_t low, std::int64_t high) noexcept {
    return testing::random_between(seed_, kStream, next_++, low, high);
  }
  std::int32_t small(std::int32_t low, std::int32_t high) noexcept {
    return static_cast<std::int32_t>(between(low, high));
  }
  bool percent(int chance) noexcept { return between(0, 99) < chance; }
  template <class T>
  T one_of(std::initializer_list<T> values) noexcept {
    return std::data(values)[between(0, static_cast<std::int64_t>(values.size()) - 1)];
  }

 private:
  std::uint64_t seed_;
  std::uint64_t next_ = 0;
};

// Widths: those of whole tiles, those of whole vectors, and any.
std::int64_t draw_width(Draw& draw) {
  switch (draw.between(0, 5)) {
    case 0:
      return draw.between(1, 40);
    case 1:
      return 8 * draw.between(1, 40);
    case 2:
      return 64 * draw.between(1, 12);
    case 3:
      return 256 * draw.between(1, 6);
    case 4:
      return draw.between(1, 700);
    default:
      return draw.between(1000, 3000);
  }
}

std::int32_t draw_rank(Draw& draw) {
  switch (draw.between(0, 7)) {
    case 0:
      return 0;
    case 1:
      return draw.one_of({8, 16, 32, 64});
    case 2:
    case 3:
      return draw.small(1, 8);
    case 4:
      return draw.small(9, 16);
    case 5:
      return draw.small(17, 64);
    case 6:
      return draw.small(65, 200);
    default:
      return draw.percent(10) ? draw.small(201, 1024) : draw.small(1, 32);
  }
}

std::int64_t draw_tokens(Draw& draw) {
  switch (draw.between(0, 5)) {
    case 0:
      return draw.between(0, 3);
    case 1:
      return draw.between(4, 16);
    case 2:
    case 3:
      return draw.between(17, 64);
    case 4:
      return draw.between(65, 300);
    default:
      return draw.between(301, 1500);
  }
}

void draw_dtypes(Draw& draw, CallSpec& spec) {
  spec.x = draw.one_of({DType::f32, DType::f16, DType::bf16, DType::f16, DType::bf16});
  const auto same_or_f32 = [&](int chance) { return draw.percent(chance) ? DType::f32 : spec.x; };
  const auto weights = [&] {
    return draw.percent(60) ? spec.x : draw.one_of({DType::f32, DType::f16, DType::bf16});
  };
  spec.a = weights();
  spec.b = draw.percent(75) ? spec.a : weights();
  spec.y = same_or_f32(15);
  spec.dx = same_or_f32(15);
  // Without an x every dtype of y is one.
  if (!testing::has_x(spec.op)) spec.y = draw.one_of({DType::f32, DType::f16, DType::bf16});
  spec.ids = draw.one_of({DType::i32, DType::i64});
}

void draw_sizes(Draw& draw, CallSpec& spec) {
  spec.tokens = draw_tokens(draw);
  spec.in = draw_width(draw);
  spec.out.clear();
  const std::int64_t slices = testing::has_ids(spec.op) ? 1
                              : draw.percent(5)         ? draw.between(5, 16)
                                                        : draw.between(1, 4);
  const bool equal = draw.percent(40);
  for (std::int64_t i = 0; i < slices; ++i) {
    spec.out.push_back(i > 0 && equal ? spec.out[0] : draw_width(draw));
  }
  spec.num_slots = draw.percent(10) ? draw.small(13, 90) : draw.small(1, 12);
  spec.ranks.clear();
  const std::int64_t ranks = draw.percent(40) ? 1 : draw.between(2, 7);
  for (std::int64_t i = 0; i < ranks; ++i) spec.ranks.push_back(draw_rank(draw));
  const std::int32_t largest = *std::max_element(spec.ranks.begin(), spec.ranks.end());
  if (draw.percent(30)) spec.max_rank = std::min(1024, largest + draw.small(0, 300));
}

// So many slots that rows are not grouped in one launch; small enough to stay so.
void draw_many_slots(Draw& draw, CallSpec& spec) {
  spec.num_slots = draw.small(900, 1300);
  spec.in = draw.between(1, 64);
  spec.out = {draw.between(1, 40)};
  spec.ranks = {draw.small(1, 8)};
  spec.tokens = std::min<std::int64_t>(spec.tokens, 300);
}

// What the host knows of the rows with an adapter: their number, or a little more.
void bound_active_rows(Draw& draw, CallSpec& spec) {
  const std::int64_t more = draw.percent(50) ? 0 : draw.between(0, 9);
  spec.adjust = [more](HostCall& call) {
    const std::vector<std::int32_t> slots = testing::row_slots(call);
    call.addressing.active_rows_bound =
        more +
        std::count_if(slots.begin(), slots.end(), [](std::int32_t slot) { return slot >= 0; });
  };
}

void draw_addressing(Draw& draw, CallSpec& spec) {
  spec.slots = draw.one_of({SlotPattern::mixed, SlotPattern::mixed, SlotPattern::round_robin,
                            SlotPattern::one, SlotPattern::none, SlotPattern::sorted,
                            SlotPattern::out_of_range});
  spec.form = draw.one_of({AddressingForm::tokens, AddressingForm::grouped_by_host,
                           AddressingForm::grouped_by_backend, AddressingForm::uniform});
  spec.uniform_slot = draw.percent(5) ? -1 : draw.small(0, spec.num_slots - 1);
  spec.token_weights = draw.percent(20);
}

void draw_experts(Draw& draw, CallSpec& spec) {
  spec.form = AddressingForm::tokens;
  spec.num_experts = draw.percent(20) ? draw.small(9, 70) : draw.small(1, 8);
  spec.expert_base = draw.percent(30) ? draw.small(1, 40) : 0;
  spec.global_experts =
      draw.percent(30) ? spec.expert_base + spec.num_experts + draw.small(0, 9) : 0;
  spec.top_k = draw.small(1, 8);
  spec.mode = draw.one_of({ExpertMode::grouped, ExpertMode::gather});
  spec.x_rows =
      spec.op == Op::expand_experts ? XRows::own : draw.one_of({XRows::own, XRows::token});
  spec.routing =
      draw.one_of({testing::Routing::skewed, testing::Routing::even, testing::Routing::one,
                   testing::Routing::twice, testing::Routing::nowhere});
  spec.null_slots = draw.percent(25);
  spec.row_weights = draw.percent(40);
  spec.num_slots = std::min(spec.num_slots, 12);
}

void draw_window(Draw& draw, CallSpec& spec) {
  const std::int64_t rows = spec.tokens * spec.top_k;
  if (!draw.percent(30)) return;
  spec.row_begin = draw.between(0, rows);
  spec.row_end = draw.between(spec.row_begin, rows);
  if (draw.percent(50)) spec.bound_rows = rows;
}

void draw_training(Draw& draw, CallSpec& spec) {
  if (spec.op == Op::forward || spec.op == Op::backward) {
    if (draw.percent(30)) {
      spec.dropout = {static_cast<std::uint64_t>(draw.between(0, 1'000'000'000)),
                      draw.between(0, 100'000), draw.one_of({0.5f, 0.75f, 0.1f}), 0};
    }
  }
  if (!testing::is_backward(spec.op)) return;
  constexpr std::uint32_t kAll = kOutputDx | kOutputDa | kOutputDb | kOutputDbias | kOutputDs;
  spec.outputs = draw.percent(50) ? kAll : static_cast<std::uint32_t>(draw.between(0, 31));
  if (testing::has_ids(spec.op)) spec.outputs &= ~(kOutputDx | kOutputDbias);
  spec.gives_h = draw.percent(40);
  spec.gradient_mode = draw.one_of({YMode::overwrite, YMode::accumulate});
  const bool reads_x =
      (spec.outputs & kOutputDa) != 0 || ((spec.outputs & kOutputDb) != 0 && !spec.gives_h);
  spec.gives_x = reads_x || draw.percent(50);
}

void draw_layout(Draw& draw, CallSpec& spec) {
  const auto gap = [&]() -> std::int64_t {
    return draw.percent(70) ? 0 : draw.percent(50) ? 8 * draw.between(1, 4) : draw.between(1, 9);
  };
  spec.x_gap = gap();
  spec.h_gap = gap();
  spec.y_gap = gap();
  spec.dx_gap = gap();
  spec.a_gap = gap();
  spec.b_gap = gap();
  if (draw.percent(15)) spec.slot_gap = draw.between(1, 3);
  if (draw.percent(4)) spec.broadcast_x = testing::has_x(spec.op);
  if (draw.percent(15)) spec.misalignment = draw.between(1, 8);
}

// Rows and columns are halved in turn until the call is small enough.
void bound_work(CallSpec& spec) {
  for (int turn = 0; work_of(spec) > kMostWork; ++turn) {
    if (turn % 3 == 0 && spec.tokens > 1) {
      spec.tokens /= 2;
    } else if (turn % 3 == 1) {
      spec.in = std::max<std::int64_t>(spec.in / 2, 1);
      for (std::int64_t& out : spec.out) out = std::max<std::int64_t>(out / 2, 1);
    } else {
      spec.num_slots = std::max(spec.num_slots / 2, 1);
      spec.num_experts = std::max(spec.num_experts / 2, 1);
    }
  }
  spec.uniform_slot = std::min(spec.uniform_slot, spec.num_slots - 1);
  if (spec.global_experts > 0) {
    spec.global_experts = std::max(spec.global_experts, spec.expert_base + spec.num_experts);
  }
}

template <class T>
std::string list_of(const std::vector<T>& numbers) {
  std::string text;
  for (const T number : numbers) text += (text.empty() ? "" : ",") + std::to_string(number);
  return text;
}

const char* name_of(AddressingForm form) {
  switch (form) {
    case AddressingForm::tokens:
      return "tokens";
    case AddressingForm::grouped_by_host:
      return "grouped_by_host";
    case AddressingForm::grouped_by_backend:
      return "grouped_by_backend";
    case AddressingForm::uniform:
      return "uniform";
  }
  return "?";
}

// What a reader of a failure wants first.
std::string describe(const CallSpec& spec) {
  const auto dtype = [](DType type) { return std::string(rankfold::to_string(type)); };
  std::string text = rankfold::to_string(spec.op);
  text += " " + dtype(spec.x) + ", A " + dtype(spec.a) + ", B " + dtype(spec.b) + ", y " +
          dtype(spec.y) + ", T " + number(spec.tokens) + ", in " + number(spec.in) + ", out " +
          list_of(spec.out) + ", slots " + number(spec.num_slots) + ", ranks " +
          list_of(spec.ranks) + ", " + name_of(spec.form);
  if (spec.max_rank > 0) text += ", max_rank " + number(spec.max_rank);
  if (testing::is_experts(spec.op)) {
    text += ", experts " + number(spec.num_experts) + ", top_k " + number(spec.top_k);
    text += spec.mode == ExpertMode::gather ? ", gather" : ", grouped";
  }
  if (testing::is_backward(spec.op)) text += ", outputs " + number(spec.outputs);
  if (spec.dropout.p > 0.0f) text += ", dropout";
  if (spec.bias) text += ", bias";
  if (spec.token_weights) text += ", token_weights";
  if (spec.adjust) text += ", active_rows_bound";
  if (spec.options.y_mode == YMode::overwrite) text += ", overwrite";
  if (spec.options.batch_invariant == BatchInvariant::on) text += ", batch_invariant";
  if (spec.misalignment > 0) text += ", misaligned";
  return text;
}

}  // namespace

CallSpec draw_call(std::uint64_t seed, std::uint64_t number) {
  Draw draw(seed, number);
  CallSpec spec;
  spec.op =
      draw.one_of({Op::apply_linear, Op::apply_linear, Op::apply_linear, Op::shrink, Op::expand,
                   Op::gather_shrink, Op::forward, Op::backward, Op::backward, Op::apply_experts,
                   Op::apply_experts, Op::shrink_experts, Op::expand_experts, Op::apply_embedding,
                   Op::forward_embedding, Op::backward_embedding, Op::group_tokens});
  draw_dtypes(draw, spec);
  draw_sizes(draw, spec);
  if (!testing::is_experts(spec.op) && draw.percent(3)) draw_many_slots(draw, spec);
  draw_addressing(draw, spec);
  if (spec.op == Op::group_tokens) spec.form = AddressingForm::tokens;
  if (testing::is_experts(spec.op)) draw_experts(draw, spec);
  draw_training(draw, spec);
  draw_layout(draw, spec);
  spec.bias = testing::uses_bias(spec.op) && draw.percent(25);
  // Who shares A has its rank.
  if (spec.ranks.size() == 1 && draw.percent(25)) {
    spec.shared_a = testing::is_experts(spec.op) ? draw.one_of({SharedA::slices, SharedA::experts})
                                                 : SharedA::slices;
  }
  spec.options.y_mode = draw.percent(25) ? YMode::overwrite : YMode::accumulate;
  spec.options.batch_invariant = draw.percent(20) ? BatchInvariant::on : BatchInvariant::off;
  bound_work(spec);
  if (testing::is_experts(spec.op)) {
    draw_window(draw, spec);
  } else if (spec.op != Op::group_tokens && draw.percent(15)) {
    bound_active_rows(draw, spec);
  }
  if (testing::has_ids(spec.op) && draw.percent(30)) spec.in_limit = draw.between(1, spec.in);
  spec.fill = draw.percent(50) ? Fill::exact : Fill::random;
  if (spec.dropout.p == 0.1f) spec.fill = Fill::random;
  return spec;
}

Outcome run_drawn_call(Session& session, std::uint64_t number) {
  CallSpec spec = draw_call(session.seed(), number);
  FilledCall filled;
  try {
    filled = build(spec, session.seed());
  } catch (const std::logic_error&) {
    // Sums too long for one bit pattern.
    spec.fill = Fill::random;
    filled = build(spec, session.seed());
  }
  Outcome outcome = check_call(session, filled, true);
  if (outcome.passed() && number % 4 == 0) {
    const Outcome configured = check_configurations(session, spec);
    if (configured.verdict == Verdict::failed) outcome = configured;
  }
  if (!outcome.passed()) outcome.message += " (" + describe(spec) + ")";
  return outcome;
}

}  // namespace rankfold::conformance
