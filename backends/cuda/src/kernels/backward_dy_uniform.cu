// The first pass of backward for rows of one slot, one slice and ranks of 33 to 64: dy once, for ds
// and dB. dy and h come by the copy engine, h as the high and low parts that split_h left.
//
// Products that read both operands from shared memory take as long to read as to multiply. So what
// many of them share stands in registers: of a stage of 64 rows the first warpgroup makes ds, with
// all of the block's B in its registers, and the last of four column blocks of dB; the other makes
// the rest of dB, with the stage's h in its registers. That is about as much work for each, and
// nothing that one would have to hand to the other.
#include "backward_tiles.cuh"
#include "launch_tiles.cuh"
#include "modules.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

namespace {

using namespace tiles;
using T = __nv_bfloat16;

constexpr int kRanks = kTileMaxRank;
constexpr int kUnitColumns = 128;  // a unit: 64 rows of them, two tiles; the last may be narrower
constexpr int kStageUnits = 4;

template <int kLast>  // columns of the last unit of a stage
struct UniformDyLayout {
  static constexpr int kColumns = (kStageUnits - 1) * kUnitColumns + kLast;
  static constexpr int kStages = 3;
  static constexpr int kUnit = 2 * kTileBytes;
  static constexpr int kUnits = kStages * kStageUnits;
  static constexpr int kH = 0;  // two stages of h in parts
  static constexpr int kRing = kH + 2 * 2 * kTileBytes;
  static constexpr int kB = kRing + 2 * kStageUnits * kUnit;  // at first, where the third stage is
  static constexpr int kBarriers = kRing + kUnits * kUnit;    // full, empty; those of h
  static constexpr int kEnd = kBarriers + (2 * kUnits + 4) * 8;  // the barrier after the last stage
  static constexpr int kBytes = kEnd + 8 + 1024;
  static_assert(kB + kColumns * 128 <= kBarriers);
};

struct UniformDyParams {
  CUtensorMap dy_tiles;
  CUtensorMap h_tiles;  // 64 columns of high parts, 64 of low ones
  const AdapterEntry* entry;
  SlotRuns runs;
  float* ds_partials;
  float* db_partials;
  float* const* db;  // of the slot, or null
  YMode mode;
  int chunk_rows;
  int max_rank;
  int num_blocks;
  int makes_ds;
  std::int64_t out;
};

/// Sums of 64 ranks and up to 128 columns, ranks in rows, to shared memory. Columns two apart stand
/// eight ranks apart, so that no two lanes meet in a bank.
template <int kCount>
__device__ __forceinline__ void put_db(const float (&sums)[kCount], std::uint32_t to) {
  const int own = static_cast<int>(threadIdx.x) % kGroup, t = own % 4;
  const int j = own / 32 * 16 + own % 32 / 4;
  const std::uint32_t at = to + static_cast<std::uint32_t>(2 * t * kRanks * 4);
  const std::uint32_t places[2] = {at + static_cast<std::uint32_t>((j ^ (8 * t)) * 4),
                                   at + static_cast<std::uint32_t>(((j + 8) ^ (8 * t)) * 4)};
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    store_shared(places[i / 2 % 2] + static_cast<std::uint32_t>((i / 4 * 8 + i % 2) * kRanks * 4),
                 __float_as_uint(sums[i]));
  }
}
/// All columns of the block from there to memory, whole lines at a time.
template <int kColumns>
__device__ __forceinline__ void store_db(const UniformDyParams& p, std::uint32_t from,
                                         int block_column, int partial, int rank, float* db) {
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < kColumns * (kRanks / 4); i += kThreads) {
    const int column = i / (kRanks / 4), first = i % (kRanks / 4) * 4;
    const std::int64_t n = block_column + column;
    if (n >= p.out) break;
    const uint4 v = load_shared_16(
        from + static_cast<std::uint32_t>((column * kRanks + (first ^ (column / 2 % 4 * 8))) * 4));
    if (partial >= 0) {
      *reinterpret_cast<uint4*>(p.db_partials + (partial * p.out + n) * kRanks + first) = v;
      continue;
    }
    const float values[4] = {__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z),
                             __uint_as_float(v.w)};
    float* const to = db + n * rank + first;
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      if (first + e < rank) to[e] = p.mode == YMode::overwrite ? values[e] : to[e] + values[e];
    }
  }
}
/// The operand of 64 ranks and 16 summed rows of a tile of ranks in columns, from row first_row on.
[[maybe_unused]] __device__ __forceinline__ void load_ranks(std::uint32_t (&a)[4],
                                                            std::uint32_t tile, int first_row) {
  const int own = static_cast<int>(threadIdx.x) % kGroup, lane = own % 32;
  load_matrices_transposed(
      a, tile + tile_offset(first_row + lane / 16 * 8 + lane % 8, own / 32 * 2 + lane / 8 % 2));
}

// grid: chunks of rows, within them blocks of columns.
template <int kLast>
__global__ void __launch_bounds__(kThreads, 1)
    over_dy_uniform(const __grid_constant__ UniformDyParams p) {
#if RANKFOLD_HAS_WGMMA
  using Layout = UniformDyLayout<kLast>;
  extern __shared__ unsigned char memory[];
  const std::uint32_t base = (shared_address(memory) + 1023) & ~std::uint32_t{1023};

  const int column_block = static_cast<int>(blockIdx.x) % p.num_blocks;
  const RowChunk chunk =
      find_chunk(p.runs, p.chunk_rows, static_cast<int>(blockIdx.x) / p.num_blocks);
  const AdapterEntry entry = *p.entry;
  const int rank = paired_rank(entry, p.max_rank);
  float* const db = p.db == nullptr ? nullptr : *p.db;
  const bool makes_db = db != nullptr, makes_ds = p.makes_ds != 0;
  if (chunk.slot < 0 || rank == 0 || (!makes_db && !makes_ds)) return;

  const int thread = static_cast<int>(threadIdx.x);
  const int group = __shfl_sync(0xffffffffu, thread / kGroup, 0), own = thread % kGroup;
  const int stages = (chunk.count + kRows - 1) / kRows;
  const int block_column = column_block * Layout::kColumns;
  // Units of a stage are numbered on from those of the stage before.
  const auto place_of = [&](int unit) {
    return base + Layout::kRing + static_cast<std::uint32_t>(unit) % Layout::kUnits * Layout::kUnit;
  };
  const auto full_of = [&](int unit) {
    return base + Layout::kBarriers + static_cast<std::uint32_t>(unit) % Layout::kUnits * 8;
  };
  const auto empty_of = [&](int unit) { return full_of(unit) + Layout::kUnits * 8; };
  const auto parity_of = [&](int unit) {
    return static_cast<int>(static_cast<std::uint32_t>(unit) / Layout::kUnits % 2);
  };
  const auto h_of = [&](int stage) {
    return base + Layout::kH + static_cast<std::uint32_t>(stage % 2 * 2 * kTileBytes);
  };
  const auto h_full_of = [&](int stage) {
    return base + Layout::kBarriers +
           static_cast<std::uint32_t>((2 * Layout::kUnits + stage % 2) * 8);
  };
  const auto h_empty_of = [&](int stage) { return h_full_of(stage) + 2 * 8; };
  // What thread 0 asks for.
  const auto feed = [&](int stage, int at) {
    if (stage >= stages) return;
    const int unit = stage * kStageUnits + at,
              unit_tiles = at + 1 == kStageUnits ? kLast / 64 : kUnitColumns / 64;
    barrier_expect(full_of(unit), unit_tiles * kTileBytes);
    for (int tile = 0; tile < unit_tiles; ++tile) {
      load_tile(place_of(unit) + static_cast<std::uint32_t>(tile * kTileBytes), p.dy_tiles,
                block_column + at * kUnitColumns + tile * 64, chunk.first + stage * kRows,
                full_of(unit));
    }
  };
  const auto feed_h = [&](int stage) {
    if (!makes_db || stage >= stages) return;
    const std::uint32_t barrier = h_full_of(stage);
    const int row = chunk.first + stage * kRows;
    barrier_expect(barrier, 2 * kTileBytes);
    load_tile(h_of(stage), p.h_tiles, 0, row, barrier);
    load_tile(h_of(stage) + kTileBytes, p.h_tiles, 64, row, barrier);
  };
  if (thread == 0) {
    for (int i = 0; i < Layout::kUnits; ++i) {
      barrier_init(full_of(i), 1);
      // The last unit of a stage is the first warpgroup's alone.
      barrier_init(empty_of(i), i % kStageUnits + 1 == kStageUnits ? 4 : 8);
    }
    for (int i = 0; i < 2; ++i) {
      barrier_init(h_full_of(i), 1);
      barrier_init(h_empty_of(i), 8);
    }
    barrier_init(base + Layout::kEnd, 8);
    barrier_publish();
    for (int i = 0; i < 2 * kStageUnits; ++i) feed(i / kStageUnits, i % kStageUnits);
  }
  // B, in tiles of 64 of its rows.
  if (makes_ds) {
    const bool aligned = is_aligned_16(entry.b, entry.b_row_stride);
    const T* const from = static_cast<const T*>(entry.b);
#pragma unroll 4
    for (int i = thread; i < Layout::kColumns * (kRanks / 8); i += kThreads) {
      const int n = i / (kRanks / 8), piece = i % (kRanks / 8);
      const int count = block_column + n < p.out ? min(max(rank - piece * 8, 0), 8) : 0;
      fetch_piece(base + Layout::kB + static_cast<std::uint32_t>(n / 64 * kTileBytes) +
                      tile_offset(n % 64, piece),
                  count > 0 ? from + (block_column + n) * entry.b_row_stride + piece * 8 : from,
                  count, aligned);
    }
  }
  commit_copies();
  // All before this reads what no kernel of the call writes; h is of the one before.
  wait_for_previous();
  release_next();
  if (thread == 0) {
    feed_h(0);
    feed_h(1);
  }
  wait_copies<0>();  // B is there
  __syncthreads();
  std::uint32_t b[Layout::kColumns / 16][4];
  if (group == 0) {
#pragma unroll
    for (int k = 0; k < Layout::kColumns / 16; ++k) {
      load_ranks(b[k], base + Layout::kB, k * 16);
    }
  }
  // Where B stood, the copy engine writes.
  publish_to_matrices();
  __syncthreads();
  if (thread == 0) {
    for (int at = 0; at < kStageUnits; ++at) feed(2, at);
  }

  const auto arrive = [&](std::uint32_t barrier) {
    if (own % 32 == 0) barrier_arrive(barrier);
  };
  // Once a warp's last products have ended: the ring is free when those of all have.
  const auto wait_all = [&] {
    arrive(base + Layout::kEnd);
    barrier_wait(base + Layout::kEnd, 0);
  };
  const auto wait_h = [&](int stage) {
    if (makes_db) barrier_wait(h_full_of(stage), stage / 2 % 2);
  };
  // Both products always: one that nobody asked for costs less than a branch, and nobody reads it.
  // A unit's products begin before those of the one before are waited for.
  if (group == 0) {
    float ds_sums[kRanks / 2], db_sums[kLast / 2];
#pragma unroll
    for (int i = 0; i < kLast / 2; ++i) db_sums[i] = 0.0f;
#pragma unroll 1
    for (int stage = 0; stage < stages; ++stage) {
      const int first = stage * kStageUnits;
      const auto begin_ds = [&]<int kAt>(std::integral_constant<int, kAt>) {
        constexpr int kSteps = (kAt + 1 == kStageUnits ? kLast : kUnitColumns) / 16;
        const std::uint64_t dy = descriptor(place_of(first + kAt));
        barrier_wait(full_of(first + kAt), parity_of(first + kAt));
        wgmma_fence();
        wgmma_of_registers<kRanks, 0, kAt == 0 ? 0 : 1>(ds_sums, b[kAt * 8], dy);
#pragma unroll
        for (int k = 1; k < kSteps; ++k) {
          wgmma_of_registers<kRanks, 0>(ds_sums, b[kAt * 8 + k],
                                        dy + k / 4 * (kTileBytes / 16) + k % 4 * 2);
        }
        wgmma_commit();
        wgmma_wait<1>();
        // The unit before is done with, but that of the stage's dB, which is with the next stage.
        if (kAt > 0 || stage > 0) arrive(empty_of(first + kAt - 1));
        if (kAt == 0 && stage > 0) arrive(h_empty_of(stage - 1));
        if (thread == 0 && stage > 0) {
          if (stage + Layout::kStages - 1 < stages) {
            const int unit = first + kAt - kStageUnits;
            barrier_wait(empty_of(unit), parity_of(unit));
            feed(stage + Layout::kStages - 1, kAt);
          }
          if (kAt == 1 && stage + 1 < stages && makes_db) {
            barrier_wait(h_empty_of(stage - 1), (stage - 1) / 2 % 2);
            feed_h(stage + 1);
          }
        }
        __syncwarp();
      };
      begin_ds(std::integral_constant<int, 0>{});
      begin_ds(std::integral_constant<int, 1>{});
      begin_ds(std::integral_constant<int, 2>{});
      begin_ds(std::integral_constant<int, 3>{});
      wait_h(stage);
      wgmma_fence();
      const std::uint64_t dy = descriptor<kTileBytes>(place_of(first + kStageUnits - 1)),
                          high = descriptor(h_of(stage)),
                          low = descriptor(h_of(stage) + kTileBytes);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        wgmma<T, kLast, 1>(db_sums, high + k * 128, dy + k * 128);
        wgmma<T, kLast, 1>(db_sums, low + k * 128, dy + k * 128);
      }
      wgmma_commit();
      wgmma_wait<1>();
      settle(ds_sums);
      if (makes_ds) {
        // Ranks in rows: eight lanes have 32 bytes of a row of ds.
        float* const to = p.ds_partials +
                          (static_cast<std::int64_t>(column_block) * p.runs.num_rows + chunk.first +
                           stage * kRows) *
                              kRanks +
                          own / 32 * 16 + own % 32 / 4;
        const int row = own % 4 * 2;
#pragma unroll
        for (int i = 0; i < kRanks / 2; ++i) {
          const int r = row + i / 4 * 8 + i % 2;
          if (stage * kRows + r < chunk.count) to[r * kRanks + i / 2 % 2 * 8] = ds_sums[i];
        }
      }
    }
    wgmma_wait<0>();
    settle(db_sums);
    if (makes_db) {
      wait_all();
      put_db(db_sums, base + Layout::kRing + 3 * kUnitColumns * kRanks * 4);
    }
  } else {
    float db_sums[kStageUnits - 1][kUnitColumns / 2];
    std::uint32_t high[4][4], low[4][4];
#pragma unroll
    for (int at = 0; at < kStageUnits - 1; ++at) {
#pragma unroll
      for (int i = 0; i < kUnitColumns / 2; ++i) db_sums[at][i] = 0.0f;
    }
#pragma unroll 1
    for (int stage = 0; stage < stages; ++stage) {
      const int first = stage * kStageUnits;
      wait_h(stage);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        load_ranks(high[k], h_of(stage), k * 16);
        load_ranks(low[k], h_of(stage) + kTileBytes, k * 16);
      }
      __syncwarp();
      arrive(h_empty_of(stage));
#pragma unroll
      for (int at = 0; at < kStageUnits - 1; ++at) {
        const std::uint64_t dy = descriptor<kTileBytes>(place_of(first + at));
        barrier_wait(full_of(first + at), parity_of(first + at));
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          wgmma_of_registers<kUnitColumns, 1>(db_sums[at], high[k], dy + k * 128);
          wgmma_of_registers<kUnitColumns, 1>(db_sums[at], low[k], dy + k * 128);
        }
        wgmma_commit();
        if (at > 0) {
          wgmma_wait<1>();
          arrive(empty_of(first + at - 1));
        }
        __syncwarp();
      }
      wgmma_wait<0>();
      arrive(empty_of(first + kStageUnits - 2));
    }
#pragma unroll
    for (int at = 0; at < kStageUnits - 1; ++at) settle(db_sums[at]);
    if (makes_db) {
      wait_all();
#pragma unroll
      for (int at = 0; at < kStageUnits - 1; ++at)
        put_db(db_sums[at], base + Layout::kRing + at * kUnitColumns * kRanks * 4);
    }
  }
  if (!makes_db) return;
  __syncthreads();
  store_db<Layout::kColumns>(p, base + Layout::kRing, block_column, chunk.partial, rank, db);
#endif
}

}  // namespace

Status backward_over_dy_uniform(const TensorBackward& call, cudaStream_t stream) {
  const BackwardArgs& args = *call.args;
  const TableShape& shape = args.table.shape;
  UniformDyParams p{};
  const int slot = call.runs.uniform_slot;
  p.makes_ds = (call.outputs & (kOutputDs | kOutputDx | kOutputDa)) != 0;
  if (slot < 0 || slot >= shape.num_slots || (!p.makes_ds && args.grads.db == nullptr)) return {};
  p.entry = args.table.entries + slot * args.table.slot_stride;
  p.db = args.grads.db == nullptr ? nullptr : args.grads.db + slot;
  p.runs = call.runs;
  p.ds_partials = call.partials.ds;
  p.db_partials = call.partials.db;
  p.mode = args.grads.mode;
  p.chunk_rows = call.tiling.dy_chunk;
  p.max_rank = shape.max_rank;
  p.num_blocks = call.tiling.dy_blocks;
  p.out = shape.out[0];
  const std::int64_t rows = call.runs.num_rows;
  bool described = describe_matrix(&p.dy_tiles, args.dy.dtype, args.dy.data, rows, p.out,
                                   args.dy.strides[0], kRows);
  if (p.db != nullptr) {
    described = described && describe_matrix(&p.h_tiles, DType::bf16, call.partials.packed_h, rows,
                                             2 * kRanks, 2 * kRanks, kRows);
  }
  if (!described)
    return Status(StatusCode::device_error, "backward: the driver does not describe dy or h");
  const std::int64_t blocks = call.tiling.dy_chunks * call.tiling.dy_blocks;
  const bool follows = p.db != nullptr;  // split_h
  if (call.tiling.dy_columns == kDyBlockColumns) {
    return launch_tiles(&over_dy_uniform<128>, blocks, kThreads, UniformDyLayout<128>::kBytes,
                        follows, stream, p);
  }
  return launch_tiles(&over_dy_uniform<64>, blocks, kThreads, UniformDyLayout<64>::kBytes, follows,
                      stream, p);
}

RANKFOLD_CUDA_MODULE(backward_dy_uniform)

}  // namespace cuda
RANKFOLD_NAMESPACE_END
