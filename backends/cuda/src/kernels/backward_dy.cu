// The first pass of backward: dy once, for ds and dB.
#include "backward_tiles.cuh"
#include "elements.cuh"
#include "launch_tiles.cuh"
#include "modules.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

namespace {

using namespace tiles;

struct DyParams {
  CUtensorMap dy_tiles;
  const void* dy;
  std::int64_t dy_stride;
  const AdapterEntry* entries;
  std::int64_t slot_stride;
  const float* token_weights;
  const float* h;
  std::int64_t h_stride;
  SlotRuns runs;
  float* ds_partials;
  float* db_partials;
  float* const* db;
  YMode mode;
  int chunk_rows;
  int num_slices;
  int max_rank;
  int num_blocks;
  int makes_ds;
  int dy_aligned;
  int h_slice;  // columns of h from slice to slice
  std::int64_t total_out;
  std::int64_t first_column[kMaxSlices + 1];
  int first_block[kMaxSlices + 1];
};

constexpr int kTilesOfGroup = kDyBlockColumns / 128;  // of columns, for each of the two warpgroups

template <int kRanks>
struct DyLayout {
  static constexpr int kSlots = kRanks == 64 ? 6 : 8;
  static constexpr int kSplit = kRanks == 64 ? 2 * kTileBytes : kTileBytes;
  static constexpr int kB = 0;                                    // 64 columns of B a tile
  static constexpr int kH = kB + 2 * kTilesOfGroup * kTileBytes;  // two stages of h in parts
  static constexpr int kRing = kH + 2 * kSplit;                   // kSlots tiles of dy a warpgroup
  static constexpr int kSums = kRing + 2 * kSlots * kTileBytes;   // ds of the second warpgroup
  static constexpr int kOrder = kSums + kRows * kRanks * 4;
  static constexpr int kWords = kOrder + kOrderRows * 4;
  static constexpr int kBarriers = kWords + 64;  // full and empty, of each slot
  static constexpr int kBytes =
      kBarriers + 4 * kSlots * 8 + 1024;  // 1024: to begin on a multiple of it
};

// grid: chunks of rows, within them blocks of columns.
// kFed: rows follow one another, and the copy engine fetches their tiles, at the word of one thread
// a warpgroup.
template <class T, int kRanks, bool kFed>
__global__ void __launch_bounds__(kThreads, 1) over_dy(const __grid_constant__ DyParams p) {
#if RANKFOLD_HAS_WGMMA
  using Layout = DyLayout<kRanks>;
  using Loader = SplitLoader<T, kRanks>;
  constexpr int kSlots = Layout::kSlots;
  constexpr int kWide =
      kRanks == 16 ? 32 : 64;  // columns of a product with h: both parts beside one another
  extern __shared__ unsigned char memory[];
  const std::uint32_t base = (shared_address(memory) + 1023) & ~std::uint32_t{1023};
  unsigned char* const shared = memory + (base - shared_address(memory));

  const int column_block = static_cast<int>(blockIdx.x) % p.num_blocks;
  const RowChunk chunk =
      find_chunk(p.runs, p.chunk_rows, static_cast<int>(blockIdx.x) / p.num_blocks);
  if (chunk.slot < 0) return;
  int slice = 0;
  while (slice + 1 < p.num_slices && column_block >= p.first_block[slice + 1]) ++slice;
  const AdapterEntry entry = p.entries[chunk.slot * p.slot_stride + slice];
  const int rank = paired_rank(entry, p.max_rank);
  if (rank == 0) return;
  const std::int64_t out = p.first_column[slice + 1] - p.first_column[slice];
  const std::int64_t block_column =
      static_cast<std::int64_t>(column_block - p.first_block[slice]) * kDyBlockColumns;
  float* const db = p.db != nullptr
                        ? p.db[static_cast<std::int64_t>(chunk.slot) * p.num_slices + slice]
                        : nullptr;
  const bool makes_db = db != nullptr, makes_ds = p.makes_ds != 0;
  if (!makes_db && !makes_ds) return;

  const int thread = static_cast<int>(threadIdx.x);
  const int group = __shfl_sync(0xffffffffu, thread / kGroup, 0), own = thread % kGroup;
  const int stages = (chunk.count + kRows - 1) / kRows;
  const RowNumbers rows{p.runs.order == nullptr ? nullptr : p.runs.order + chunk.first,
                        reinterpret_cast<std::int32_t*>(shared + Layout::kOrder), chunk.first,
                        chunk.count, p.runs.num_rows};

  // A unit: 64 rows of 64 columns of dy. Units of a warpgroup follow one another through its
  // columns, then rows.
  const std::uint32_t ring = base + Layout::kRing + group * kSlots * kTileBytes;
  const std::uint32_t full = base + Layout::kBarriers + group * kSlots * 8,
                      empty = full + 2 * kSlots * 8;
  int next_stage = 0, next_tile = 0, next_slot = 0, next_parity = 0;
  const auto feed = [&](bool waits) {
    if (next_stage == stages) return;
    if (waits) barrier_wait(empty + next_slot * 8, next_parity);
    barrier_expect(full + next_slot * 8, kTileBytes);
    // Past the slice stands the next one's, or nothing: tiles from beyond the matrix are zeros.
    const std::int64_t column = block_column + (next_tile * 2 + group) * 64;
    load_tile(ring + next_slot * kTileBytes, p.dy_tiles,
              static_cast<int>(column < out ? p.first_column[slice] + column : p.total_out),
              chunk.first + next_stage * kRows, full + next_slot * 8);
    if (++next_tile == kTilesOfGroup) {
      next_tile = 0;
      ++next_stage;
    }
    if (++next_slot == kSlots) {
      next_slot = 0;
      if (waits) next_parity ^= 1;
    }
  };
  if constexpr (kFed) {
    if (own == 0) {
      for (int i = 0; i < kSlots; ++i) {
        barrier_init(full + i * 8, 1);
        barrier_init(empty + i * 8, 4);
      }
      barrier_publish();
#pragma unroll 1
      for (int i = 0; i < kSlots; ++i) feed(false);
    }
  } else {
    rows.fill(0);
  }

  Loader loader;
  loader.data = p.h + slice * p.h_slice;
  loader.stride = p.h_stride;
  loader.limit = (p.max_rank + 3) / 4 * 4;
  loader.valid = 0;
#pragma unroll
  for (int i = 0; i < Loader::kOwn; ++i) {
    if (makes_db && thread % 4 * Loader::kOwn + i < rank) loader.valid |= 1u << i;
  }
  loader.weights = p.token_weights;
  loader.scaling = entry.scaling;

  if constexpr (!kFed) __syncthreads();
  // B, in tiles of 64 of its rows.
  if (makes_ds) {
    const bool aligned = is_aligned_16(entry.b, entry.b_row_stride);
    for (int i = thread; i < kDyBlockColumns * (kRanks / 8); i += kThreads) {
      const int n = i / (kRanks / 8), piece = i % (kRanks / 8);
      const int count = block_column + n < out ? min(max(rank - piece * 8, 0), 8) : 0;
      const T* const from = static_cast<const T*>(entry.b);
      fetch_piece(base + Layout::kB + n / 64 * kTileBytes + tile_offset(n % 64, piece),
                  count > 0 ? from + (block_column + n) * entry.b_row_stride + piece * 8 : from,
                  count, aligned);
    }
  }
  commit_copies();

  const std::int64_t own_column = block_column + group * 64 + own % 8 * 8;
  const T* const own_dy = static_cast<const T*>(p.dy) + p.first_column[slice] + own_column;
  const auto fetch = [&](int stage, int tile, int slot) {
    const std::int64_t left = out - own_column - tile * 128;
    const int bytes = static_cast<int>(left < 0 ? 0 : left < 8 ? left : 8) * 2;
    if (stage < stages) {
      fetch_rows(ring + slot * kTileBytes, rows, stage * kRows,
                 own_dy + (bytes > 0 ? tile * 128 : 0), p.dy_stride, bytes, p.dy_aligned != 0);
    }
    commit_copies();
  };
  float scale = 1.0f;
  if constexpr (std::is_same_v<T, __half>) {
    if (makes_db)
      scale = chunk_scale<1, !kFed>(&loader, rows,
                                    reinterpret_cast<std::uint32_t*>(shared + Layout::kWords));
    if (!kFed && chunk.count > kOrderRows / 2) {
      rows.fill(0);
      __syncthreads();
    }
  }
  if constexpr (!kFed) {
#pragma unroll 1
    for (int i = 0; i < kSlots - 1; ++i) fetch(i / kTilesOfGroup, i % kTilesOfGroup, i);
  }
  release_next();
  loader.template load<!kFed>(rows, 0);
  loader.store(base + Layout::kH, scale);
  loader.template load<!kFed>(rows, kRows);
  wait_copies<kFed ? 0 : kSlots - 1>();  // B is there
  publish_to_matrices();

  float db_sums[kTilesOfGroup][kWide / 2];
#pragma unroll
  for (int tile = 0; tile < kTilesOfGroup; ++tile) {
#pragma unroll
    for (int i = 0; i < kWide / 2; ++i) db_sums[tile][i] = 0.0f;
  }
  int slot = 0, parity = 0;
  for (int stage = 0; stage < stages; ++stage) {
    __syncthreads();
    if (!kFed && stage % (kOrderRows / 2 / kRows) == 0) rows.fill(stage * kRows + kOrderRows / 2);
    const std::uint32_t h = base + Layout::kH + stage % 2 * Layout::kSplit;
    float ds_sums[kRanks / 2];
#pragma unroll
    for (int i = 0; i < kRanks / 2; ++i) ds_sums[i] = 0.0f;
#pragma unroll
    for (int tile = 0; tile < kTilesOfGroup; ++tile) {
      if constexpr (kFed) {
        // The slot of two units ago is free, or soon will be.
        if (own == 0 && (stage > 0 || tile > 1)) feed(true);
        __syncwarp();
        barrier_wait(full + slot * 8, parity);
      } else {
        wait_copies<kSlots - 2>();
        publish_to_matrices();
        warpgroup_barrier(1 + group);
        constexpr int kAhead = kSlots - 1;
        fetch(stage + (tile + kAhead) / kTilesOfGroup, (tile + kAhead) % kTilesOfGroup,
              slot == 0 ? kAhead : slot - 1);
      }
      const std::uint64_t dy = descriptor(ring + slot * kTileBytes);
      const std::uint64_t b = descriptor(base + Layout::kB + (tile * 2 + group) * kTileBytes);
      const std::uint64_t h_high = descriptor(h), h_low = descriptor(h + kTileBytes);
      // Both products always: one that nobody asked for costs less than a branch, and nobody reads
      // it.
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < 4; ++k) wgmma<T, kRanks, 0>(ds_sums, dy + k * 2, b + k * 128);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        wgmma<T, kWide, 1>(db_sums[tile], dy + k * 128, h_high + k * 128);
        if constexpr (kRanks == 64)
          wgmma<T, kWide, 1>(db_sums[tile], dy + k * 128, h_low + k * 128);
      }
      wgmma_commit();
      if (tile == 0) {
        // While they run: the next stage's h, loaded a stage ago.
        loader.store(base + Layout::kH + (stage + 1) % 2 * Layout::kSplit, scale);
        loader.template load<!kFed>(rows, (stage + 2) * kRows);
      }
      if constexpr (kFed) {
        // The products before this have ended: their tile may be overwritten.
        if (tile + 1 < kTilesOfGroup) {
          wgmma_wait<1>();
        } else {
          wgmma_wait<0>();
        }
        if (tile > 0 && own % 32 == 0)
          barrier_arrive(empty + (slot == 0 ? kSlots - 1 : slot - 1) * 8);
        if (tile + 1 == kTilesOfGroup && own % 32 == 0) barrier_arrive(empty + slot * 8);
      } else {
        wgmma_wait<0>();
      }
      slot = slot + 1 == kSlots ? 0 : slot + 1;
      if (slot == 0) parity ^= 1;
    }
    if (makes_ds) {
      // Each warpgroup has the sums of its columns; it adds the other's for half of the ranks.
      constexpr int kHalf = kRanks / 4;
      float* const sums = reinterpret_cast<float*>(shared + Layout::kSums) + own;
#pragma unroll
      for (int i = 0; i < kHalf; ++i) {
        sums[((1 - group) * kHalf + i) * kGroup] = group == 0 ? ds_sums[kHalf + i] : ds_sums[i];
      }
      __syncthreads();
      const int row = own / 32 * 16 + own % 32 / 4;
      float* const to = p.ds_partials +
                        (static_cast<std::int64_t>(column_block) * p.runs.num_rows + chunk.first +
                         stage * kRows) *
                            kRanks +
                        group * (kRanks / 2) + own % 4 * 2;
#pragma unroll
      for (int i = 0; i < kHalf; i += 2) {
        const int r = row + i / 2 % 2 * 8;
        const float first = group == 0 ? ds_sums[i] : ds_sums[kHalf + i];
        const float second = group == 0 ? ds_sums[i + 1] : ds_sums[kHalf + i + 1];
        const float2 v = make_float2(first + sums[(group * kHalf + i) * kGroup],
                                     second + sums[(group * kHalf + i + 1) * kGroup]);
        if (stage * kRows + r < chunk.count)
          *reinterpret_cast<float2*>(to + r * kRanks + i / 4 * 8) = v;
      }
    }
  }
  wait_copies<0>();
  if (!makes_db) return;
  const float unscale = 1.0f / scale;
#pragma unroll
  for (int tile = 0; tile < kTilesOfGroup; ++tile) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const std::int64_t n =
          block_column + (tile * 2 + group) * 64 + own / 32 * 16 + own % 32 / 4 + half * 8;
      if (n >= out) continue;
#pragma unroll
      for (int i = 0; i < kRanks / 8; ++i) {
        const int at = i * 4 + half * 2, j = i * 8 + own % 4 * 2;
        float2 v = make_float2(db_sums[tile][at], db_sums[tile][at + 1]);
        if constexpr (kRanks < 64) {
          v.x += db_sums[tile][at + kRanks / 2];
          v.y += db_sums[tile][at + kRanks / 2 + 1];
        }
        v.x *= unscale;
        v.y *= unscale;
        if (chunk.partial >= 0) {
          *reinterpret_cast<float2*>(
              p.db_partials + (chunk.partial * p.total_out + p.first_column[slice] + n) * kRanks +
              j) = v;
          continue;
        }
        float* const to = db + n * rank + j;
        if (j < rank) to[0] = p.mode == YMode::overwrite ? v.x : to[0] + v.x;
        if (j + 1 < rank) to[1] = p.mode == YMode::overwrite ? v.y : to[1] + v.y;
      }
    }
  }
#endif
}

template <class T, int kRanks, bool kFed>
Status run(const TensorBackward& call, const DyParams& params, cudaStream_t stream) {
  return launch_tiles(&over_dy<T, kRanks, kFed>, call.tiling.dy_chunks * call.tiling.dy_blocks,
                      kThreads, DyLayout<kRanks>::kBytes, false, stream, params);
}
template <class T, int kRanks>
Status run(const TensorBackward& call, const DyParams& params, bool fed, cudaStream_t stream) {
  return fed ? run<T, kRanks, true>(call, params, stream)
             : run<T, kRanks, false>(call, params, stream);
}

}  // namespace

Status backward_over_dy(const TensorBackward& call, cudaStream_t stream) {
  const BackwardArgs& args = *call.args;
  const TableShape& shape = args.table.shape;
  DyParams p{};
  p.makes_ds = (call.outputs & (kOutputDs | kOutputDx | kOutputDa)) != 0;
  p.db = args.grads.db;
  if ((!p.makes_ds && p.db == nullptr) || call.tiling.dy_chunks == 0 || call.tiling.dy_blocks == 0)
    return {};
  if (call.is_uniform) return backward_over_dy_uniform(call, stream);
  p.dy = args.dy.data;
  p.dy_stride = args.dy.strides[0];
  p.entries = args.table.entries;
  p.slot_stride = args.table.slot_stride;
  p.token_weights = args.addressing.token_weights;
  p.h = call.h.data;
  p.h_stride = call.h.stride;
  p.runs = call.runs;
  p.ds_partials = call.partials.ds;
  p.db_partials = call.partials.db;
  p.mode = args.grads.mode;
  p.chunk_rows = call.tiling.dy_chunk;
  p.num_slices = shape.num_slices;
  p.max_rank = shape.max_rank;
  p.num_blocks = call.tiling.dy_blocks;
  p.total_out = total_out(shape);
  p.dy_aligned = is_aligned(args.dy.data, 2 * p.dy_stride, 16);
  p.h_slice = call.h_slice;
  for (int s = 0; s < shape.num_slices; ++s) {
    p.first_column[s + 1] = p.first_column[s] + shape.out[s];
    p.first_block[s + 1] =
        p.first_block[s] + static_cast<int>(divide_up(shape.out[s], kDyBlockColumns));
    if (shape.out[s] > 0 && p.first_column[s] % 8 != 0) p.dy_aligned = 0;
  }
  // Tiles of the last columns of a slice must not reach into the next one's.
  bool fed = call.runs.order == nullptr;
  for (int s = 0; s + 1 < shape.num_slices; ++s) fed = fed && shape.out[s] % 64 == 0;
  fed = fed && describe_matrix(&p.dy_tiles, args.dy.dtype, args.dy.data, call.runs.num_rows,
                               p.total_out, p.dy_stride, tiles::kRows);
  return with_half(args.dy.dtype, [&]<class T>(const T*) {
    switch (call.tiling.ranks) {
      case 16:
        return run<T, 16>(call, p, fed, stream);
      case 32:
        return run<T, 32>(call, p, fed, stream);
      default:
        if constexpr (std::is_same_v<T, __nv_bfloat16>) {
          return run<T, 64, false>(call, p, stream);
        } else {
          return run<T, 64>(call, p, fed, stream);
        }
    }
  });
}

RANKFOLD_CUDA_MODULE(backward_dy)

}  // namespace cuda
RANKFOLD_NAMESPACE_END
