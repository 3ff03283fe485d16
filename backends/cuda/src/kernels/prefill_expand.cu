#include "elements.cuh"
#include "launch.hpp"
#include "modules.hpp"
#include "prefill.hpp"
#include "prefill_expand_block.cuh"
#include "prefill_expand_floats.cuh"
#include "prefill_launch.hpp"
#include "rows.cuh"
#include "wgmma.cuh"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

namespace {

template <class T, class TY, int kSlabs>
__global__ void __launch_bounds__(256, (kSlabs > 4 ? 1 : 2))
    expand_columns(const __grid_constant__ ExpandParams p) {
  extern __shared__ __align__(256) unsigned char dynamic[];
  const std::uint32_t shared = shared_address(dynamic);
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32, warp = thread / 32;
  const int part = static_cast<int>(blockIdx.x);
  const int index = static_cast<int>(blockIdx.y + blockIdx.z * kRowBlocksY);
  RowBlock block;
  if (p.kind == Grouping::uniform) {
    block = blockDim.x == 128 ? find_row_block<Grouping::uniform, 64>(p.rows, index)
                              : find_row_block<Grouping::uniform, 128>(p.rows, index);
  } else if (blockDim.x == 128) {
    block = find_row_block<Grouping::segments, 64>(p.rows, index);
  } else {
    block = find_row_block<Grouping::segments, 128>(p.rows, index);
  }
  if (block.slot < 0) {
    wait_for_previous();
    return;
  }
  int rows[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int at = min(warp * kWarpRows + lane / 4 + r * 8, block.count - 1);
    rows[r] = p.kind == Grouping::uniform ? row_at<Grouping::uniform>(p.rows, block, at)
                                          : row_at<Grouping::segments>(p.rows, block, at);
  }
  constexpr int kStages = kSlabs == 1 ? kFewStages : kManyStages;
  expand_block<T, TY, kSlabs, kStages>(p, p.entries + block.slot * p.slot_stride, rows, block.count,
                                       part, shared, [&](int r, float scaling) {
                                         if (p.token_weights != nullptr)
                                           scaling *= p.token_weights[rows[r]];
                                         return scaling;
                                       });
}

template <class T, class TY, int kSlabs>
Status launch_expand(ExpandParams& params, std::int64_t row_blocks, int rows, bool overlaps,
                     cudaStream_t stream) {
  static std::atomic<std::uint64_t> prepared{0};
  const int warps = rows / kWarpRows;
  params.slabs =
      static_cast<int>(std::min<std::int64_t>(kSlabs, divide_up(params.max_rank, kSlab)));
  // Where ranks do not fit a stage, the stages hold more slabs than their own.
  if (params.max_rank > kSlabs * kSlab) params.slabs = kSlabs;
  const int stage_bytes =
      kColumns<TY> * params.slabs * kSlabRowBytes + kBiasBytes + warps * kWarpBytes;
  return launch_shaped(&expand_columns<T, TY, kSlabs>,
                       {.blocks = params.parts,
                        .blocks_y = std::min<std::int64_t>(row_blocks, kRowBlocksY),
                        .blocks_z = divide_up(row_blocks, kRowBlocksY),
                        .threads = warps * 32,
                        .shared_bytes = (kSlabs == 1 ? kFewStages : kManyStages) * stage_bytes,
                        .overlaps = overlaps},
                       &prepared, stream, params);
}

/// Steps of a block: few enough that the device is full, many enough that beginning a block costs
/// little. Over eight the blocks at work at a time are of so many rows that memory is slower.
int choose_steps(std::int64_t row_blocks, const TableShape& shape, std::int64_t columns,
                 std::int64_t num_sms, std::int64_t slots) {
  int best = 8;
  std::int64_t best_cost = INT64_MAX;
  for (int steps = 8; steps >= 2; --steps) {
    std::int64_t parts = 0;
    for (int s = 0; s < shape.num_slices; ++s)
      parts += divide_up(divide_up(shape.out[s], columns), steps);
    const std::int64_t blocks = row_blocks * parts;
    // In hundredths of a wave; the last of many waves is on average half empty. Beginning costs as
    // much as 8 steps.
    const std::int64_t waves = blocks <= num_sms ? 100
                               : blocks <= slots ? 130
                                                 : blocks * 100 / slots + 50;
    const std::int64_t cost = waves * (steps + 8);
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
  params.steps =
      plan.expand_steps > 0
          ? plan.expand_steps
          : choose_steps(divide_up(active_rows, plan.expand_rows), shape, columns, device.num_sms,
                         std::int64_t{device.num_sms} * resident_blocks(shape, plan.expand_rows));
  for (int s = 0; s < shape.num_slices; ++s) {
    params.out[s] = shape.out[s];
    params.first_part[s] = params.parts;
    params.parts += static_cast<int>(divide_up(divide_up(shape.out[s], columns), params.steps));
  }
  if (active_rows == 0 || params.parts == 0) return {};
  params.wide_y =
      reinterpret_cast<std::uintptr_t>(y.data) % 16 == 0 && y.strides[0] * width % 16 == 0;
  params.overwrites = options.mode == YMode::overwrite;
  params.with_bias = options.with_bias;
  params.made_h = options.made_h;
  const bool overlaps = options.overlaps_shrink && device.is_hopper;
  const auto run = [&]<class T, class TY>(const T*, const TY*) {
    const int slabs = static_cast<int>(divide_up(shape.max_rank, kSlab));
    if constexpr (std::is_same_v<T, float>) {
      return slabs == 1   ? launch_floats<TY, 1>(params, row_blocks, overlaps, stream)
             : slabs <= 4 ? launch_floats<TY, 4>(params, row_blocks, overlaps, stream)
                          : launch_floats<TY, 8>(params, row_blocks, overlaps, stream);
    } else {
      const int rows = plan.expand_rows;
      return slabs == 1 ? launch_expand<T, TY, 1>(params, row_blocks, rows, overlaps, stream)
             : slabs > 4 && slabs <= 8
                 ? launch_expand<T, TY, 8>(params, row_blocks, rows, overlaps, stream)
                 : launch_expand<T, TY, 4>(params, row_blocks, rows, overlaps, stream);
    }
  };
  const float* const f32 = nullptr;
  const __half* const f16 = nullptr;
  const __nv_bfloat16* const bf16 = nullptr;
  if (shape.b_dtype == DType::f32) return y.dtype == DType::f32 ? run(f32, f32) : run(f32, bf16);
  if (shape.b_dtype == DType::f16) return y.dtype == DType::f32 ? run(f16, f32) : run(f16, f16);
  return y.dtype == DType::f32 ? run(bf16, f32) : run(bf16, bf16);
}

RANKFOLD_CUDA_MODULE(prefill_expand)

}  // namespace cuda
RANKFOLD_NAMESPACE_END
