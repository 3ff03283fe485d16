// The first pass of backward for rows of one slot, one slice and ranks of 33 to 64: dy once, for ds
// and dB. All but B comes by the copy engine, h as the high and low parts that split_h left.
//
// Matrix instructions read both operands from shared memory, and at 64 columns of sums that takes
// as long as the products themselves: so dB is made 64 ranks by 256 columns at a time, which reads
// a third less. While the products of a stage of 64 rows run, ds of the one before is added up and
// what it stood on is filled anew.
#include "backward_tiles.cuh"
#include "launch_tiles.cuh"
#include "modules.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

namespace {

using namespace tiles;
using T = __nv_bfloat16;

constexpr int kRanks = kTileMaxRank;
constexpr int kGroupColumns = kDyBlockColumns / 2;
[[maybe_unused]] constexpr int kUnitColumns = 128;  // a unit: 64 rows of them, two tiles

struct UniformDyLayout {
  static constexpr int kUnit = 2 * kTileBytes;
  static constexpr int kUnits = 4;                       // of a warpgroup: two stages
  static constexpr int kB = 0;                           // 64 columns of B a tile
  static constexpr int kH = kB + kDyBlockColumns * 128;  // two stages of h in parts
  static constexpr int kRing = kH + 2 * 2 * kTileBytes;
  static constexpr int kBarriers = kRing + 2 * kUnits * kUnit;  // full, empty; of h
  static constexpr int kBytes = kBarriers + 4 * kUnits * 8 + 2 * 8 + 1024;
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

/// Sums of 64 ranks and 256 columns, ranks in rows, to memory: by way of shared memory, so that a
/// warp writes whole lines.
[[maybe_unused]] __device__ __forceinline__ void store_db(const UniformDyParams& p,
                                                          const float (&sums)[2][64],
                                                          std::uint32_t shared,
                                                          std::int64_t first_column, int partial,
                                                          int rank, float* db) {
  const int own = static_cast<int>(threadIdx.x) % kGroup, t = own % 4;
  // Columns two apart stand eight ranks apart, so that no two lanes meet in a bank.
  const int j = own / 32 * 16 + own % 32 / 4;
  const std::uint32_t at = shared + static_cast<std::uint32_t>(2 * t * kRanks * 4);
  const std::uint32_t places[2] = {at + static_cast<std::uint32_t>((j ^ (8 * t)) * 4),
                                   at + static_cast<std::uint32_t>(((j + 8) ^ (8 * t)) * 4)};
#pragma unroll
  for (int i = 0; i < 128; ++i) {
    store_shared(places[i / 2 % 2] + static_cast<std::uint32_t>((i / 4 * 8 + i % 2) * kRanks * 4),
                 __float_as_uint(sums[i / 64][i % 64]));
  }
  const int group = static_cast<int>(threadIdx.x) / kGroup;
  warpgroup_barrier(1 + group);
#pragma unroll 4
  for (int i = own; i < kGroupColumns * (kRanks / 4); i += kGroup) {
    const int column = i / (kRanks / 4), first = i % (kRanks / 4) * 4;
    const std::int64_t n = first_column + column;
    if (n >= p.out) break;
    const uint4 v =
        load_shared_16(shared + static_cast<std::uint32_t>(
                                    (column * kRanks + (first ^ (column / 2 % 4 * 8))) * 4));
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

// grid: chunks of rows, within them blocks of columns.
__global__ void __launch_bounds__(kThreads, 1)
    over_dy_uniform(const __grid_constant__ UniformDyParams p) {
#if RANKFOLD_HAS_WGMMA
  using Layout = UniformDyLayout;
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
  const int block_column = column_block * kDyBlockColumns;
  // Units of a warpgroup: the first and the second half of its columns, then the next 64 rows.
  const auto place_of = [&](int unit) {
    return base + Layout::kRing +
           static_cast<std::uint32_t>((group * Layout::kUnits + unit % Layout::kUnits) *
                                      Layout::kUnit);
  };
  const auto full_of = [&](int unit) {
    return base + Layout::kBarriers +
           static_cast<std::uint32_t>((group * Layout::kUnits + unit % Layout::kUnits) * 8);
  };
  const auto empty_of = [&](int unit) { return full_of(unit) + 2 * Layout::kUnits * 8; };
  const auto parity_of = [&](int unit) { return unit / Layout::kUnits % 2; };
  // One thread of the warpgroup.
  const auto feed = [&](int unit) {
    if (unit >= 2 * stages) return;
    barrier_expect(full_of(unit), Layout::kUnit);
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
      load_tile(place_of(unit) + static_cast<std::uint32_t>(tile * kTileBytes), p.dy_tiles,
                block_column + group * kGroupColumns + unit % 2 * kUnitColumns + tile * 64,
                chunk.first + unit / 2 * kRows, full_of(unit));
    }
  };
  const std::uint32_t h_full = base + Layout::kBarriers + 4 * Layout::kUnits * 8;
  const auto h_of = [&](int stage) {
    return base + Layout::kH + static_cast<std::uint32_t>(stage % 2 * 2 * kTileBytes);
  };
  // Thread 0.
  const auto feed_h = [&](int stage) {
    if (!makes_db || stage >= stages) return;
    const std::uint32_t barrier = h_full + static_cast<std::uint32_t>(stage % 2 * 8);
    const int row = chunk.first + stage * kRows;
    barrier_expect(barrier, 2 * kTileBytes);
    load_tile(h_of(stage), p.h_tiles, 0, row, barrier);
    load_tile(h_of(stage) + kTileBytes, p.h_tiles, 64, row, barrier);
  };
  if (own == 0) {
    for (int i = 0; i < Layout::kUnits; ++i) {
      barrier_init(full_of(i), 1);
      barrier_init(empty_of(i), 4);
    }
    if (group == 0) {
      barrier_init(h_full, 1);
      barrier_init(h_full + 8, 1);
    }
    barrier_publish();
    for (int i = 0; i < Layout::kUnits; ++i) feed(i);
  }
  // B, in tiles of 64 of its rows.
  if (makes_ds) {
    const bool aligned = is_aligned_16(entry.b, entry.b_row_stride);
    const T* const from = static_cast<const T*>(entry.b);
#pragma unroll 4
    for (int i = thread; i < kDyBlockColumns * (kRanks / 8); i += kThreads) {
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
  float db_sums[2][64];  // ranks in rows
#pragma unroll
  for (int i = 0; i < 64; ++i) db_sums[0][i] = db_sums[1][i] = 0.0f;
  wait_copies<0>();  // B is there
  publish_to_matrices();
  __syncthreads();

  const std::uint64_t b =
      descriptor(base + Layout::kB + static_cast<std::uint32_t>(group * kGroupColumns * 128));
  // Both products always: one that nobody asked for costs less than a branch, and nobody reads it.
  const auto begin_unit = [&]<int kHalf>(std::integral_constant<int, kHalf>, int stage,
                                         float(&ds_sums)[kRanks / 2]) {
    const int unit = 2 * stage + kHalf;
    const std::uint64_t dy = descriptor<kTileBytes>(place_of(unit)), high = descriptor(h_of(stage)),
                        low = descriptor(h_of(stage) + kTileBytes);
    barrier_wait(full_of(unit), parity_of(unit));
    wgmma_fence();
    wgmma<T, kRanks, 0, kHalf>(ds_sums, dy, b + kHalf * 8 * 128);
#pragma unroll
    for (int k = 1; k < 8; ++k) {
      wgmma<T, kRanks, 0>(ds_sums, dy + k / 4 * (kTileBytes / 16) + k % 4 * 2,
                          b + (kHalf * 8 + k) * 128);
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      wgmma<T, kUnitColumns, 1>(db_sums[kHalf], high + k * 128, dy + k * 128);
      wgmma<T, kUnitColumns, 1>(db_sums[kHalf], low + k * 128, dy + k * 128);
    }
    wgmma_commit();
  };
  // Each warpgroup adds up half of the ranks; the other's sums of them are handed over where its
  // last unit of the stage stood.
  constexpr int kShare = kRanks / 4;  // sums of a thread
  const auto area = [&](int stage, int owner) {
    return base + Layout::kRing +
           static_cast<std::uint32_t>((2 * stage + 1) % Layout::kUnits * Layout::kUnit +
                                      owner * Layout::kUnits * Layout::kUnit + own * 4);
  };
  const auto release = [&](int unit) {
    __syncwarp();
    if (own % 32 == 0) barrier_arrive(empty_of(unit));
  };
  const auto feed_anew = [&](int unit) {
    if (own == 0 && unit + Layout::kUnits < 2 * stages) {
      barrier_wait(empty_of(unit), parity_of(unit));
      feed(unit + Layout::kUnits);
    }
    __syncwarp();
  };
  float ds_sums[kRanks / 2], own_share[kShare];
  const auto hand_over = [&](int stage) {
    const std::uint32_t to = area(stage, 1 - group);
#pragma unroll
    for (int i = 0; i < kShare; ++i) {
      own_share[i] = group == 0 ? ds_sums[i] : ds_sums[kShare + i];
      store_shared(to + static_cast<std::uint32_t>(i * kGroup * 4),
                   __float_as_uint(group == 0 ? ds_sums[kShare + i] : ds_sums[i]));
    }
  };
  const auto add_up = [&](int stage) {
    const std::uint32_t from = area(stage, group);
    const int row = own / 32 * 16 + own % 32 / 4;
    float* const to =
        p.ds_partials +
        (static_cast<std::int64_t>(column_block) * p.runs.num_rows + chunk.first + stage * kRows) *
            kRanks +
        group * (kRanks / 2) + own % 4 * 2;
#pragma unroll
    for (int i = 0; i < kShare; i += 2) {
      float sums[2];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        sums[e] =
            own_share[i + e] +
            __uint_as_float(load_shared(from + static_cast<std::uint32_t>((i + e) * kGroup * 4)));
      }
      const int r = row + i / 2 % 2 * 8;
      if (stage * kRows + r < chunk.count)
        *reinterpret_cast<float2*>(to + r * kRanks + i / 4 * 8) = make_float2(sums[0], sums[1]);
    }
    publish_to_matrices();
  };
#pragma unroll 1
  for (int stage = 0; stage < stages; ++stage) {
    if (makes_db) barrier_wait(h_full + static_cast<std::uint32_t>(stage % 2 * 8), stage / 2 % 2);
    begin_unit(std::integral_constant<int, 0>{}, stage, ds_sums);
    // While the products run, what the stage before has left.
    if (stage > 0) {
      __syncthreads();
      if (makes_ds) add_up(stage - 1);
      release(2 * stage - 1);
    }
    begin_unit(std::integral_constant<int, 1>{}, stage, ds_sums);
    if (stage > 0) feed_anew(2 * stage - 1);
    wgmma_wait<1>();
    release(2 * stage);
    feed_anew(2 * stage);
    wgmma_wait<0>();
    settle(ds_sums);
    __syncthreads();
    if (thread == 0) feed_h(stage + 2);
    __syncwarp();
    if (makes_ds) hand_over(stage);
  }
  __syncthreads();
  if (makes_ds) add_up(stages - 1);
  settle(db_sums[0]);
  settle(db_sums[1]);
  if (!makes_db) return;
  __syncthreads();  // nobody reads what was handed over any more
  store_db(p, db_sums,
           base + Layout::kRing + static_cast<std::uint32_t>(group * kGroupColumns * kRanks * 4),
           block_column + group * kGroupColumns, chunk.partial, rank, db);
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
  return launch_tiles(&over_dy_uniform, call.tiling.dy_chunks * call.tiling.dy_blocks, kThreads,
                      UniformDyLayout::kBytes, p.db != nullptr, stream, p);
}

RANKFOLD_CUDA_MODULE(backward_dy_uniform)

}  // namespace cuda
RANKFOLD_NAMESPACE_END
