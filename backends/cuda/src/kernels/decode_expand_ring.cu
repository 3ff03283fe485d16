#include "../elements.cuh"
#include "../launch.hpp"
#include "../tensor.cuh"
#include "decode_expand.hpp"
#include "decode_ring_tiles.cuh"
#include "decode_rows.cuh"
#include "decode_tiles.cuh"
#include "modules.hpp"
#include "prefill_launch.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

namespace {

namespace ring {

__device__ __forceinline__ std::uint64_t join(std::uint32_t low, std::uint32_t high) {
  return static_cast<std::uint64_t>(high) << 32 | low;
}

// Of a warp: so many are sooner done from registers.
constexpr int kFewTiles = 6;

// The rings of all warps.
template <class TY, class TB, bool kLow>
constexpr int kRingBytes = [] {
  constexpr int kWide = Ring<TY, TB, false>::kBytes;
  if constexpr (sizeof(TB) == 2) {
    constexpr int kNarrow = Ring<TY, TB, true>::kBytes;
    return kWarps * (kLow || kNarrow > kWide ? kNarrow : kWide);
  } else {
    return kWarps * kWide;
  }
}();

// kLow: max_rank is at most 16, and B of 2 bytes.
template <class TY, class TB, bool kLow>
__global__ void __launch_bounds__(kThreads, kLow ? 3 : 2)
    decode_expand_ring(const __grid_constant__ DecodeExpandParams p) {
  extern __shared__ __align__(1024) unsigned char dynamic[];
  Shared& shared = *reinterpret_cast<Shared*>(dynamic);
  unsigned char* const rings = dynamic + sizeof(Shared);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int g = lane / 4, t = lane % 4;
  const RowBlock block =
      find_decode_block<Lookup::any>(p.grouping, p.kind, static_cast<int>(blockIdx.x));
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
  const int row = decode_row<Lookup::any>(p.grouping, p.kind, block, lane);
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
  const int at = (own * p.tiles_per_warp * kWarps + warp) * kColumns;
  TY* const y = static_cast<TY*>(p.y) + p.columns[slice];
  w.bias = bias != nullptr ? bias + at + 8 * t : nullptr;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const std::int64_t mine = __shfl_sync(kAll, row, g + 8 * i);
    w.y[i] = g + 8 * i < block.count ? y + mine * p.y_stride + at + 8 * t : nullptr;
    w.strength[i] = p.token_weights != nullptr ? scaling * p.token_weights[mine] : scaling;
  }
  w.b_stride = b_stride;
  w.b = b + at * w.b_stride;
  w.b_unit = copy_unit(b, w.b_stride * static_cast<int>(sizeof(TB)));
  w.y_unit = copy_unit(y, p.y_stride * static_cast<int>(sizeof(TY)));
  w.left = width - at;
  w.tiles = min(p.tiles_per_warp, max(0, (width - at + kTileStep - 1) / kTileStep));
  w.h_column = slice * p.max_rank;
  w.first_chunk = own == 0;
  const bool wide = w.b_unit == 16 && w.y_unit == 16 && width % 8 == 0 && bias == nullptr &&
                    w.rank % (16 / static_cast<int>(sizeof(TB))) == 0;
  __syncthreads();  // the rows
  if constexpr (std::is_same_v<TY, TB> && sizeof(TB) == 2 && !kLow) {
    // As the kernels of low rank do it where a table of high rank holds such an adapter.
    if (w.rank <= 16 && wide && p.tiles_per_warp <= kFewTiles) {
      auto& few = *reinterpret_cast<cuda::Shared*>(rings);
      if (threadIdx.x < kDecodeRows) few.rows[threadIdx.x] = row;
      __syncthreads();
      cuda::Work<TY, TB> v;
      v.y[0] = w.y[0];
      v.y[1] = w.y[1];
      v.b = w.b + 4 * g * w.b_stride;
      v.b_stride = w.b_stride;
      v.bias = nullptr;
      v.left = w.left - 8 * t;
      v.b_left = w.left - 4 * g;
      v.tiles = w.tiles;
      v.rank = w.rank;
      v.count = w.count;
      v.h_column = w.h_column;
      v.first_chunk = w.first_chunk;
      v.strength[0] = w.strength[0];
      v.strength[1] = w.strength[1];
      if (w.count > 8) {
        expand_tiles<true, TY, TB, 1>(p, v, few);
      } else {
        expand_tiles<false, TY, TB, 1>(p, v, few);
      }
      return;
    }
  }
  if constexpr (sizeof(TB) == 2) {
    if (kLow || w.rank <= 16) {
      const std::uint32_t ring = shared_address(rings) + warp * Ring<TY, TB, true>::kBytes;
      if (wide) {
        expand_narrow(p, w, shared, ring);
      } else {
        expand_narrow_slowly(p, w, shared, ring);
      }
      return;
    }
  }
  if constexpr (!kLow) {
    const std::uint32_t ring = shared_address(rings) + warp * Ring<TY, TB, false>::kBytes;
    auto* const left = reinterpret_cast<uint4*>(rings + kRingBytes<TY, TB, kLow>);
    if (wide) {
      expand_wide<true>(p, w, shared, ring, left);
    } else {
      expand_wide<false>(p, w, shared, ring, left);
    }
  }
}

template <class TY, class TB, bool kLow>
Status launch_expand(const DecodeExpandParams& p, dim3 grid, bool overlaps, cudaStream_t stream) {
  static std::atomic<std::uint64_t> prepared{0};
  int bytes = static_cast<int>(sizeof(Shared)) + kRingBytes<TY, TB, kLow>;
  if (!kLow) {
    const std::int64_t groups = divide_up(std::min(p.max_rank, kSection<TB>), kRankGroup);
    bytes += static_cast<int>(groups * (kRankGroup / 16) * sizeof(Left<TB>) * 32);
  }
  return launch_shaped(
      &decode_expand_ring<TY, TB, kLow>,
      {.blocks = grid.x, .blocks_y = grid.y, .shared_bytes = bytes, .overlaps = overlaps},
      &prepared, stream, p);
}

}  // namespace ring

}  // namespace

Status expand_by_ring(const DecodeExpandParams& params, DType y, DType b, dim3 grid, bool overlaps,
                      cudaStream_t stream) {
  return with_element(y, [&]<class TY>(const TY*) {
    return with_element(b, [&]<class TB>(const TB*) -> Status {
      if constexpr (std::is_same_v<TY, TB> && sizeof(TB) == 2) {
        if (params.max_rank <= 16)
          return ring::launch_expand<TY, TB, true>(params, grid, overlaps, stream);
      }
      if constexpr (std::is_same_v<TY, TB> || sizeof(TY) == 4 || sizeof(TB) == 4) {
        return ring::launch_expand<TY, TB, false>(params, grid, overlaps, stream);
      } else {
        return Status(StatusCode::internal, "decode_expand: B and y of two 16-bit dtypes");
      }
    });
  });
}

RANKFOLD_CUDA_MODULE(decode_expand_ring)

}  // namespace cuda
RANKFOLD_NAMESPACE_END
