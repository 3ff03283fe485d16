#include "launch.hpp"
#include "modules.hpp"
#include "pairs.cuh"
#include "prefill_launch.hpp"
#include "rank_tiles.cuh"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

namespace {

constexpr int kThreads = 128;  // a warpgroup
constexpr int kRowStep = kThreads / kPieces;
constexpr int kXPieces = kPairRows / kRowStep;  // of a thread in a stage
constexpr int kXBytes = kPairRows * kTileRowBytes;
constexpr int kStages = 4;

struct PairShrinkParams {
  PairLists lists;
  const void* x;
  std::int64_t x_stride;
  std::int64_t first_row;  // of the window
  const AdapterEntry* entries;
  std::int64_t slot_stride;
  float* h;
  std::int64_t h_stride;
  int in;
  int num_slices;
  int max_rank;
  int own_x;
  int wide_x;  // rows of x begin at multiples of 16 bytes
  int wide_h;  // pairs of h at multiples of 8
};

/// kMost: tiles of A in a stage. Several blocks share a multiprocessor: while one looks for its
/// rows, the others load.
template <int kMost>
struct Stage {
  static constexpr int kABytes = kMost * 16 * kTileRowBytes;
  static constexpr int kBytes = kXBytes + kABytes;
  static constexpr int kBlocks = kMost == 2 ? 4 : 3;
};

/// The thread's pieces of a stage of x, and the rows of h of its sums.
template <class T>
struct ThreadRows {
  const T* x[kXPieces];
  unsigned valid = 0;  // a bit a row of x
  float* h[2];
  bool has[2];
};
/// What the lists say of these, on its way while the entry is read.
struct ListedRows {
  int2 of_x[kXPieces];  // row of the window, token
  int of_h[2];

  __device__ __forceinline__ ListedRows(const PairShrinkParams& p, const PairBlock& block) {
    const int thread = static_cast<int>(threadIdx.x);
#pragma unroll
    for (int i = 0; i < kXPieces; ++i) {
      const int at = min(thread / kPieces + i * kRowStep, block.count - 1);
      of_x[i] = *reinterpret_cast<const int2*>(p.lists.rows + block.first + at);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r)
      of_h[r] = p.lists.rows[block.first + min(sum_row(r), block.count - 1)].x;
  }
  /// Of the thread's sums.
  static __device__ __forceinline__ int sum_row(int r) {
    const int thread = static_cast<int>(threadIdx.x);
    return thread / 32 * 16 + thread % 32 / 4 + r * 8;
  }
};
template <class T>
__device__ __forceinline__ ThreadRows<T> thread_rows(const PairShrinkParams& p,
                                                     const PairBlock& block,
                                                     const ListedRows& listed) {
  const int thread = static_cast<int>(threadIdx.x);
  ThreadRows<T> rows;
#pragma unroll
  for (int i = 0; i < kXPieces; ++i) {
    const std::int64_t row = p.own_x ? p.first_row + listed.of_x[i].x : listed.of_x[i].y;
    rows.x[i] = static_cast<const T*>(p.x) + row * p.x_stride + thread % kPieces * 8;
    if (thread / kPieces + i * kRowStep < block.count) rows.valid |= 1u << i;
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    rows.h[r] = p.h + listed.of_h[r] * p.h_stride;
    rows.has[r] = ListedRows::sum_row(r) < block.count;
  }
  return rows;
}

/// Tiles first_tile.. (count of them, at most kTiles) over all of K.
template <class T, int kTiles, int kMost, bool kWide>
__device__ __forceinline__ void shrink_pass(const PairShrinkParams& p, const SliceTiles& own,
                                            const ThreadRows<T>& rows, std::uint32_t shared,
                                            int first_tile, int count) {
  constexpr int kStageBytes = Stage<kMost>::kBytes;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const int piece = thread % kPieces, first_row = thread / kPieces;
  const T* a_rows[kTiles];
  unsigned a_valid = 0;
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
    const Tile tile = find_tile(own, first_tile + i);
    const int rank = tile.first + first_row;
    const bool is_row = i < count && rank < tile.rank;
    a_rows[i] = static_cast<const T*>(is_row ? tile.a : p.x) +
                (is_row ? rank * tile.stride + piece * 8 : 0);
    if (is_row) a_valid |= 1u << i;
  }
  // Past K both operands are zero; so are rows past the count and past the rank, which are not
  // read.
  const std::uint32_t own_place = shared + tile_offset(first_row, piece);
  const auto load = [&](int step, std::uint32_t place) {
    const int k = step * kStep;
    const int bytes = bytes_at<T>(p.in, k, piece);
    const int offset = bytes > 0 ? k : 0;
    const std::uint32_t to = own_place + place;
#pragma unroll
    for (int i = 0; i < kXPieces; ++i) {
      load_piece<kWide>(to + static_cast<std::uint32_t>(i * kRowStep * kTileRowBytes),
                        rows.x[i] + offset, (rows.valid >> i & 1u) != 0 ? bytes : 0);
    }
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      const bool there = (a_valid >> i & 1u) != 0;
      load_piece<kWide>(to + static_cast<std::uint32_t>(kXBytes + i * 16 * kTileRowBytes),
                        a_rows[i] + (there ? offset : 0), there ? bytes : 0);
    }
  };
  // As in multiply_pass() of prefill_shrink_tiles.cuh: sums of one stage by instructions that cut
  // off, the others by those that round.
  float sums[kTiles * 8] = {};
  float of_stage[kTiles * 8] = {};
  const auto add_stage = [&] {
#pragma unroll
    for (int i = 0; i < kTiles * 8; ++i) sums[i] += of_stage[i];
  };
  const int steps = (p.in + kStep - 1) / kStep;
#pragma unroll 1
  for (int step = 0; step < kStages - 1; ++step) {
    if (step < steps) load(step, step * kStageBytes);
    commit_copies();
  }
  std::uint32_t place = 0, last = (kStages - 1) * kStageBytes;
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    finish_tiles(of_stage);  // of the step before: its place is free after the barrier
    add_stage();
    wait_copies<kStages - 2>();
    publish_to_matrices();
    __syncthreads();
    begin_tiles<T, kTiles>(of_stage, shared + place, shared + place + kXBytes, false);
    if (step + kStages - 1 < steps) load(step + kStages - 1, last);
    commit_copies();
    last = place;
    place = place == (kStages - 1) * kStageBytes ? 0 : place + kStageBytes;
  }
  finish_tiles(of_stage);
  add_stage();
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    Tile tile = find_tile(own, first_tile + t);
    if (t >= count) tile.rank = 0;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const int column = n * 8 + lane % 4 * 2;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        if (rows.has[r]) {
          store_pair(rows.h[r], p.max_rank, p.wide_h, tile, column, sums[t * 8 + n * 4 + r * 2],
                     sums[t * 8 + n * 4 + r * 2 + 1]);
        }
      }
    }
  }
  wait_copies<0>();
  __syncthreads();  // before somebody fills the stages anew
}

template <class T, int kMost>
__global__ void __launch_bounds__(kThreads, Stage<kMost>::kBlocks)
    shrink_listed(const __grid_constant__ PairShrinkParams p) {
  extern __shared__ unsigned char dynamic[];
  const std::uint32_t shared = (shared_address(dynamic) + kAlign - 1) / kAlign * kAlign;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  wait_for_previous();
  release_next();
  for (int index = static_cast<int>(blockIdx.x);; index += static_cast<int>(gridDim.x)) {
    const PairBlock block = find_pair_block(p.lists, index);
    if (block.count == 0) return;
    const ListedRows listed(p, block);
    const SliceTiles own = slice_tiles(
        p.entries + block.slot * p.slot_stride + std::int64_t{block.expert} * p.num_slices,
        p.num_slices, p.max_rank, lane);
    const ThreadRows<T> rows = thread_rows<T>(p, block, listed);
    const int tiles = __shfl_sync(0xffffffffu, own.after, 31);
    const bool wide =
        own.rank == 0 || (reinterpret_cast<std::uintptr_t>(own.a) % 16 == 0 && own.stride % 8 == 0);
    const bool all_wide = __all_sync(0xffffffffu, wide) && p.wide_x;
    for (int first = 0; first < tiles; first += kMost) {
      const int count = min(tiles - first, kMost);
      if (!all_wide) {
        shrink_pass<T, kMost, kMost, false>(p, own, rows, shared, first, count);
      } else if (kMost == 2 && count == 1) {
        shrink_pass<T, 1, kMost, true>(p, own, rows, shared, first, count);
      } else {
        shrink_pass<T, kMost, kMost, true>(p, own, rows, shared, first, count);
      }
    }
  }
}

template <class T, int kMost>
Status launch_shrink(const PairShrinkParams& params, std::int64_t blocks,
                     const PrefillDevice& device, cudaStream_t stream) {
  static std::atomic<std::uint64_t> prepared{0};
  return launch_shaped(&shrink_listed<T, kMost>,
                       {.blocks = blocks,
                        .threads = kThreads,
                        .shared_bytes = kStages * Stage<kMost>::kBytes + kAlign,
                        .overlaps = device.is_hopper},
                       &prepared, stream, params);
}

}  // namespace

Status shrink_pairs(const ApplyExpertsArgs& args, const PairParts& parts, std::int64_t blocks,
                    const PrefillDevice& device, cudaStream_t stream) {
  const TableShape& shape = args.table.shape;
  PairShrinkParams params{};
  params.lists = parts.lists;
  params.x = args.x.data;
  params.x_stride = args.x.strides[0];
  params.first_row = args.addressing.row_begin;
  params.entries = args.table.entries;
  params.slot_stride = args.table.slot_stride;
  params.h = parts.h;
  params.h_stride = std::int64_t{shape.num_slices} * shape.max_rank;
  params.in = static_cast<int>(shape.in);
  params.num_slices = shape.num_slices;
  params.max_rank = shape.max_rank;
  params.own_x = args.addressing.x_rows == XRows::own;
  params.wide_x =
      reinterpret_cast<std::uintptr_t>(args.x.data) % 16 == 0 && args.x.strides[0] % 8 == 0;
  params.wide_h = shape.max_rank % 2 == 0;  // the workspace is aligned
  const bool few = shape.num_slices * divide_up(shape.max_rank, 16) <= 2;
  const auto run = [&]<class T>(const T*) {
    return few ? launch_shrink<T, 2>(params, blocks, device, stream)
               : launch_shrink<T, 4>(params, blocks, device, stream);
  };
  return args.x.dtype == DType::f16 ? run(static_cast<const __half*>(nullptr))
                                    : run(static_cast<const __nv_bfloat16*>(nullptr));
}

RANKFOLD_CUDA_MODULE(pairs_shrink)

}  // namespace cuda
RANKFOLD_NAMESPACE_END
