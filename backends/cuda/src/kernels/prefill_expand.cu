#include "elements.cuh"
#include "launch.hpp"
#include "modules.hpp"
#include "prefill.hpp"
#include "prefill_expand_columns.cuh"
#include "prefill_launch.hpp"
#include "rows.cuh"
#include "wgmma.cuh"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

namespace {

/// Steps of a block: few enough that the device is full, many enough that beginning a block costs
/// little. Over `most` the blocks at work at a time are of so many rows that memory is slower.
/// beginning: what that costs, in steps.
int choose_steps(std::int64_t row_blocks, const TableShape& shape, std::int64_t columns,
                 std::int64_t num_sms, std::int64_t slots, int most, int beginning) {
  int best = most;
  std::int64_t best_cost = INT64_MAX;
  for (int steps = most; steps >= (beginning < 8 ? 1 : 2); --steps) {
    std::int64_t parts = 0;
    for (int s = 0; s < shape.num_slices; ++s)
      parts += divide_up(divide_up(shape.out[s], columns), steps);
    const std::int64_t blocks = row_blocks * parts;
    // In hundredths of a wave; the last of many waves is on average half empty.
    const std::int64_t waves = blocks <= num_sms ? 100
                               : blocks <= slots ? 130
                                                 : blocks * 100 / slots + 50;
    const std::int64_t cost = waves * (steps + beginning);
    if (cost < best_cost) {
      best_cost = cost;
      best = steps;
    }
  }
  return best;
}

/// The same for weights of float32, where a multiprocessor has one block, which begins in the time
/// of four steps. Half of the rows may be of no adapter, which nobody knows here.
int choose_float_steps(std::int64_t row_blocks, const TableShape& shape, std::int64_t columns,
                       std::int64_t num_sms) {
  int best = 8;
  std::int64_t best_cost = INT64_MAX;
  for (int steps = 40; steps >= 2; --steps) {
    std::int64_t parts = 0;
    for (int s = 0; s < shape.num_slices; ++s)
      parts += divide_up(divide_up(shape.out[s], columns), steps);
    const std::int64_t waves =
        divide_up(row_blocks * parts, num_sms) + divide_up(row_blocks * parts, 2 * num_sms);
    const std::int64_t cost = waves * (steps + 4);
    if (cost < best_cost) {
      best_cost = cost;
      best = steps;
    }
  }
  return best;
}

/// Blocks on a multiprocessor.
int resident_blocks(const TableShape& shape, int rows) {
  const bool high_rank = shape.max_rank > 4 * kSlab && shape.max_rank <= 8 * kSlab;
  return high_rank ? 1 : rows == 128 ? 2 : 3;
}

}  // namespace

Status prefill_expand(const PartialHidden& h, const AdapterTableView& table, const Grouping& rows,
                      Grouping::Kind kind, std::int64_t active_rows, const float* token_weights,
                      const TensorView& y, const PrefillExpandOptions& options,
                      const PrefillPlan& plan, const PrefillDevice& device, cudaStream_t stream) {
  const TableShape& shape = table.shape;
  ExpandParams params{};
  params.h = h;
  params.partials = plan.partials();
  params.wide_h = reinterpret_cast<std::uintptr_t>(h.data) % 8 == 0 && h.stride % 2 == 0 &&
                  h.split_stride % 2 == 0 && shape.max_rank % 2 == 0;
  params.h_sum = options.h_sum;
  params.entries = table.entries;
  params.slot_stride = table.slot_stride;
  params.rows = rows;
  params.kind = kind;
  params.token_weights = token_weights;
  params.y = y.data;
  params.y_stride = y.strides[0];
  params.num_slices = shape.num_slices;
  params.max_rank = shape.max_rank;
  const std::int64_t width = static_cast<std::int64_t>(size_of(y.dtype));
  const std::int64_t columns = kWarpBytes / kWarpRows / width;
  const std::int64_t row_blocks =
      row_block_bound(kind, active_rows, rows.max_segments, plan.expand_rows);
  // A slice of y that is not aligned: a step takes several times as long.
  params.wide_y =
      reinterpret_cast<std::uintptr_t>(y.data) % 16 == 0 && y.strides[0] * width % 16 == 0;
  bool odd_y = params.wide_y == 0;
  std::int64_t column = 0;
  for (int s = 0; s < shape.num_slices; column += shape.out[s++])
    odd_y = odd_y || column * width % 16 != 0 || shape.out[s] * width % 16 != 0;
  const bool of_floats = shape.b_dtype == DType::f32;
  const int resident = resident_blocks(shape, plan.expand_rows);
  // A segment ends on average in the middle of a row block.
  const std::int64_t likely_blocks =
      std::min(divide_up(active_rows, plan.expand_rows) +
                   (kind == Grouping::segments ? rows.max_segments / 2 : 0),
               row_blocks);
  if (plan.expand_steps > 0) {
    params.steps = plan.expand_steps;
  } else if (of_floats && shape.max_rank > kSlab) {
    params.steps = choose_float_steps(likely_blocks, shape, columns, device.num_sms);
  } else {
    params.steps = choose_steps(divide_up(active_rows, plan.expand_rows), shape, columns,
                                device.num_sms, std::int64_t{device.num_sms} * resident,
                                resident == 1 && !of_floats && row_blocks <= 8 ? 16 : 8,
                                odd_y && !of_floats ? 2 : 8);
  }
  for (int s = 0; s < shape.num_slices; ++s) {
    params.out[s] = shape.out[s];
    params.first_part[s] = params.parts;
    params.parts += static_cast<int>(divide_up(divide_up(shape.out[s], columns), params.steps));
  }
  if (active_rows == 0 || params.parts == 0) return {};
  params.overwrites = options.mode == YMode::overwrite;
  params.with_bias = options.with_bias;
  params.made_h = options.made_h;
  const bool overlaps = options.overlaps_shrink && device.is_hopper;
  if (of_floats) return expand_floats(params, y.dtype, odd_y, row_blocks, overlaps, stream);
  // Rows of B that are multiples of 8 bytes go the same way as y that is not aligned.
  if (odd_y || shape.max_rank % 8 == 4) {
    params.warp_bytes = kWarpBytes + (odd_y && width == 2 ? kTailBytes : 0);
    return expand_odd(params, shape.b_dtype, y.dtype, row_blocks, plan.expand_rows, overlaps,
                      stream);
  }
  const auto run = [&]<class T, class TY>(const T*, const TY*) {
    return launch_slabs<T, TY, false>(params, row_blocks, plan.expand_rows, overlaps, stream);
  };
  const float* const f32 = nullptr;
  const __half* const f16 = nullptr;
  const __nv_bfloat16* const bf16 = nullptr;
  if (shape.b_dtype == DType::f16) return y.dtype == DType::f32 ? run(f16, f32) : run(f16, f16);
  return y.dtype == DType::f32 ? run(bf16, f32) : run(bf16, bf16);
}

RANKFOLD_CUDA_MODULE(prefill_expand)

}  // namespace cuda
RANKFOLD_NAMESPACE_END
