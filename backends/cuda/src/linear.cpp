#include "linear.hpp"

#include <algorithm>

#include "configurations.hpp"
#include "kernels/group_rows.hpp"
#include "launch.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

namespace {

// Sizes that the kernels of few rows count in 32 bits.
constexpr std::int64_t kMostColumns = std::int64_t{1} << 27;
// Of y: a grid has at most 65,535 blocks along them, of 256 columns where a configuration asks.
constexpr std::int64_t kMostOut = std::int64_t{1} << 23;
// K that a block takes at least: 8 warps, 64 each.
constexpr std::int64_t kLeastK = 512;
// Elements of A that a block takes at least where there is one row block.
constexpr std::int64_t kAloneElements = 12288;
// Rows of one adapter for which weights are not worth grouping.
constexpr std::int64_t kGemvRows = 8;
// From here on a block of 64 rows of one slot is mostly full, and there are enough of them.
constexpr std::int64_t kPrefillRows = 512;
constexpr std::int64_t kPrefillMean = 64;

bool shrinks(Op op) noexcept {
  return op == Op::shrink || op == Op::apply_linear || op == Op::forward;
}
bool expands(Op op) noexcept { return op != Op::shrink; }

bool decode_takes(const Problem& problem) noexcept {
  const TableShape& shape = problem.shape;
  if (shape.in > kMostColumns || shape.max_rank < 1) return false;
  if (shrinks(problem.op) && !decode_shrink_takes(problem.x_dtype, shape.a_dtype)) return false;
  if (!expands(problem.op)) return true;
  if (total_out(shape) > kMostOut) return false;
  // With x of float32 nothing else is owed, and the general kernels are exact to more bits.
  return problem.y_dtype == DType::f32 && problem.x_dtype == DType::f32 && shrinks(problem.op)
             ? false
             : decode_expand_takes(shape.b_dtype, problem.y_dtype);
}

bool prefill_takes(const Problem& problem, const DeviceTraits& traits) noexcept {
  if (problem.options.batch_invariant == BatchInvariant::on || !traits.hopper_code) return false;
  if (problem.op != Op::apply_linear && problem.op != Op::forward) return false;
  if (problem.shape.max_rank < 1 || problem.dropout_p > 0.0f) return false;
  return prefill_supports(prefill_device(traits), problem.shape, problem.x_dtype, problem.y_dtype);
}

Status decline(const Problem& problem, const char* why) {
  return Status::format(StatusCode::unsupported, "%s: strategy is %s; on cuda it needs %s",
                        to_string(problem.op), to_string(problem.options.strategy), why);
}

// Row blocks that there may well be: between those of segments of one size and as many as there can
// be.
std::int64_t likely_blocks(const LinearPlan& plan) noexcept {
  const std::int64_t most = std::max<std::int64_t>(plan.blocks, 1);
  if (plan.kind == Grouping::single) return most;
  const std::int64_t segments = std::clamp<std::int64_t>(plan.active, 1, plan.segments);
  const std::int64_t even = segments * divide_up(plan.active, segments * kDecodeRows);
  return (std::clamp<std::int64_t>(even, 1, most) + most) / 2;
}

int choose_splits(const LinearPlan& plan, const Problem& problem, const DeviceTraits& traits) {
  const TableShape& shape = problem.shape;
  const std::int64_t columns = std::int64_t{shape.num_slices} * shape.max_rank;
  // Whatever the batch, where bits must not follow it.
  if (problem.options.batch_invariant == BatchInvariant::on) {
    return pinned_splits(shape.in, columns);
  }
  // All blocks resident at once: two on a multiprocessor of the kernels of low rank, one of the
  // others. The others have half of their warps on the same part of K.
  const bool low_rank =
      shape.max_rank <= 16 && shape.num_slices <= 3 && shape.a_dtype != DType::f32;
  const std::int64_t resident = low_rank ? 2 : 1;
  // Rows of A that are not aligned are bound by latency: the fewer groups one after the other, the
  // better.
  std::int64_t least = shape.in % 8 != 0 ? kLeastK / 4 : low_rank ? kLeastK : kLeastK / 2;
  // One row block has the device to itself: of many ranks each block takes less of K.
  if (low_rank && plan.blocks == 1)
    least = std::min(least, std::max<std::int64_t>(kAloneElements / columns, kLeastK / 2));
  const std::int64_t most = std::max<std::int64_t>(shape.in / least, 1);
  const std::int64_t wanted = resident * traits.num_sms / likely_blocks(plan);
  std::int64_t splits = std::clamp<std::int64_t>(wanted, 1, most);
  // A block takes as long as its warp with the most groups of columns: no more splits than leave it
  // that many.
  const std::int64_t groups = divide_up(shape.in, 64), sharers = low_rank ? 8 : 4;
  const std::int64_t of_warp = divide_up(groups, sharers * splits);
  if (of_warp > 1) splits = divide_up(groups, sharers * of_warp);
  return fitting_splits(problem.bounds.rows, columns, splits);
}

}  // namespace

PrefillDevice prefill_device(const DeviceTraits& traits) noexcept {
  return {traits.num_sms, traits.shared_bytes, traits.hopper_code};
}

bool is_linear_op(Op op) noexcept {
  switch (op) {
    case Op::shrink:
    case Op::expand:
    case Op::apply_linear:
    case Op::forward:
    case Op::apply_embedding:
    case Op::forward_embedding:
    case Op::gather_shrink:
      return true;
    default:
      return false;
  }
}

Result<LinearPlan> plan_linear(const Problem& problem, const DeviceTraits& traits) {
  LinearPlan plan;
  const Strategy asked = problem.options.strategy;
  const bool uniform = problem.addressing == AddressingMode::uniform;
  const bool tokens = problem.addressing == AddressingMode::tokens;
  const std::int64_t rows = problem.bounds.rows;
  plan.active = std::clamp<std::int64_t>(problem.bounds.active_rows, 0, rows);
  plan.segments = uniform ? 1 : std::max<std::int64_t>(problem.bounds.segments, 1);
  const std::int64_t mean =
      plan.active / std::max<std::int64_t>(std::min(plan.segments, plan.active), 1);
  const bool rows_take = problem.op != Op::gather_shrink && decode_takes(problem);
  const bool groups = !tokens || (groups_in_one_launch(rows, problem.shape.num_slots) &&
                                  group_rows_bytes(problem.shape.num_slots) <= traits.shared_bytes);
  const bool few_takes = rows_take && (groups || rows <= kFewTokens);
  // Few tokens are grouped as many are; of no token nothing is.
  const bool many_takes = few_takes && (groups || rows == 0) && prefill_takes(problem, traits);
  switch (asked) {
    case Strategy::automatic:
      plan.strategy = Strategy::general;
      if (few_takes)
        plan.strategy = uniform && plan.active <= kGemvRows ? Strategy::gemv : Strategy::grouped;
      // Rows that cannot be grouped here have the bits that they have among few.
      if (!few_takes && rows_take && problem.options.batch_invariant == BatchInvariant::on)
        plan.strategy = Strategy::routed;
      // Low ranks of float32 are few matrix instructions, however many rows read them.
      if (many_takes && mean >= kPrefillMean &&
          plan.active >= (problem.shape.a_dtype == DType::f32 && problem.shape.max_rank <= 16
                              ? 2 * kPrefillRows
                              : kPrefillRows)) {
        plan.strategy = Strategy::tensor_core;
      }
      break;
    case Strategy::general:
      break;
    case Strategy::gemv:
      if (!few_takes || !uniform || rows > kGemvRows) {
        return decline(
            problem,
            "addressing uniform, at most 8 rows, x f16 or bf16, A and B of x's dtype or f32");
      }
      break;
    case Strategy::routed:
      if (!rows_take || !tokens) {
        return decline(problem, "addressing tokens, x f16 or bf16, A and B of x's dtype or f32");
      }
      break;
    case Strategy::grouped:
      if (!few_takes) {
        return decline(
            problem,
            "x f16 or bf16, A and B of x's dtype or f32, and at most 1024 slots for tokens");
      }
      break;
    case Strategy::tensor_core:
      if (!many_takes) {
        return decline(
            problem,
            "compute capability 9.0 and a build for 90a, apply_linear or forward "
            "without dropout, x, A and B of one dtype (f16 or bf16) or x bf16 and A and B "
            "f32 of max_rank up to 128, batch_invariant off, and at most 1024 slots for "
            "tokens");
      }
      break;
    default:
      return decline(
          problem,
          "an operation on experts; here there are gemv, routed, grouped, tensor_core and general");
  }
  if (asked != Strategy::automatic) plan.strategy = asked;
  if (plan.strategy == Strategy::general) return configure(problem, traits, plan);
  if (plan.strategy == Strategy::tensor_core) {
    plan.kind = uniform ? Grouping::uniform : Grouping::segments;
    plan.groups_rows = tokens;
    plan.prefill =
        plan_prefill(prefill_device(traits), problem.shape, plan.kind, plan.active, plan.segments);
    const std::int64_t columns = std::int64_t{problem.shape.num_slices} * problem.shape.max_rank;
    if (fitting_splits(rows, columns, plan.prefill.partials()) < plan.prefill.partials()) {
      plan.prefill.cluster = 1;
      plan.prefill.splits = fitting_splits(rows, columns, plan.prefill.splits);
    }
    plan.splits = plan.prefill.partials();
    return configure(problem, traits, plan);
  }
  if (plan.strategy == Strategy::routed) {
    plan.kind = Grouping::single;
  } else if (uniform) {
    plan.kind = Grouping::uniform;
  } else if (tokens && rows <= kFewTokens) {
    plan.kind = Grouping::few;
  } else {
    plan.kind = Grouping::segments;
    plan.groups_rows = tokens;
  }
  // Blocks stand for rows, not for active ones: which those are is not known.
  const std::int64_t bound =
      plan.kind == Grouping::uniform || plan.kind == Grouping::single ? rows : plan.active;
  plan.blocks = row_block_bound(plan.kind, bound, plan.segments, kDecodeRows);
  plan.splits =
      shrinks(problem.op) && problem.dropout_p == 0.0f ? choose_splits(plan, problem, traits) : 1;
  return configure(problem, traits, plan);
}

Status LinearCall::begin() {
  Result<LinearPlan> plan = plan_linear(problem_, traits_);
  RANKFOLD_CUDA_TRY(plan.status());
  plan_ = plan.value();
  places_ = make_places(addressing_, table_);
  grouping_.num_slots = table_.shape.num_slots;
  grouping_.uniform_slot = addressing_.uniform_slot;
  grouping_.num_tokens = static_cast<int>(addressing_.num_tokens);
  grouping_.token_slots = addressing_.token_slots;
  grouping_.order = addressing_.token_order;
  grouping_.offsets = addressing_.segment_offsets;
  grouping_.slots = addressing_.segment_slots;
  grouping_.num_segments = addressing_.num_segments;
  grouping_.max_segments = static_cast<int>(addressing_.max_segments);
  if (!plan_.groups_rows || addressing_.num_tokens == 0) return {};
  Segments out;
  out.max_segments = std::min<std::int64_t>(addressing_.num_tokens, table_.shape.num_slots);
  out.order = parts_.segments();
  out.offsets = out.order + addressing_.num_tokens;
  out.slots = out.offsets + out.max_segments + 1;
  out.num_segments = out.slots + out.max_segments;
  grouping_.order = out.order;
  grouping_.offsets = out.offsets;
  grouping_.slots = out.slots;
  grouping_.num_segments = out.num_segments;
  grouping_.max_segments = static_cast<int>(out.max_segments);
  return group_rows_of_slots(addressing_.token_slots, addressing_.num_tokens,
                             table_.shape.num_slots, out, traits_.major >= 9, stream_);
}

SplitHidden LinearCall::split_hidden(const Hidden& h) const noexcept {
  if (!is_split()) return {h.data, h.stride, 0, 1};
  const std::int64_t columns = parts_.h_columns();
  return {parts_.partials(), columns, columns * addressing_.num_tokens, plan_.splits};
}

bool LinearCall::is_early() const noexcept {
  return problem_.options.overlap == Overlap::on && traits_.major >= 9;
}

bool LinearCall::fetches_early() const noexcept {
  // Segments that the kernel in front makes cannot be looked at before it has ended.
  if (!is_early() || plan_.groups_rows) return false;
  const TableShape& shape = table_.shape;
  const std::int64_t row = shape.in * static_cast<std::int64_t>(size_of(shape.a_dtype));
  return plan_.blocks * shape.num_slices * shape.max_rank <= kEarlyBytes / row;
}

Status LinearCall::shrink(const ConstTensorView& x, const Hidden& h, const DropoutMask& dropout) {
  if (plan_.strategy == Strategy::general || problem_.dropout_p > 0.0f) {
    return general_shrink(x, table_, places_, all_rows(addressing_), h, dropout, stream_);
  }
  shrunk_ = true;
  const SplitHidden to = split_hidden(h);
  if (plan_.strategy == Strategy::tensor_core) {
    return prefill_shrink(x, table_, grouping_, plan_.kind, plan_.active,
                          {to.data, to.row_stride, to.split_stride}, plan_.prefill, stream_);
  }
  return decode_shrink(x, table_, grouping_, plan_.kind, plan_.blocks, to,
                       {is_early(), fetches_early()}, stream_);
}

Status LinearCall::gather(const ConstTensorView& ids, const Hidden& h) {
  return general_gather(ids, table_, places_, all_rows(addressing_), h, stream_);
}

Status LinearCall::finish_h(const Hidden& h) {
  if (!is_split()) return {};
  return sum_splits(split_hidden(h), table_, grouping_, plan_.kind, plan_.blocks,
                    {h.data, h.stride, 0, 1}, stream_);
}

Status LinearCall::expand(const Hidden& h, const TensorView& y, bool made_h, bool with_bias,
                          bool keeps) {
  const YMode mode = problem_.options.y_mode;
  const RowRange range = all_rows(addressing_);
  if (plan_.strategy == Strategy::general) {
    if (mode == YMode::overwrite && places_.kind == Rows::by_segments)
      RANKFOLD_CUDA_TRY(zero_rows(y, stream_));
    return general_expand(h, table_, places_, range, y, {mode, with_bias, made_h}, stream_);
  }
  bool overlaps = shrunk_;
  if (mode == YMode::overwrite) {
    RANKFOLD_CUDA_TRY(zero_rows(y, stream_));
    overlaps = false;
  }
  const SplitHidden from = split_hidden(h);
  if (plan_.strategy == Strategy::tensor_core) {
    PrefillExpandOptions options;
    options.with_bias = with_bias;
    options.made_h = made_h;
    options.overlaps_shrink = overlaps;
    if (keeps && is_split()) options.h_sum = h;
    return prefill_expand({from.data, from.row_stride, from.split_stride}, table_, grouping_,
                          plan_.kind, plan_.active, addressing_.token_weights, y, options,
                          plan_.prefill, prefill_device(traits_), stream_);
  }
  DecodeExpand call;
  call.h = from;
  if (keeps && is_split()) {
    call.h_out = h.data;
    call.h_out_stride = h.stride;
  }
  call.token_weights = addressing_.token_weights;
  call.with_bias = with_bias;
  call.made_h = made_h;
  call.after_shrink = overlaps && traits_.major >= 9;
  call.releases = fetches_early();
  call.pinned = problem_.options.batch_invariant == BatchInvariant::on;
  call.uneven = plan_.kind != Grouping::uniform && plan_.active > 2 * plan_.segments;
  call.tiles_per_warp = plan_.tiles;
  return decode_expand(call, table_, grouping_, plan_.kind, plan_.blocks, y, traits_.num_sms,
                       stream_);
}

}  // namespace cuda
RANKFOLD_NAMESPACE_END
