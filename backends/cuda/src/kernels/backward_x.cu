// The second pass of backward: x once, for dA; dx once, for ds A.
#include "backward_x_sums.cuh"
#include "elements.cuh"
#include "launch_tiles.cuh"
#include "modules.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

namespace {

using namespace tiles;

// kGroups: of kRanks columns of ds, each with tiles of its own.
template <int kRanks, int kGroups>
struct XLayout {
  static constexpr int kSlots = kRanks < 64 ? 6 : 6 - kGroups;
  static constexpr int kStages =
      kGroups == 1 ? 2 : 1;                     // of ds; with one, blocks wait before it is written
  static constexpr int kUnit = 2 * kTileBytes;  // a tile of x, a tile of dx
  static constexpr int kSplit = kRanks == 64 ? 2 * kTileBytes : kTileBytes;
  static constexpr int kA = 0;  // 64 columns of A a warpgroup
  static constexpr int kDs = kA + 2 * kGroups * kRanks * 128;
  static constexpr int kRing = kDs + kStages * kGroups * kSplit;
  static constexpr int kOrder = kRing + 2 * kSlots * kUnit;
  static constexpr int kWords = kOrder + kOrderRows * 4;
  static constexpr int kBarriers = kWords + 64;  // full and empty, of each slot
  static constexpr int kBytes = kBarriers + 4 * kSlots * 8 + 1024;
};

// kFed: rows follow one another, and the copy engine fetches their tiles, at the word of one thread
// a warpgroup.
template <class T, int kRanks, int kGroups, bool kFed>
__global__ void __launch_bounds__(kThreads, 1) over_x(const __grid_constant__ XParams p) {
#if RANKFOLD_HAS_WGMMA
  using Layout = XLayout<kRanks, kGroups>;
  using Loader = SplitLoader<T, kRanks>;
  constexpr int kSlots = Layout::kSlots;
  constexpr int kWide = kRanks == 16 ? 32 : 64;
  extern __shared__ unsigned char memory[];
  const std::uint32_t base = (shared_address(memory) + 1023) & ~std::uint32_t{1023};
  unsigned char* const shared = memory + (base - shared_address(memory));

  const int column_block = static_cast<int>(blockIdx.x) % p.num_blocks;
  const RowChunk chunk =
      find_chunk(p.runs, p.chunk_rows, static_cast<int>(blockIdx.x) / p.num_blocks);
  if (chunk.slot < 0) return;
  const AdapterEntry* const entries = p.entries + chunk.slot * p.slot_stride;
  const int thread = static_cast<int>(threadIdx.x);
  const int group = __shfl_sync(0xffffffffu, thread / kGroup, 0), own = thread % kGroup;
  bool any = false, makes_da = false;
  for (int s = 0; s < p.num_slices; ++s) {
    any = any || paired_rank(entries[s], p.max_rank) > 0;
    makes_da = makes_da || da_of(p, chunk.slot, s) != nullptr;
  }
  const bool makes_dx = p.dx != nullptr, reads_dx = makes_dx && p.reads_dx;
  const std::int64_t block_column = static_cast<std::int64_t>(column_block) * kXBlockColumns;
  const auto da_block = [&] {
    return DaBlock{p.da_partials, p.da[chunk.slot],
                   p.mode,        divide_chunks(p.runs, p.chunk_rows),
                   p.max_rank,    static_cast<int>(block_column),
                   p.in,          p.padded_in};
  };
  if (!any || (!makes_da && !makes_dx)) {
    if (p.counts != nullptr && makes_da && chunk.first == 0)
      clear_da(da_block(), bounded_rank(entries[0], p.max_rank));
    return;
  }

  const int stages = (chunk.count + kRows - 1) / kRows;
  const RowNumbers rows{p.runs.order == nullptr ? nullptr : p.runs.order + chunk.first,
                        reinterpret_cast<std::int32_t*>(shared + Layout::kOrder), chunk.first,
                        chunk.count, p.runs.num_rows};

  // A unit: 64 rows of the warpgroup's 64 columns, of x and of dx.
  const std::uint32_t ring = base + Layout::kRing + group * kSlots * Layout::kUnit;
  const std::uint32_t full = base + Layout::kBarriers + group * kSlots * 8,
                      empty = full + 2 * kSlots * 8;
  int next_stage = 0, next_slot = 0, next_parity = 0;
  const auto feed = [&](bool waits) {
    if (next_stage == stages) return;
    const std::uint32_t to = ring + next_slot * Layout::kUnit, barrier = full + next_slot * 8;
    const int at = static_cast<int>(block_column) + group * 64,
              row = chunk.first + next_stage * kRows;
    if (waits) barrier_wait(empty + next_slot * 8, next_parity);
    barrier_expect(barrier, (makes_da ? kTileBytes : 0) + (reads_dx ? kTileBytes : 0));
    if (makes_da) load_tile(to, p.x_tiles, at, row, barrier);
    if (reads_dx) load_tile(to + kTileBytes, p.dx_tiles, at, row, barrier);
    ++next_stage;
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

  Loader loaders[kGroups];
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    Loader& loader = loaders[g];
    const int first_v = p.first_v + g * kRanks;
    loader.data = p.ds + first_v;
    loader.stride = p.ds_stride;
    loader.limit = static_cast<int>(p.ds_stride) - first_v;
    loader.valid = 0;
#pragma unroll
    for (int i = 0; i < Loader::kOwn; ++i) {
      const int v = first_v + thread % 4 * Loader::kOwn + i;
      if (v < p.total_v && v % p.max_rank < paired_rank(entries[v / p.max_rank], p.max_rank))
        loader.valid |= 1u << i;
    }
    loader.weights = nullptr;
    loader.scaling = 1.0f;
  }

  if constexpr (!kFed) __syncthreads();
  if (makes_dx) {
    for (int i = thread; i < kGroups * kRanks * 16; i += kThreads) {
      const int row = i / 16, piece = i % 16, v = p.first_v + row;
      const std::int64_t k = block_column + piece * 8;
      const AdapterEntry& entry = entries[min(v, p.total_v - 1) / p.max_rank];
      const int j = v % p.max_rank;
      const bool there = v < p.total_v && k < p.in && j < paired_rank(entry, p.max_rank);
      const T* const from = static_cast<const T*>(entry.a);
      fetch_piece(
          base + Layout::kA + piece / 8 * kGroups * kRanks * 128 + tile_offset(row, piece % 8),
          there ? from + j * entry.a_row_stride + k : reinterpret_cast<const T*>(entries),
          there ? static_cast<int>(p.in - k < 8 ? p.in - k : 8) : 0,
          !there || is_aligned_16(from, entry.a_row_stride));
    }
  }
  commit_copies();

  const int piece = own % 8;
  const std::int64_t column = block_column + group * 64 + piece * 8;
  const int there = static_cast<int>(column >= p.in ? 0 : p.in - column < 8 ? p.in - column : 8);
  const T* const own_x = static_cast<const T*>(p.x) + (there > 0 ? column : 0);
  T* const own_dx = static_cast<T*>(p.dx) + (there > 0 ? column : 0);
  const auto fetch = [&](int stage, int slot) {
    if (stage < stages) {
      const std::uint32_t to = ring + slot * Layout::kUnit;
      if (makes_da)
        fetch_rows(to, rows, stage * kRows, own_x, p.x_stride, 2 * there, p.x_aligned != 0);
      if (reads_dx)
        fetch_rows(to + kTileBytes, rows, stage * kRows, static_cast<const T*>(own_dx), p.dx_stride,
                   2 * there, p.dx_aligned != 0);
    }
    commit_copies();
  };
  if constexpr (!kFed) {
#pragma unroll 1
    for (int i = 0; i < kSlots - 1; ++i) fetch(i, i);
  }
  // All before this reads what no kernel of the call writes; ds is of the one before.
  wait_for_previous();
  release_next();
  float scale = 1.0f;
  if constexpr (std::is_same_v<T, __half>) {
    scale = chunk_scale<kGroups, false>(loaders, rows,
                                        reinterpret_cast<std::uint32_t*>(shared + Layout::kWords));
    if (!kFed && chunk.count > kOrderRows / 2) {
      rows.fill(0);
      __syncthreads();
    }
  }
  const float unscale = 1.0f / scale;
  float da_sums[kGroups][kWide / 2];
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    loaders[g].template load<false>(rows, 0);
    loaders[g].store(base + Layout::kDs + g * Layout::kSplit, scale);
    loaders[g].template load<false>(rows, kRows);
#pragma unroll
    for (int i = 0; i < kWide / 2; ++i) da_sums[g][i] = 0.0f;
  }
  wait_copies<kFed ? 0 : kSlots - 1>();  // A is there
  publish_to_matrices();
  int slot = 0, parity = 0;
  for (int stage = 0; stage < stages; ++stage) {
    if constexpr (kFed) {
      // The slot of two stages ago is free, or soon will be.
      if (own == 0 && stage > 1) feed(true);
      __syncthreads();
    } else {
      wait_copies<kSlots - 2>();
      publish_to_matrices();
      __syncthreads();
      if (stage % (kOrderRows / 2 / kRows) == 0) rows.fill(stage * kRows + kOrderRows / 2);
      fetch(stage + kSlots - 1, slot == 0 ? kSlots - 1 : slot - 1);
    }
    const std::uint32_t ds =
        base + Layout::kDs + stage % Layout::kStages * kGroups * Layout::kSplit;
    const std::uint32_t x_tile = ring + slot * Layout::kUnit, dx_tile = x_tile + kTileBytes;
    const std::uint64_t x = descriptor(x_tile),
                        a = descriptor(base + Layout::kA + group * kGroups * kRanks * 128);
    float dx_sums[32];
#pragma unroll
    for (int i = 0; i < 32; ++i) dx_sums[i] = 0.0f;
    if constexpr (kFed) barrier_wait(full + slot * 8, parity);
    // Both products always: one that nobody asked for costs less than a branch, and nobody reads
    // it.
    wgmma_fence();
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const std::uint64_t high = descriptor(ds + g * Layout::kSplit);
      // Low parts stand behind the high ones, or in a tile of their own.
      const std::uint64_t low = kRanks == 64 ? high + kTileBytes / 16 : high + kRanks / 8;
#pragma unroll
      for (int k = 0; k < kRanks / 16; ++k) {
        wgmma<T, 64, 0>(dx_sums, high + k * 2, a + (g * kRanks / 16 + k) * 128);
        wgmma<T, 64, 0>(dx_sums, low + k * 2, a + (g * kRanks / 16 + k) * 128);
      }
    }
    wgmma_commit();
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const std::uint64_t high = descriptor(ds + g * Layout::kSplit);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        wgmma<T, kWide, 1>(da_sums[g], x + k * 128, high + k * 128);
        if constexpr (kRanks == 64)
          wgmma<T, kWide, 1>(da_sums[g], x + k * 128, high + kTileBytes / 16 + k * 128);
      }
    }
    wgmma_commit();
    // While they run: the next stage's ds, loaded a stage ago.
    const auto prepare_next = [&] {
      const std::uint32_t next =
          base + Layout::kDs + (stage + 1) % Layout::kStages * kGroups * Layout::kSplit;
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        loaders[g].store(next + g * Layout::kSplit, scale);
        loaders[g].template load<false>(rows, (stage + 2) * kRows);
      }
    };
    if constexpr (Layout::kStages == 2) prepare_next();
    wgmma_wait<1>();
    if (makes_dx) {
      // A warp has 16 rows, so that no other reads or writes them.
      const int lane = own % 32, row = own / 32 * 16 + lane / 8 % 2 * 8 + lane % 8;
#pragma unroll
      for (int i = 0; i < 8; i += 2) {
        const std::uint32_t at = dx_tile + tile_offset(row, i + lane / 16);
        std::uint32_t pairs[4] = {};
        if (reads_dx) load_matrices(pairs, at);
#pragma unroll
        for (int m = 0; m < 4; ++m) {
          const float2 old = widen_pair<T>(pairs[m]);
          const int sum = (i + m / 2) * 4 + m % 2 * 2;
          pairs[m] = reads_dx ? narrow_pair<T>(old.x + dx_sums[sum] * unscale,
                                               old.y + dx_sums[sum + 1] * unscale)
                              : narrow_pair<T>(dx_sums[sum] * unscale, dx_sums[sum + 1] * unscale);
        }
        store_matrices(at, pairs);
      }
      if constexpr (kFed) publish_to_matrices();
      __syncwarp();
      if constexpr (kFed) {
        if (own % 32 == 0) {
          store_tile(p.dx_strips, static_cast<int>(block_column) + group * 64,
                     chunk.first + stage * kRows + own / 32 * 16,
                     dx_tile + own / 32 * 16 * kSwizzledRow);
        }
      }
#pragma unroll
      for (int i = 0; i < (kFed ? 0 : 4); ++i) {
        const int r = own / 32 * 16 + i * 4 + own % 32 / 8, place = stage * kRows + r;
        if (place >= chunk.count || there == 0) continue;
        T* const to = own_dx + rows[place] * p.dx_stride;
        const std::uint32_t from = dx_tile + tile_offset(r, piece);
        if (p.dx_aligned && there == 8) {
          *reinterpret_cast<uint4*>(to) = load_shared_16(from);
          continue;
        }
#pragma unroll 1
        for (int e = 0; e < there; ++e) {
          std::uint16_t bits;
          asm volatile("ld.shared.u16 %0, [%1];" : "=h"(bits) : "r"(from + 2 * e) : "memory");
          memcpy(to + e, &bits, 2);
        }
      }
    }
    if constexpr (Layout::kStages == 1) {
      wgmma_wait<0>();
      __syncthreads();
      prepare_next();
    }
    wgmma_wait<0>();
    if constexpr (kFed) {
      // The slot of the stage before may be overwritten once its part of dx has been read.
      if (own % 32 == 0 && stage > 0) {
        wait_stores<1>();
        barrier_arrive(empty + (slot == 0 ? kSlots - 1 : slot - 1) * 8);
      }
    }
    slot = slot + 1 == kSlots ? 0 : slot + 1;
    if (slot == 0) parity ^= 1;
  }
  if constexpr (kFed) {
    wait_stores<0>();
  } else {
    wait_copies<0>();
  }
  if (!makes_da) return;

#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
#pragma unroll
    for (int i = 0; i < kRanks / 2; ++i) {
      if constexpr (kRanks < 64) da_sums[g][i] += da_sums[g][i + kRanks / 2];
      da_sums[g][i] *= unscale;
    }
  }
  store_da<kRanks, kGroups>(p, chunk, entries, block_column, da_sums);
  if (p.counts != nullptr && chunk.partial >= 0)
    sum_da(da_block(), paired_rank(entries[0], p.max_rank), p.counts + column_block);
#endif
}

template <class T, int kRanks, int kGroups>
Status run(const TensorBackward& call, const XParams& params, bool fed, cudaStream_t stream) {
  const std::int64_t blocks = call.tiling.x_chunks * call.tiling.x_blocks;
  constexpr int kBytes = XLayout<kRanks, kGroups>::kBytes;
  return fed ? launch_tiles(&over_x<T, kRanks, kGroups, true>, blocks, kThreads, kBytes, true,
                            stream, params)
             : launch_tiles(&over_x<T, kRanks, kGroups, false>, blocks, kThreads, kBytes, true,
                            stream, params);
}

}  // namespace

Status backward_over_x(const TensorBackward& call, cudaStream_t stream) {
  const BackwardArgs& args = *call.args;
  const TableShape& shape = args.table.shape;
  XParams p{};
  p.da = args.grads.da;
  if ((p.da == nullptr && !call.makes_dx) || call.tiling.x_chunks == 0 || call.tiling.x_blocks == 0)
    return {};
  if (call.is_uniform) return backward_over_x_uniform(call, stream);
  p.x = args.x.data;
  p.x_stride = args.x.strides[0];
  p.entries = args.table.entries;
  p.slot_stride = args.table.slot_stride;
  p.ds = call.partials.whole_ds;
  p.ds_stride = whole_ds_stride(shape);
  p.runs = call.runs;
  p.da_partials = call.partials.da;
  p.mode = args.grads.mode;
  p.reads_dx = args.options.y_mode == YMode::accumulate;
  p.chunk_rows = call.tiling.x_chunk;
  p.num_slices = shape.num_slices;
  p.max_rank = shape.max_rank;
  p.total_v = shape.num_slices * shape.max_rank;
  p.num_blocks = call.tiling.x_blocks;
  p.x_aligned = is_aligned(args.x.data, 2 * p.x_stride, 16);
  p.in = shape.in;
  p.padded_in = divide_up(shape.in, 4) * 4;
  p.counts = call.sums_da ? call.partials.counts : nullptr;
  if (call.makes_dx) {
    p.dx = args.dx.data;
    p.dx_stride = args.dx.strides[0];
    p.dx_aligned = is_aligned(args.dx.data, 2 * p.dx_stride, 16);
  }
  bool fed = call.runs.order == nullptr;
  if (p.da != nullptr) {
    fed = fed && describe_matrix(&p.x_tiles, args.x.dtype, p.x, call.runs.num_rows, p.in,
                                 p.x_stride, tiles::kRows);
  }
  if (call.makes_dx) {
    fed = fed &&
          describe_matrix(&p.dx_tiles, args.dx.dtype, p.dx, call.runs.num_rows, p.in, p.dx_stride,
                          tiles::kRows) &&
          describe_matrix(&p.dx_strips, args.dx.dtype, p.dx, call.runs.num_rows, p.in, p.dx_stride,
                          16);
  }
  return with_half(shape.a_dtype, [&]<class T>(const T*) -> Status {
    if (p.total_v <= 16) return run<T, 16, 1>(call, p, fed, stream);
    if (p.total_v <= 32) return run<T, 32, 1>(call, p, fed, stream);
    if (p.total_v <= 64) return run<T, 64, 1>(call, p, fed, stream);
    if (p.total_v <= 128) return run<T, 64, 2>(call, p, fed, stream);
    for (p.first_v = 0; p.first_v < p.total_v; p.first_v += 192) {
      if (Status status = run<T, 64, 3>(call, p, fed, stream); !status.ok()) return status;
    }
    return {};
  });
}

RANKFOLD_CUDA_MODULE(backward_x)

}  // namespace cuda
RANKFOLD_NAMESPACE_END
