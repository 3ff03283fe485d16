// The second pass of backward for rows of one slot, one slice and ranks of 33 to 64: x once, for
// dA; dx once, for ds A. All but A comes by the copy engine, ds as the high and low parts that
// finish_ds left.
//
// Each of two warpgroups has 128 columns, with places of its own for x and dx; what they share is
// ds, of which a stage of 64 rows takes as many bytes as its 128 columns of x. Nothing in the loop
// waits for the whole block: while one warpgroup adds to dx, the matrix instructions of the other
// may run.
#include "backward_tiles.cuh"
#include "launch_tiles.cuh"
#include "modules.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

namespace {

using namespace tiles;
using T = __nv_bfloat16;

constexpr int kRanks = kTileMaxRank;
[[maybe_unused]] constexpr int kGroupColumns = kWideXColumns / 2;

struct UniformXParams {
  CUtensorMap x_tiles;
  CUtensorMap dx_tiles;
  CUtensorMap dx_strips;  // 16 rows, to be written
  CUtensorMap ds_tiles;   // 64 columns of high parts, 64 of low ones
  const AdapterEntry* entry;
  float* da_partials;
  float* const* da;  // of the slot, or null
  YMode mode;
  SlotRuns runs;
  int makes_dx;
  int reads_dx;
  int chunk_rows;
  int max_rank;
  int num_blocks;
  std::int64_t in;
  std::int64_t padded_in;
};

struct UniformXLayout {
  static constexpr int kPlaces = 2;    // of a warpgroup: two tiles each of x and dx
  static constexpr int kDsPlaces = 4;  // high and low ds
  static constexpr int kX = 0;
  static constexpr int kDx = kX + 2 * kTileBytes;
  static constexpr int kPlace = kDx + 2 * kTileBytes;
  static constexpr int kDsPlace = 2 * kTileBytes;
  static constexpr int kA = 0;  // two tiles of 64 columns a warpgroup
  static constexpr int kDs = kA + 4 * kTileBytes;
  static constexpr int kRing = kDs + kDsPlaces * kDsPlace;
  static constexpr int kBarriers = kRing + 2 * kPlaces * kPlace;  // full and empty, a warpgroup's
  static constexpr int kDsBarriers = kBarriers + 4 * kPlaces * 8;
  static constexpr int kBytes = kDsBarriers + 2 * kDsPlaces * 8 + 1024;
};

// grid: chunks of rows, within them blocks of columns.
__global__ void __launch_bounds__(kThreads, 1)
    over_x_uniform(const __grid_constant__ UniformXParams p) {
#if RANKFOLD_HAS_WGMMA
  using Layout = UniformXLayout;
  extern __shared__ unsigned char memory[];
  const std::uint32_t base = (shared_address(memory) + 1023) & ~std::uint32_t{1023};

  const int column_block = static_cast<int>(blockIdx.x) % p.num_blocks;
  const RowChunk chunk =
      find_chunk(p.runs, p.chunk_rows, static_cast<int>(blockIdx.x) / p.num_blocks);
  const AdapterEntry entry = *p.entry;
  const int rank = paired_rank(entry, p.max_rank);
  float* const da = p.da == nullptr ? nullptr : *p.da;
  const bool makes_da = da != nullptr, makes_dx = p.makes_dx != 0, reads_dx = p.reads_dx != 0;
  if (chunk.slot < 0 || rank == 0 || (!makes_da && !makes_dx)) return;

  const int thread = static_cast<int>(threadIdx.x);
  const int group = __shfl_sync(0xffffffffu, thread / kGroup, 0), own = thread % kGroup;
  const int lane = own % 32, warp_row = own / 32 * 16;
  const int block_column = column_block * kWideXColumns,
            first_column = block_column + group * kGroupColumns;
  const int stages = (chunk.count + kRows - 1) / kRows;
  const auto place_of = [&](int stage) {
    return base + Layout::kRing +
           static_cast<std::uint32_t>((group * Layout::kPlaces + stage % Layout::kPlaces) *
                                      Layout::kPlace);
  };
  const auto full_of = [&](int stage) {
    return base + Layout::kBarriers +
           static_cast<std::uint32_t>((group * Layout::kPlaces + stage % Layout::kPlaces) * 8);
  };
  const auto empty_of = [&](int stage) { return full_of(stage) + 2 * Layout::kPlaces * 8; };
  const auto ds_of = [&](int stage) {
    return base + Layout::kDs +
           static_cast<std::uint32_t>(stage % Layout::kDsPlaces * Layout::kDsPlace);
  };
  const auto ds_full_of = [&](int stage) {
    return base + Layout::kDsBarriers + static_cast<std::uint32_t>(stage % Layout::kDsPlaces * 8);
  };
  const auto ds_empty_of = [&](int stage) { return ds_full_of(stage) + Layout::kDsPlaces * 8; };
  const auto load_x = [&](int stage) {
    barrier_expect(full_of(stage),
                   2 * kTileBytes * (static_cast<int>(makes_da) + static_cast<int>(reads_dx)));
    if (!makes_da) return;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      load_tile(place_of(stage) + Layout::kX + half * kTileBytes, p.x_tiles,
                first_column + half * 64, chunk.first + stage * kRows, full_of(stage));
    }
  };
  const auto load_dx = [&](int stage) {
    if (!reads_dx) return;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      load_tile(place_of(stage) + Layout::kDx + half * kTileBytes, p.dx_tiles,
                first_column + half * 64, chunk.first + stage * kRows, full_of(stage));
    }
  };
  const auto load_ds = [&](int stage) {
    const std::uint32_t to = ds_of(stage), full = ds_full_of(stage);
    const int row = chunk.first + stage * kRows;
    barrier_expect(full, Layout::kDsPlace);
    load_tile(to, p.ds_tiles, 0, row, full);
    load_tile(to + kTileBytes, p.ds_tiles, 64, row, full);
  };
  if (own == 0) {
    for (int stage = 0; stage < Layout::kPlaces; ++stage) {
      barrier_init(full_of(stage), 1);
      barrier_init(empty_of(stage), 4);
    }
    if (group == 0) {
      for (int stage = 0; stage < Layout::kDsPlaces; ++stage) {
        barrier_init(ds_full_of(stage), 1);
        barrier_init(ds_empty_of(stage), 2);
      }
    }
    barrier_publish();
    for (int stage = 0; stage < min(stages, Layout::kPlaces); ++stage) {
      load_x(stage);
      load_dx(stage);
    }
  }
  if (makes_dx) {
    const T* const from = static_cast<const T*>(entry.a);
    const bool aligned = is_aligned_16(from, entry.a_row_stride);
    constexpr int kPieces = kWideXColumns / 8;
#pragma unroll 2
    for (int i = thread; i < kRanks * kPieces; i += kThreads) {
      const int row = i / kPieces, piece = i % kPieces;
      const std::int64_t k = block_column + piece * 8;
      const bool there = row < rank && k < p.in;
      fetch_piece(base + Layout::kA + static_cast<std::uint32_t>(piece / 8 * kTileBytes) +
                      tile_offset(row, piece % 8),
                  there ? from + row * entry.a_row_stride + k : from,
                  there ? static_cast<int>(p.in - k < 8 ? p.in - k : 8) : 0, aligned || !there);
    }
  }
  commit_copies();
  // All before this reads what no kernel of the call writes; ds is of the one before.
  wait_for_previous();
  release_next();
  if (thread == 0) {
    for (int stage = 0; stage < min(stages, Layout::kDsPlaces); ++stage) load_ds(stage);
  }
  float da_sums[64];  // ranks in rows
#pragma unroll
  for (int i = 0; i < 64; ++i) da_sums[i] = 0.0f;
  wait_copies<0>();
  publish_to_matrices();
  __syncthreads();

  const std::uint64_t a = descriptor<kTileBytes>(
      base + Layout::kA + static_cast<std::uint32_t>(group * 2 * kTileBytes));
#pragma unroll 1
  for (int stage = 0; stage < stages; ++stage) {
    const std::uint32_t place = place_of(stage);
    const std::uint64_t high = descriptor(ds_of(stage)),
                        low = descriptor(ds_of(stage) + kTileBytes),
                        x = descriptor<kTileBytes>(place + Layout::kX);
    float dx_sums[64];
    barrier_wait(ds_full_of(stage), stage / Layout::kDsPlaces % 2);
    barrier_wait(full_of(stage), stage / Layout::kPlaces % 2);
    // Both products always: one that nobody asked for costs less than a branch, and nobody reads
    // it.
    wgmma_fence();
    wgmma<T, 128, 0, 0>(dx_sums, high, a);
    wgmma<T, 128, 0>(dx_sums, low, a);
#pragma unroll
    for (int k = 1; k < 4; ++k) {
      wgmma<T, 128, 0>(dx_sums, high + k * 2, a + k * 128);
      wgmma<T, 128, 0>(dx_sums, low + k * 2, a + k * 128);
    }
    wgmma_commit();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      wgmma<T, 128, 1>(da_sums, high + k * 128, x + k * 128);
      wgmma<T, 128, 1>(da_sums, low + k * 128, x + k * 128);
    }
    wgmma_commit();
    // While they run: what the stage before this has stored gives its place to the one after this.
    if (stage >= 1 && stage + 1 < stages) {
      if (lane == 0) {
        wait_stores<0>();
        barrier_arrive(empty_of(stage - 1));
      }
      if (own == 0) {
        barrier_wait(empty_of(stage - 1), (stage - 1) / Layout::kPlaces % 2);
        load_dx(stage + 1);
      }
      __syncwarp();
    }
    wgmma_wait<1>();
    settle(dx_sums);
    if (makes_dx) {
      // A warp has 16 rows, so that no other reads or writes them.
      const int row = warp_row + lane / 8 % 2 * 8 + lane % 8;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const std::uint32_t tile = place + Layout::kDx + half * kTileBytes;
#pragma unroll
        for (int i = 0; i < 8; i += 2) {
          const std::uint32_t at = tile + tile_offset(row, i + lane / 16);
          std::uint32_t pairs[4] = {};
          if (reads_dx) load_matrices(pairs, at);
#pragma unroll
          for (int m = 0; m < 4; ++m) {
            const float2 old = widen_pair<T>(pairs[m]);
            const int sum = (half * 8 + i + m / 2) * 4 + m % 2 * 2;
            pairs[m] = reads_dx ? narrow_pair<T>(old.x + dx_sums[sum], old.y + dx_sums[sum + 1])
                                : narrow_pair<T>(dx_sums[sum], dx_sums[sum + 1]);
          }
          store_matrices(at, pairs);
        }
      }
      publish_to_matrices();
      __syncwarp();
      if (lane == 0) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          store_tile(p.dx_strips, first_column + half * 64, chunk.first + stage * kRows + warp_row,
                     place + Layout::kDx + half * kTileBytes + warp_row * kSwizzledRow);
        }
      }
    }
    wgmma_wait<0>();
    settle(da_sums);
    warpgroup_barrier(1 + group);
    if (own == 0) {
      barrier_arrive(ds_empty_of(stage));
      if (stage + Layout::kPlaces < stages) load_x(stage + Layout::kPlaces);
      // The other warpgroup may be a stage behind.
      if (group == 0 && stage > 0 && stage - 1 + Layout::kDsPlaces < stages) {
        barrier_wait(ds_empty_of(stage - 1), (stage - 1) / Layout::kDsPlaces % 2);
        load_ds(stage - 1 + Layout::kDsPlaces);
      }
    }
    __syncwarp();
  }
  if (lane == 0) wait_stores<0>();
  if (!makes_da) return;

  const int first_rank = warp_row + lane / 4;
  const std::int64_t first_k = first_column + lane % 4 * 2;
#pragma unroll
  for (int i = 0; i < 64; i += 2) {
    const int j = first_rank + i / 2 % 2 * 8;
    const std::int64_t k = first_k + i / 4 * 8;
    if (j >= rank || k >= p.in) continue;
    if (chunk.partial >= 0) {
      *reinterpret_cast<float2*>(
          p.da_partials +
          (static_cast<std::int64_t>(chunk.partial) * p.max_rank + j) * p.padded_in + k) =
          make_float2(da_sums[i], da_sums[i + 1]);
      continue;
    }
    float* const to = da + j * p.in + k;
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      if (k + e < p.in)
        to[e] = p.mode == YMode::overwrite ? da_sums[i + e] : to[e] + da_sums[i + e];
    }
  }
#endif
}

}  // namespace

Status backward_over_x_uniform(const TensorBackward& call, cudaStream_t stream) {
  const BackwardArgs& args = *call.args;
  const TableShape& shape = args.table.shape;
  UniformXParams p{};
  const int slot = call.runs.uniform_slot;
  if (slot < 0 || slot >= shape.num_slots || (args.grads.da == nullptr && !call.makes_dx))
    return {};
  p.entry = args.table.entries + slot * args.table.slot_stride;
  p.da = args.grads.da == nullptr ? nullptr : args.grads.da + slot;
  p.da_partials = call.partials.da;
  p.mode = args.grads.mode;
  p.runs = call.runs;
  p.makes_dx = call.makes_dx;
  p.reads_dx = call.makes_dx && args.options.y_mode == YMode::accumulate;
  p.chunk_rows = call.tiling.x_chunk;
  p.max_rank = shape.max_rank;
  p.num_blocks = call.tiling.x_blocks;
  p.in = shape.in;
  p.padded_in = divide_up(shape.in, 4) * 4;
  const std::int64_t rows = call.runs.num_rows;
  bool described = describe_matrix(&p.ds_tiles, DType::bf16, call.partials.whole_ds, rows,
                                   2 * kRanks, 2 * kRanks, kRows);
  if (args.grads.da != nullptr) {
    described = described && describe_matrix(&p.x_tiles, args.x.dtype, args.x.data, rows, p.in,
                                             args.x.strides[0], kRows);
  }
  if (call.makes_dx) {
    const std::int64_t stride = args.dx.strides[0];
    described =
        described &&
        describe_matrix(&p.dx_tiles, args.dx.dtype, args.dx.data, rows, p.in, stride, kRows) &&
        describe_matrix(&p.dx_strips, args.dx.dtype, args.dx.data, rows, p.in, stride, 16);
  }
  if (!described) {
    return Status(StatusCode::device_error, "backward: the driver does not describe x, dx or ds");
  }
  return launch_tiles(&over_x_uniform, call.tiling.x_chunks * call.tiling.x_blocks, kThreads,
                      UniformXLayout::kBytes, true, stream, p);
}

RANKFOLD_CUDA_MODULE(backward_x_uniform)

}  // namespace cuda
RANKFOLD_NAMESPACE_END
