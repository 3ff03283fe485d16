// The kernel of prefill_expand.cu and prefill_expand_odd.cu, included there alone.
#pragma once

#include "launch.hpp"
#include "prefill_expand_block.cuh"
#include "prefill_launch.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

namespace {

template <class T, class TY, int kSlabs, bool kOdd>
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
  expand_block<T, TY, kSlabs, kStages, kOdd>(p, p.entries + block.slot * p.slot_stride, rows,
                                             block.count, part, shared, [&](int r, float scaling) {
                                               if (p.token_weights != nullptr)
                                                 scaling *= p.token_weights[rows[r]];
                                               return scaling;
                                             });
}

template <class T, class TY, int kSlabs, bool kOdd>
Status launch_expand(ExpandParams& params, std::int64_t row_blocks, int rows, bool overlaps,
                     cudaStream_t stream) {
  static std::atomic<std::uint64_t> prepared{0};
  const int warps = rows / kWarpRows;
  params.slabs =
      static_cast<int>(std::min<std::int64_t>(kSlabs, divide_up(params.max_rank, kSlab)));
  // Where ranks do not fit a stage, the stages hold more slabs than their own.
  if (params.max_rank > kSlabs * kSlab) params.slabs = kSlabs;
  // No more stages than steps, so that more blocks fit beside those of the shrink.
  const int most_stages = kSlabs == 1 ? kFewStages : kManyStages;
  const int stages =
      params.max_rank > kSlabs * kSlab ? most_stages : std::min(most_stages, params.steps);
  const int stage_bytes = kColumns<TY> * params.slabs * kSlabRowBytes + kBiasBytes +
                          warps * (kOdd ? params.warp_bytes : kWarpBytes);
  return launch_shaped(&expand_columns<T, TY, kSlabs, kOdd>,
                       {.blocks = params.parts,
                        .blocks_y = std::min<std::int64_t>(row_blocks, kRowBlocksY),
                        .blocks_z = divide_up(row_blocks, kRowBlocksY),
                        .threads = warps * 32,
                        .shared_bytes = stages * stage_bytes,
                        .overlaps = overlaps},
                       &prepared, stream, params);
}

template <class T, class TY, bool kOdd>
Status launch_slabs(ExpandParams& params, std::int64_t row_blocks, int rows, bool overlaps,
                    cudaStream_t stream) {
  const int slabs = (params.max_rank + kSlab - 1) / kSlab;
  return slabs == 1 ? launch_expand<T, TY, 1, kOdd>(params, row_blocks, rows, overlaps, stream)
         : slabs > 4 && slabs <= 8
             ? launch_expand<T, TY, 8, kOdd>(params, row_blocks, rows, overlaps, stream)
             : launch_expand<T, TY, 4, kOdd>(params, row_blocks, rows, overlaps, stream);
}

}  // namespace

}  // namespace cuda
RANKFOLD_NAMESPACE_END
