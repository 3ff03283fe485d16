#include "../launch.hpp"
#include "decode.hpp"
#include "decode_early.cuh"
#include "decode_shrink_any.cuh"
#include "decode_shrink_tiles.cuh"
#include "modules.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

namespace {

// max_rank at most 8 kPerSlice: where tiles stand is known without looking.
template <class TX, class TA, int kSlices, int kPerSlice, Lookup kLookup>
__global__ void __launch_bounds__(kThreads, 2)
    decode_shrink_low_rank(const __grid_constant__ DecodeShrinkParams p) {
  __shared__ __align__(16) Shared shared;
  constexpr int kTiles = kSlices * kPerSlice;
  if (p.fetches != 0) fetch_early<TA, kLookup>(p);
  wait_for_previous();
  release_next();
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
  const RowBlock block =
      find_decode_block<kLookup>(p.grouping, p.kind, static_cast<int>(blockIdx.x));
  if (block.slot < 0) return;
  const AdapterEntry* const entries = p.entries + block.slot * p.slot_stride;
  EntryOfA<TA> entry[kSlices];
#pragma unroll
  for (int i = 0; i < kSlices; ++i) entry[i] = read_entry<TA>(entries + i, p.max_rank);
  const TX* x[2];
  rows_of_x<kLookup>(p, block, x, shared.rows);
  // A slice of rank 0 has another's rows.
  const TA* some = nullptr;
#pragma unroll
  for (int i = 0; i < kSlices; ++i) some = entry[i].rank > 0 ? entry[i].a : some;
  if (some == nullptr) return;
  const TA* a[kTiles];
  std::uintptr_t low_bits = 0;
#pragma unroll
  for (int i = 0; i < kSlices; ++i) {
    const TA* const base = entry[i].rank > 0 ? entry[i].a : some;
    low_bits |= reinterpret_cast<std::uintptr_t>(base) |
                static_cast<std::uintptr_t>(entry[i].stride * sizeof(TA));
#pragma unroll
    for (int j = 0; j < kPerSlice; ++j) {
      a[kPerSlice * i + j] =
          base + max(min(8 * j + g, entry[i].rank - 1), 0) * entry[i].stride + 8 * t;
    }
  }
  const bool wide = p.wide != 0 && (low_bits & 15) == 0;
  if (threadIdx.x == 0) {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      shared.columns.first[i] = i / kPerSlice * p.max_rank + i % kPerSlice * 8;
      shared.columns.ranks[i] = min(entry[i / kPerSlice].rank - i % kPerSlice * 8, 8);
    }
  }
  shrink_tiles<TX, TA, kTiles, kTiles <= 2 ? 2 : 1, 1, false>(p, a, wide, x, block.count, 0,
                                                              shared);
}

template <class TX, class TA, int kPerSlice, Lookup kLookup>
Status launch_low_rank(const DecodeShrinkParams& p, dim3 grid, bool early, cudaStream_t stream) {
  switch (p.num_slices) {
    case 1:
      return launch(&decode_shrink_low_rank<TX, TA, 1, kPerSlice, kLookup>, grid, kThreads, stream,
                    p, early);
    case 2:
      return launch(&decode_shrink_low_rank<TX, TA, 2, kPerSlice, kLookup>, grid, kThreads, stream,
                    p, early);
    default:
      return launch(&decode_shrink_low_rank<TX, TA, 3, kPerSlice, kLookup>, grid, kThreads, stream,
                    p, early);
  }
}

template <class TX, class TA, Lookup kLookup>
Status launch_shrink(const DecodeShrinkParams& p, dim3 grid, bool early, cudaStream_t stream) {
  if constexpr (sizeof(TA) == 2) {
    if (p.num_slices <= 3 && p.max_rank <= kTile)
      return launch_low_rank<TX, TA, 1, kLookup>(p, grid, early, stream);
    if (p.num_slices <= 3 && p.max_rank <= 2 * kTile)
      return launch_low_rank<TX, TA, 2, kLookup>(p, grid, early, stream);
  }
  return launch(&decode_shrink_any_rank<TX, TA, kLookup>, grid, kThreads, stream, p, early);
}

template <class TX>
Status launch_shrink(const DecodeShrinkParams& p, DType a, dim3 grid, bool early,
                     cudaStream_t stream) {
  if (a == DType::f32) return launch_shrink<TX, float, Lookup::any>(p, grid, early, stream);
  if (p.kind == Grouping::uniform)
    return launch_shrink<TX, TX, Lookup::uniform>(p, grid, early, stream);
  if (p.kind == Grouping::segments)
    return launch_shrink<TX, TX, Lookup::segments>(p, grid, early, stream);
  return launch_shrink<TX, TX, Lookup::any>(p, grid, early, stream);
}

}  // namespace

bool decode_shrink_takes(DType x, DType a) noexcept {
  return (x == DType::f16 || x == DType::bf16) && (a == x || a == DType::f32);
}

Status decode_shrink(const ConstTensorView& x, const AdapterTableView& table,
                     const Grouping& grouping, Grouping::Kind kind, std::int64_t blocks,
                     const SplitHidden& h, const DecodeStart& start, cudaStream_t stream) {
  const TableShape& shape = table.shape;
  if (blocks == 0 || shape.max_rank == 0 || shape.num_slots == 0) return {};
  const bool aligned = reinterpret_cast<std::uintptr_t>(x.data) % 16 == 0 && x.strides[0] % 8 == 0;
  const int groups = static_cast<int>(divide_up(shape.in, kGroup));
  const DecodeShrinkParams params{.x = x.data,
                                  .x_stride = x.strides[0],
                                  .entries = table.entries,
                                  .slot_stride = table.slot_stride,
                                  .grouping = grouping,
                                  .h = h,
                                  .in = static_cast<int>(shape.in),
                                  .groups = groups,
                                  .groups_of_split = groups / h.splits,
                                  .longer_splits = groups % h.splits,
                                  .kind = static_cast<int>(kind),
                                  .num_slices = shape.num_slices,
                                  .max_rank = shape.max_rank,
                                  .wide = aligned && shape.in % kGroup == 0 ? 1 : 0,
                                  .fetches = start.early && start.fetches ? 1 : 0};
  const dim3 grid = grid_of(blocks, h.splits);
  if (x.dtype == DType::f16)
    return launch_shrink<__half>(params, shape.a_dtype, grid, start.early, stream);
  return launch_shrink<__nv_bfloat16>(params, shape.a_dtype, grid, start.early, stream);
}

RANKFOLD_CUDA_MODULE(decode_shrink)

}  // namespace cuda
RANKFOLD_NAMESPACE_END
