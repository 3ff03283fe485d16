#include "../elements.cuh"
#include "../launch.hpp"
#include "../tensor.cuh"
#include "decode_expand.hpp"
#include "decode_rows.cuh"
#include "decode_tiles.cuh"
#include "modules.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

namespace {

__device__ __forceinline__ std::uint64_t join(std::uint32_t low, std::uint32_t high) {
  return static_cast<std::uint64_t>(high) << 32 | low;
}

// kMaxSteps: of 16 ranks, what max_rank needs: 1, 4 or 16.
template <class TY, class TB, int kMaxSteps, Lookup kLookup>
__global__ void __launch_bounds__(kThreads, sizeof(TB) == 2 ? 2 : 1)
    decode_expand_rows(const __grid_constant__ DecodeExpandParams p) {
  __shared__ __align__(16) Shared shared;
  constexpr bool kMany = 16 * kMaxSteps > kRankGroup;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int g = lane / 4, t = lane % 4;
  const RowBlock block =
      find_decode_block<kLookup>(p.grouping, p.kind, static_cast<int>(blockIdx.x));
  if (block.slot < 0) {
    // Who follows in the stream must not pass the shrink because this kernel had nothing to do.
    wait_for_previous();
    return;
  }
  const int chunk = static_cast<int>(blockIdx.y);
  int slice = 0;
  while (slice + 1 < p.num_slices && chunk >= p.chunks[slice]) ++slice;
  const int own = chunk - (slice > 0 ? p.chunks[slice - 1] : 0);
  // In straight line, so that one wait serves all of it. The assembler would put the stride off
  // until after the branch on the rank, and it is another sector of memory: so the rank depends on
  // it.
  const AdapterEntry* const entry = p.entries + block.slot * p.slot_stride + slice;
  const uint4 pointers = load_shared_use(&entry->a);
  const uint4 numbers = load_shared_use(&entry->rank);
  const uint4 strides = load_shared_use(&entry->a_row_stride);
  const int row = decode_row<kLookup>(p.grouping, p.kind, block, lane);
  const auto b_stride = static_cast<std::int64_t>(join(strides.z, strides.w));
  const bool has_a = (pointers.x | pointers.y) != 0;
  const TB* const b = reinterpret_cast<const TB*>(join(pointers.z, pointers.w));
  const int given = min(max(static_cast<int>(numbers.x), 0), p.max_rank);
  const float scaling = __uint_as_float(numbers.y);
  const float* const bias =
      p.with_bias != 0 ? reinterpret_cast<const float*>(join(numbers.z, numbers.w)) : nullptr;
  if (threadIdx.x < kDecodeRows) shared.rows[threadIdx.x] = row;
  Work<TY, TB> w;
  w.count = block.count;
  w.rank = (p.made_h != 0 && !has_a) || b == nullptr || b_stride < 0 ? 0 : given;
  // Rank 0: this adapter does not touch this slice.
  if (w.rank == 0) {
    wait_for_previous();
    return;
  }
  // Warps take turns at tiles.
  const int width = static_cast<int>(p.out[slice]);
  const std::int64_t column = p.columns[slice];
  const int at = (own * p.tiles_per_warp * kWarps + warp) * kColumns;
  w.bias = bias != nullptr ? bias + at + 8 * t : nullptr;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const std::int64_t mine = __shfl_sync(kAll, row, g + 8 * i);
    w.y[i] = g + 8 * i < block.count
                 ? static_cast<TY*>(p.y) + mine * p.y_stride + column + at + 8 * t
                 : nullptr;
    w.strength[i] = p.token_weights != nullptr ? scaling * p.token_weights[mine] : scaling;
  }
  // Lane g has rows 4g to 4g + 3 of B, so that it ends with eight consecutive columns.
  w.b = b + (at + 4 * g) * b_stride;
  w.b_stride = b_stride;
  w.left = width - at - 8 * t;
  w.b_left = width - at - 4 * g;
  w.tiles = min(p.tiles_per_warp, max(0, (width - at + kTileStep - 1) / kTileStep));
  w.h_column = slice * p.max_rank;
  w.first_chunk = own == 0;
  const int unit = w.rank <= 16 ? 4 : 16 / static_cast<int>(sizeof(TB));  // ranks of a load
  const bool wide =
      p.wide_y != 0 && (column * sizeof(TY) % 16 | width % 8 | w.rank % unit) == 0 &&
      (reinterpret_cast<std::uintptr_t>(b) | static_cast<std::uintptr_t>(b_stride * sizeof(TB))) %
              (unit * sizeof(TB)) ==
          0;
  __syncthreads();  // the rows
  const auto expand = [&]<int kSteps>(std::integral_constant<int, kSteps>) {
    if (block.count > 8) {
      expand_tiles<true, TY, TB, kSteps>(p, w, shared);
    } else {
      expand_tiles<false, TY, TB, kSteps>(p, w, shared);
    }
  };
  if (wide && bias == nullptr && w.rank <= kRankGroup) {
    if (w.rank <= 16) {
      expand(std::integral_constant<int, 1>());
    } else if constexpr (kMaxSteps > 1) {
      if (w.rank <= 32) {
        expand(std::integral_constant<int, 2>());
      } else {
        expand(std::integral_constant<int, 4>());
      }
    }
    return;
  }
  if constexpr (kMany) {
    if (w.rank > kRankGroup) {
      __shared__ __align__(16) ManyShared many;
      if (wide && bias == nullptr) {
        expand_many_ranks<true, TY, TB>(p, w, shared, many);
      } else {
        const Work<TY, TB> copy = w;
        call_expand_many_ranks<TY, TB>(p, copy, shared, many);
      }
      return;
    }
  }
  if constexpr (kMaxSteps == 1) {
    expand_in_groups<false, 1, TY, TB>(p, w, shared);
  } else {
    const Work<TY, TB> copy = w;
    if (w.rank <= 16) {
      call_expand_in_groups<1, TY, TB>(p, copy, shared);
    } else if (w.rank <= 32) {
      call_expand_in_groups<2, TY, TB>(p, copy, shared);
    } else {
      call_expand_in_groups<4, TY, TB>(p, copy, shared);
    }
  }
}

template <class TY, class TB, int kMaxSteps>
Status launch_expand(const DecodeExpandParams& p, dim3 grid, bool overlaps, cudaStream_t stream) {
  const auto run = [&]<Lookup kLookup>(std::integral_constant<Lookup, kLookup>) {
    return launch(&decode_expand_rows<TY, TB, kMaxSteps, kLookup>, grid, kThreads, stream, p,
                  overlaps);
  };
  // Those that serving is measured on.
  if constexpr (sizeof(TB) == 2) {
    if (p.kind == Grouping::uniform) return run(std::integral_constant<Lookup, Lookup::uniform>());
  }
  if constexpr (sizeof(TB) == 2 && kMaxSteps != 4) {
    if (p.kind == Grouping::segments)
      return run(std::integral_constant<Lookup, Lookup::segments>());
  }
  return run(std::integral_constant<Lookup, Lookup::any>());
}

template <class TY>
Status launch_expand(const DecodeExpandParams& p, DType b, dim3 grid, bool overlaps,
                     cudaStream_t stream) {
  if (b == DType::f32) {
    return p.max_rank <= 16 ? launch_expand<TY, float, 1>(p, grid, overlaps, stream)
                            : launch_expand<TY, float, 4>(p, grid, overlaps, stream);
  }
  if (p.max_rank <= 16) return launch_expand<TY, TY, 1>(p, grid, overlaps, stream);
  return p.max_rank <= kRankGroup ? launch_expand<TY, TY, 4>(p, grid, overlaps, stream)
                                  : launch_expand<TY, TY, 16>(p, grid, overlaps, stream);
}

// Of a warp, where that is asked for: from here on the ring is ahead.
constexpr int kRingTiles = 8;

// Whether B and y go through shared memory: where registers cannot hold enough of them. Not by what
// may differ between calls that have to make the same bits, unless both ways make them.
bool takes_ring(const TableShape& shape, DType y, std::int64_t blocks, int tiles_per_warp,
                int num_sms) {
  if (y == DType::f32 || shape.max_rank > (shape.b_dtype == y ? kMostRanks : kRankGroup))
    return true;
  std::int64_t tiles = 0;
  for (int i = 0; i < shape.num_slices; ++i) {
    if (shape.out[i] % 8 != 0) return true;
    tiles += divide_up(shape.out[i], kTileStep);
  }
  return shape.b_dtype == y && shape.max_rank <= 16 &&
         (tiles * blocks > std::int64_t{30} * num_sms || tiles_per_warp >= kRingTiles);
}

// Tiles a warp makes: as few as keep all blocks resident at once, else few enough that uneven
// blocks even out; see docs/cuda-kernels.md.
int choose_tiles(const TableShape& shape, std::int64_t blocks, bool uneven, bool ring,
                 std::int64_t resident) {
  std::int64_t widest = 0;
  for (int i = 0; i < shape.num_slices; ++i) widest = std::max(widest, shape.out[i]);
  const std::int64_t most = std::max<std::int64_t>(divide_up(widest, kTileStep), 1);
  const auto blocks_with = [&](std::int64_t tiles) {
    std::int64_t chunks = 0;
    for (int i = 0; i < shape.num_slices; ++i) chunks += divide_up(shape.out[i], kTileStep * tiles);
    return chunks * blocks;
  };
  std::int64_t tiles = 1;
  while (tiles < most && blocks_with(tiles) > resident) ++tiles;
  if (blocks_with(tiles) <= resident && (!uneven || tiles <= 6)) return static_cast<int>(tiles);
  return static_cast<int>(std::min<std::int64_t>(most, uneven && !ring ? 4 : 8));
}

}  // namespace

bool decode_expand_takes(DType b, DType y) noexcept {
  return b == y || y == DType::f32
             ? b == DType::f16 || b == DType::bf16 || y != DType::f32 || b == DType::f32
             : b == DType::f32;
}

Status decode_expand(const DecodeExpand& call, const AdapterTableView& table,
                     const Grouping& grouping, Grouping::Kind kind, std::int64_t blocks,
                     const TensorView& y, int num_sms, cudaStream_t stream) {
  const TableShape& shape = table.shape;
  if (blocks == 0 || shape.max_rank == 0 || shape.num_slots == 0) return {};
  DecodeExpandParams params{};
  params.h = call.h;
  params.h_out = call.h_out;
  params.h_out_stride = call.h_out_stride;
  params.token_weights = call.token_weights;
  params.entries = table.entries;
  params.slot_stride = table.slot_stride;
  params.grouping = grouping;
  params.y = y.data;
  params.y_stride = y.strides[0];
  params.kind = kind;
  params.num_slices = shape.num_slices;
  params.max_rank = shape.max_rank;
  const bool ring = takes_ring(shape, y.dtype, blocks, call.tiles_per_warp, num_sms);
  const std::int64_t resident = (ring && shape.max_rank <= 16 ? 3 : 2) * std::int64_t{num_sms};
  params.tiles_per_warp = call.tiles_per_warp > 0
                              ? call.tiles_per_warp
                              : choose_tiles(shape, blocks, call.uneven, ring, resident);
  params.with_bias = call.with_bias ? 1 : 0;
  params.made_h = call.made_h ? 1 : 0;
  params.pinned = call.pinned ? 1 : 0;
  params.releases = call.releases ? 1 : 0;
  const std::int64_t size = y.dtype == DType::f32 ? 4 : 2;
  params.wide_y =
      reinterpret_cast<std::uintptr_t>(y.data) % 16 == 0 && y.strides[0] * size % 16 == 0 ? 1 : 0;
  const bool wide_h = reinterpret_cast<std::uintptr_t>(call.h.data) % 16 == 0 &&
                      call.h.row_stride % 4 == 0 && call.h.split_stride % 4 == 0 &&
                      shape.max_rank % 4 == 0;
  params.wide_h = wide_h ? 1 : 0;
  std::int64_t chunks = 0;
  for (int i = 0; i < shape.num_slices; ++i) {
    params.out[i] = shape.out[i];
    params.columns[i] = i > 0 ? params.columns[i - 1] + shape.out[i - 1] : 0;
    chunks += divide_up(shape.out[i], kWarps * kColumns * params.tiles_per_warp);
    params.chunks[i] = static_cast<std::int32_t>(chunks);
  }
  if (chunks == 0) return {};
  const dim3 grid = grid_of(blocks, chunks);
  if (ring) return expand_by_ring(params, y.dtype, shape.b_dtype, grid, call.after_shrink, stream);
  return y.dtype == DType::f16
             ? launch_expand<__half>(params, shape.b_dtype, grid, call.after_shrink, stream)
             : launch_expand<__nv_bfloat16>(params, shape.b_dtype, grid, call.after_shrink, stream);
}

RANKFOLD_CUDA_MODULE(decode_expand)

}  // namespace cuda
RANKFOLD_NAMESPACE_END
