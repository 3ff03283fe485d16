#include "modules.hpp"
#include "prefill_launch.hpp"
#include "prefill_shrink_parts.cuh"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

namespace {

constexpr int kRows = kSharedRows;
constexpr int kRings = 2;   // each warpgroup has every second stage of K
constexpr int kPlaces = 2;  // of a stage: matrix instructions read one, the next is written
constexpr int kRowStep = kThreads / kRings / kPieces;
constexpr int kXPieces = kRows / kRowStep;
constexpr int kXBytes = kRows * kTileRowBytes;

/// Eight elements of 16 bits at any address on their way through registers: the words between, and
/// the first and last elements by themselves where those stand across words.
struct OddPiece {
  std::uint32_t raw[5];

  /// The first `count` of them; zeros past it.
  __device__ __forceinline__ void fetch(const void* from, int count) {
    const unsigned short* const halves = static_cast<const unsigned short*>(from);
    const int odd = oddness(from);
#pragma unroll
    for (int i = 0; i < 5; ++i) {
      const int element = 2 * i - odd;
      raw[i] = 0u;
      if (element >= 0 && element + 1 < count) {
        raw[i] = *reinterpret_cast<const std::uint32_t*>(halves + element);
      } else if (max(element, 0) < count) {
        raw[i] = static_cast<std::uint32_t>(halves[max(element, 0)]) << (element < 0 ? 16 : 0);
      }
    }
  }
  __device__ __forceinline__ void store(std::uint32_t to, const void* from) const {
    const int odd = oddness(from);
    std::uint32_t v[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] = odd != 0 ? __funnelshift_r(raw[i], raw[i + 1], 16) : raw[i];
    store_shared_16(to, v);
  }

 private:
  __device__ __forceinline__ static int oddness(const void* from) {
    return static_cast<int>(reinterpret_cast<std::uintptr_t>(from) >> 1 & 1);
  }
};

/// The thread's pieces of x and A in its ring's stages of K.
template <class T, int kTiles>
struct OddRows {
  static constexpr int kAPieces = kTiles * 16 / kRowStep;
  static constexpr int kBytes = kXBytes + kTiles * 16 * kTileRowBytes;  // of a stage

  const T* x[kXPieces];
  const T* a[kAPieces];
  unsigned has_a;  // a bit each
  int first_k;     // of the ring's first stage, at the thread's piece
  int stages;
  int in;
  std::uint32_t to;  // in the ring's first place

  struct Fetched {
    OddPiece x[kXPieces], a[kAPieces];
  };
  // Past K both operands are zero, past the rank A is: nothing is multiplied that is not there.
  __device__ __forceinline__ void fetch(Fetched& f, int stage) const {
    const int k = first_k + stage * kRings * kStep;
    const int count = stage < stages ? min(max(in - k, 0), 8) : 0;
    const int offset = count > 0 ? k : 0;
#pragma unroll
    for (int i = 0; i < kXPieces; ++i) f.x[i].fetch(x[i] + offset, count);
#pragma unroll
    for (int i = 0; i < kAPieces; ++i)
      f.a[i].fetch(a[i] + offset, (has_a >> i & 1u) != 0 ? count : 0);
  }
  __device__ __forceinline__ void store(const Fetched& f, int place) const {
    const std::uint32_t x_to = to + static_cast<std::uint32_t>(place * kBytes);
#pragma unroll
    for (int i = 0; i < kXPieces; ++i)
      f.x[i].store(x_to + static_cast<std::uint32_t>(i * kRowStep * kTileRowBytes), x[i]);
#pragma unroll
    for (int i = 0; i < kAPieces; ++i) {
      f.a[i].store(x_to + kXBytes + static_cast<std::uint32_t>(i * kRowStep * kTileRowBytes), a[i]);
    }
  }
};

template <class T, int kTiles>
__global__ void __launch_bounds__(kThreads, 1)
    shrink_odd_rows(const __grid_constant__ ShrinkParams p) {
  using Rows = OddRows<T, kTiles>;
  extern __shared__ unsigned char dynamic[];
  const std::uint32_t shared = (shared_address(dynamic) + kAlign - 1) / kAlign * kAlign;
  wait_for_previous();
  release_next();
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const int ring = thread / 128;
  const int split = static_cast<int>(blockIdx.x) % p.splits;
  const int part = static_cast<int>(blockIdx.x) / p.splits;
  const int parts = static_cast<int>(gridDim.x) / p.splits;
  const int index = static_cast<int>(blockIdx.y + blockIdx.z * kRowBlocksY);
  const RowBlock block = p.kind == Grouping::uniform
                             ? find_row_block<Grouping::uniform, kRows>(p.rows, index)
                             : find_row_block<Grouping::segments, kRows>(p.rows, index);
  if (block.slot < 0) return;
  const SliceTiles own =
      slice_tiles(p.entries + block.slot * p.slot_stride, p.num_slices, p.max_rank, lane);
  const int tiles = __shfl_sync(0xffffffffu, own.after, 31);

  const int piece = thread % 128 % kPieces, first_row = thread % 128 / kPieces;
  const int chunks = p.chunks + (split < p.chunks_over ? 1 : 0);
  Rows rows;
  rows.first_k = (split * p.chunks + min(split, p.chunks_over) + ring) * kStep + piece * 8;
  rows.stages = (chunks - ring + kRings - 1) / kRings;
  rows.in = p.in;
  const std::uint32_t base = shared + static_cast<std::uint32_t>(ring * kPlaces * Rows::kBytes);
  rows.to = base + tile_offset(first_row, piece);  // rows kRowStep apart have the same swizzle
#pragma unroll
  for (int i = 0; i < kXPieces; ++i) {
    rows.x[i] =
        static_cast<const T*>(p.x) + batch_row(p, block, first_row + i * kRowStep) * p.x_stride;
  }

#pragma unroll 1
  for (int first = part * kTiles; first < tiles; first += parts * kTiles) {
    const int count = min(kTiles, tiles - first);
    rows.has_a = 0;
#pragma unroll
    for (int i = 0; i < Rows::kAPieces; ++i) {
      const int row = first_row + i * kRowStep;
      const Tile tile = find_tile(own, first + row / 16);  // the same in the whole warp
      const int rank = tile.first + row % 16;
      const bool is_row = row / 16 < count && rank < tile.rank;
      rows.a[i] = static_cast<const T*>(is_row ? tile.a : p.x) + (is_row ? rank * tile.stride : 0);
      if (is_row) rows.has_a |= 1u << i;
    }
    // Matrix instructions cut off what they add: they make sums of a stage, and instructions that
    // round add those up.
    float sums[kTiles * 8] = {};
    float of_stage[kTiles * 8] = {};
    const auto add_stage = [&] {
      finish_tiles(of_stage);
#pragma unroll
      for (int i = 0; i < kTiles * 8; ++i) sums[i] += of_stage[i];
    };
    // Two stages are on their way in registers while a third is multiplied.
    typename Rows::Fetched even, odd;
    rows.fetch(even, 0);
    rows.fetch(odd, 1);
    rows.store(even, 0);
    rows.fetch(even, 2);
    const auto step = [&](int s, int place, typename Rows::Fetched& following) {
      add_stage();  // the other place is free once all have passed the barrier
      publish_to_matrices();
      warpgroup_barrier(1 + ring);
      const std::uint32_t at = base + static_cast<std::uint32_t>(place * Rows::kBytes);
      begin_tiles<T, kTiles>(of_stage, at, at + kXBytes, false);
      rows.store(following, 1 - place);
      rows.fetch(following, s + 3);
    };
#pragma unroll 1
    for (int s = 0; s < rows.stages; s += 2) {
      step(s, 0, odd);
      if (s + 1 < rows.stages) step(s + 1, 1, even);
    }
    add_stage();
    __syncthreads();
    store_sums<kRows, kRings, kTiles>(p, block, own, shared, first, count, split, sums);
  }
}

template <class T, int kTiles>
Status launch_odd(const ShrinkParams& params, std::int64_t row_blocks, int parts,
                  cudaStream_t stream) {
  static std::atomic<std::uint64_t> prepared{0};
  constexpr int kSums = kTiles * 8 * kRows * 2 * 4;  // where store_sums() has them
  return launch_shaped(
      &shrink_odd_rows<T, kTiles>,
      {.blocks = std::int64_t{params.splits} * parts,
       .blocks_y = std::min<std::int64_t>(row_blocks, kRowBlocksY),
       .blocks_z = divide_up(row_blocks, kRowBlocksY),
       .threads = kThreads,
       .shared_bytes = std::max(kRings * kPlaces * OddRows<T, kTiles>::kBytes, kSums) + kAlign,
       .cluster = params.cluster},
      &prepared, stream, params);
}

}  // namespace

Status shrink_odd(const ShrinkParams& params, DType x_dtype, std::int64_t row_blocks, int parts,
                  cudaStream_t stream) {
  const auto run = [&]<class T>(const T*) {
    return params.num_slices == 1 && params.max_rank <= 16
               ? launch_odd<T, 1>(params, row_blocks, parts, stream)
               : launch_odd<T, kSharedTiles>(params, row_blocks, parts, stream);
  };
  return x_dtype == DType::f16 ? run(static_cast<const __half*>(nullptr))
                               : run(static_cast<const __nv_bfloat16*>(nullptr));
}

RANKFOLD_CUDA_MODULE(prefill_shrink_odd)

}  // namespace cuda
RANKFOLD_NAMESPACE_END
