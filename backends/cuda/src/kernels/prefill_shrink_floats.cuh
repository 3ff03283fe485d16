// The shrink of prefill_shrink.cu for weights of float32 and more than four tiles of ranks,
// included there alone. One warpgroup loads: x as it is, A split into two parts of bf16; two others
// multiply, 64 rows each, so that A is split once for 128 rows. They hand stages to each other by
// barriers in shared memory.
#pragma once

#include "prefill_shrink_tiles.cuh"
#include "prefill_weight_words.cuh"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

namespace {

constexpr int kLoaders = 128;  // the last threads of a block

/// How the stages stand in shared memory. x is asked for kAhead stages before its A is stored.
struct PartStages {
  static constexpr int kRows = 128;
  static constexpr int kMultipliers = kRows * 2;
  static constexpr int kThreads = kMultipliers + kLoaders;
  // All threads begin with 168: 256 x 200 and 128 x 104 are as many.
  static constexpr int kMultiplierRegisters = 200;
  static constexpr int kLoaderRegisters = 104;
  static constexpr int kMost = 8;  // tiles of a pass
  static constexpr int kAPlaces = 3, kXPlaces = 6;
  static constexpr int kAhead = kXPlaces - kAPlaces;
  static constexpr int kXBytes = kRows * kTileRowBytes;
  static constexpr int kPartBytes = kMost * 16 * kTileRowBytes;
  static constexpr int kABytes = 2 * kPartBytes;
  static constexpr int kA = kXPlaces * kXBytes;
  static constexpr int kFull = kA + kAPlaces * kABytes;  // barriers: the stage is there,
  static constexpr int kEmpty = kFull + kAPlaces * 8;    // and its places are free
  static constexpr int kXRows = kEmpty + kAPlaces * 8;   // addresses of the rows of x, of A
  static constexpr int kARows = kXRows + kRows * 8;      // (0: there is none)
  static constexpr int kBytes = kARows + kMost * 16 * 8;
};

/// Where a warpgroup stands in the rings; goes on over all passes.
struct RingPlace {
  using S = PartStages;
  int a = 0, a_turn = 0, x = 0;
  __device__ __forceinline__ void advance() {
    x = x == S::kXPlaces - 1 ? 0 : x + 1;
    if (++a == S::kAPlaces) {
      a = 0;
      a_turn ^= 1;
    }
  }
};

/// The block's part of K.
struct PartOfK {
  int first;
  int stages;
};

/// The loading warpgroup in a pass: tiles first_tile.. (count of them).
template <int kTiles, bool kWide>
__device__ __forceinline__ void load_stages(const ShrinkParams& p, const RowBlock& block,
                                            const SliceTiles& own, std::uint32_t shared,
                                            int first_tile, int count, const PartOfK& k,
                                            RingPlace& place) {
  using S = PartStages;
  using T = __nv_bfloat16;
  constexpr int kFours = 16;  // fours of a row of a stage: neighbouring threads
  constexpr int kRowStep = kLoaders / kFours;
  const int thread = static_cast<int>(threadIdx.x) - S::kMultipliers;

  RingPlace x_place = place;
  const int piece = thread % kPieces;
#pragma unroll 1
  for (int i = thread; i < S::kRows; i += kLoaders) {
    const T* const row = static_cast<const T*>(p.x) + batch_row(p, block, i) * p.x_stride;
    store_address(shared + static_cast<std::uint32_t>(S::kXRows + i * 8), row);
  }
  const std::uint32_t x_rows =
      shared + static_cast<std::uint32_t>(S::kXRows + thread / kPieces * 8);
  const std::uint32_t x_offset = tile_offset(thread / kPieces, piece);
  const auto load_x = [&](int stage) {
    const int at = k.first + stage * kStep;
    const int bytes = bytes_at<T>(p.in, at, piece);
    const std::uint32_t to = shared + static_cast<std::uint32_t>(x_place.x * S::kXBytes) + x_offset;
#pragma unroll
    for (int i = 0; i < S::kRows / 16; ++i) {
      if (i * 16 >= block.count) break;  // of rows that are not there nothing is stored
      const T* const row = load_address<T>(x_rows + i * 16 * 8);
      load_piece<kWide>(to + static_cast<std::uint32_t>(i * 16 * kTileRowBytes),
                        row + (bytes > 0 ? at + piece * 8 : 0), bytes);
    }
    x_place.advance();
  };

  const int four = thread % kFours, first_row = thread / kFours;
  // Rows kRowStep apart have the same swizzle.
  const std::uint32_t a_offset =
      S::kA + tile_offset(first_row, four / 2) + static_cast<std::uint32_t>(four % 2 * 8);
  const std::uint32_t a_rows = shared + static_cast<std::uint32_t>(S::kARows + first_row * 8);
  const float* ahead = nullptr;  // the row that the thread asks the second level of cache for
#pragma unroll 1
  for (int i = 0; i < kTiles; ++i) {
    const Tile tile = find_tile(own, first_tile + i);
    const int row = tile.first + thread % 16;
    if (thread / 16 == i && i < count && row < tile.rank)
      ahead = static_cast<const float*>(tile.a) + row * tile.stride + k.first;
  }
  store_address(shared + static_cast<std::uint32_t>(S::kARows + thread * 8), ahead);
  warpgroup_barrier(1);
  constexpr int kEarlier = 4;
  const auto ask_for_a = [&](int stage) {
    if (!kWide || ahead == nullptr || stage >= k.stages) return;
    const int elements =
        min(min(k.stages - stage, kEarlier) * kStep, p.in - k.first - stage * kStep);
    prefetch_bulk(ahead + stage * kStep, elements * 4);
  };
  constexpr int kTurns = 2 * kTiles;
  WeightWords fetched[kTurns];
  const auto present = [&](int stage) {
    return stage < k.stages ? min(max(p.in - k.first - stage * kStep - four * 4, 0), 4) : 0;
  };
  const auto fetch = [&](int i, int stage, int elements) {
    const float* const row = load_address<float>(a_rows + i * kRowStep * 8);
    fetched[i].template fetch<kWide>(row + stage * kStep + four * 4, row != nullptr ? elements : 0);
  };

#pragma unroll
  for (int i = 0; i < kTurns; ++i) fetch(i, 0, present(0));
  ask_for_a(1);
#pragma unroll 1
  for (int s = 0; s < S::kAhead; ++s) {
    if (s < k.stages) load_x(s);
    commit_copies();
  }
#pragma unroll 1
  for (int s = 0; s < k.stages; ++s) {
    barrier_wait(shared + static_cast<std::uint32_t>(S::kEmpty + place.a * 8), place.a_turn ^ 1);
    if (s + S::kAhead < k.stages) load_x(s + S::kAhead);
    commit_copies();
    if (s % kEarlier == 0) ask_for_a(s + 1 + kEarlier);
    const std::uint32_t to = shared + a_offset + static_cast<std::uint32_t>(place.a * S::kABytes);
    const int next = present(s + 1);
    __nv_bfloat162 most = __float2bfloat162_rn(0.0f);
#pragma unroll
    for (int i = 0; i < kTurns; ++i) {
      fetched[i].template store<S::kPartBytes>(
          to + static_cast<std::uint32_t>(i * kRowStep * kTileRowBytes), most);
      fetch(i, s + 1, next);
    }
    if (!__hbeq2(most, most)) {
#pragma unroll 1
      for (int i = 0; i < kTurns; ++i) {
        WeightWords::mend(to + static_cast<std::uint32_t>(i * kRowStep * kTileRowBytes),
                          S::kPartBytes);
      }
    }
    wait_copies<S::kAhead>();
    barrier_arrive(shared + static_cast<std::uint32_t>(S::kFull + place.a * 8));
    place.advance();
  }
  wait_copies<0>();
  warpgroup_barrier(1);  // before the next pass has other rows
}

/// A multiplying warpgroup in a pass. Matrix instructions cut off what they add; over all of K that
/// would be seen in h. They make sums of few stages, and instructions that round add those up.
template <int kTiles>
__device__ __forceinline__ void multiply_stages(float (&sums)[kTiles * 8], std::uint32_t shared,
                                                int stages, int group, bool has_rows,
                                                RingPlace& place) {
  using S = PartStages;
  constexpr int kRun = kTiles > 4 ? 4 : 2;
  const bool leads = threadIdx.x % 32 == 0;
  const auto free_place = [&](int a) {
    if (leads) barrier_arrive(shared + static_cast<std::uint32_t>(S::kEmpty + a * 8));
  };
  const auto wait_full = [&] {
    barrier_wait(shared + static_cast<std::uint32_t>(S::kFull + place.a * 8), place.a_turn);
  };
  if (!has_rows) {
#pragma unroll 1
    for (int s = 0; s < stages; ++s) {
      wait_full();
      free_place(place.a);
      place.advance();
    }
    return;
  }
#pragma unroll 1
  for (int first = 0; first < stages; first += kRun) {
    const int count = min(kRun, stages - first);
    float of_run[kTiles * 8] = {};
    int before = 0;
#pragma unroll 1
    for (int s = 0; s < count; ++s) {
      wait_full();
      // Here, not where it was written: the fence waits for what its thread has under way.
      publish_to_matrices();
      const std::uint32_t x_at =
          shared + static_cast<std::uint32_t>(place.x * S::kXBytes + group * 64 * kTileRowBytes);
      const std::uint32_t a_at = shared + static_cast<std::uint32_t>(S::kA + place.a * S::kABytes);
      begin_tiles_of_parts<__nv_bfloat16, kTiles>(of_run, x_at, a_at, a_at + S::kPartBytes, s > 0);
      finish_all_but_last();
      if (s > 0) free_place(before);
      before = place.a;
      place.advance();
    }
    finish_tiles(of_run);
    free_place(before);
#pragma unroll
    for (int i = 0; i < kTiles * 8; ++i) sums[i] += of_run[i];
  }
}

/// h of a multiplying thread's rows, summed over the cluster, after the block's barrier; the
/// loading warpgroup calls pass_cluster_barriers() meanwhile.
template <int kTiles>
__device__ __forceinline__ void store_hidden(const ShrinkParams& p, const RowBlock& block,
                                             const SliceTiles& own, std::uint32_t shared,
                                             int first_tile, int count, int split,
                                             const float (&sums)[kTiles * 8]) {
  using S = PartStages;
  // Pair i of a thread: tile i / 4, columns (i / 2 % 2) * 8 + 2t and the next, row + (i % 2) * 8.
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const int row = thread / 32 * 16 + lane / 4;
  const int column = lane % 4 * 2;
  const bool has0 = row < block.count, has1 = row + 8 < block.count;
  float* const h = p.h.data + split / p.cluster * p.h.split_stride;
  float* const h0 = h + batch_row(p, block, row) * p.h.stride;
  float* const h1 = h + batch_row(p, block, row + 8) * p.h.stride;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  if (p.cluster > 1) {
    const auto pair_at = [&](int pair) {
      return shared + static_cast<std::uint32_t>((pair * S::kMultipliers + thread) * 8);
    };
#pragma unroll
    for (int i = 0; i < kTiles * 4; ++i) {
      asm volatile("st.shared.v2.f32 [%0], {%1,%2};" ::"r"(pair_at(i)), "f"(sums[2 * i]),
                   "f"(sums[2 * i + 1])
                   : "memory");
    }
    cluster_barrier();
    for (int i = cluster_rank(); i < count * 4; i += p.cluster) {
      float2 sum = load_of_cluster(pair_at(i), 0);
      for (int other = 1; other < p.cluster; ++other) {
        const float2 part = load_of_cluster(pair_at(i), other);
        sum.x += part.x;
        sum.y += part.y;
      }
      const Tile tile = find_tile(own, first_tile + i / 4);
      if (i % 2 == 0 ? has0 : has1)
        store_pair(i % 2 == 0 ? h0 : h1, p.max_rank, p.wide_h, tile, i / 2 % 2 * 8 + column, sum.x,
                   sum.y);
    }
    cluster_barrier();
    return;
  }
#endif
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    Tile tile = find_tile(own, first_tile + t);
    if (t >= count) tile.rank = 0;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      if (has0)
        store_pair(h0, p.max_rank, p.wide_h, tile, n * 8 + column, sums[t * 8 + n * 4],
                   sums[t * 8 + n * 4 + 1]);
      if (has1)
        store_pair(h1, p.max_rank, p.wide_h, tile, n * 8 + column, sums[t * 8 + n * 4 + 2],
                   sums[t * 8 + n * 4 + 3]);
    }
  }
}

/// Of all threads of the block, which stand at two places of the code.
__device__ __forceinline__ void barrier_of_both() {
  asm volatile("bar.sync 2, %0;" ::"n"(PartStages::kThreads) : "memory");
}

__device__ __forceinline__ void pass_cluster_barriers(const ShrinkParams& p) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  if (p.cluster > 1) {
    cluster_barrier();
    cluster_barrier();
  }
#endif
}

__global__ void __launch_bounds__(PartStages::kThreads, 1)
    shrink_parts(const __grid_constant__ ShrinkParams p) {
  using S = PartStages;
  extern __shared__ unsigned char dynamic[];
  const std::uint32_t shared = (shared_address(dynamic) + kAlign - 1) / kAlign * kAlign;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  if (thread == 0) {
    for (int i = 0; i < S::kAPlaces; ++i) {
      barrier_init(shared + static_cast<std::uint32_t>(S::kFull + i * 8), kLoaders);
      barrier_init(shared + static_cast<std::uint32_t>(S::kEmpty + i * 8), S::kMultipliers / 32);
    }
    barrier_publish();
  }
  wait_for_previous();
  release_next();
  const int split = static_cast<int>(blockIdx.x);
  const int index = static_cast<int>(blockIdx.y + blockIdx.z * kRowBlocksY);
  const RowBlock block = p.kind == Grouping::uniform
                             ? find_row_block<Grouping::uniform, S::kRows>(p.rows, index)
                             : find_row_block<Grouping::segments, S::kRows>(p.rows, index);
  if (block.slot < 0) return;
  const SliceTiles own =
      slice_tiles(p.entries + block.slot * p.slot_stride, p.num_slices, p.max_rank, lane);
  PartOfK k;
  k.first = (split * p.chunks + min(split, p.chunks_over)) * kStep;
  k.stages = p.chunks + (split < p.chunks_over ? 1 : 0);
  // Whole fours of A, whole pieces of x.
  const bool wide =
      own.rank == 0 || (reinterpret_cast<std::uintptr_t>(own.a) % 16 == 0 && own.stride % 4 == 0);
  const bool all_wide = __all_sync(0xffffffffu, wide) && p.wide_x && p.in % 4 == 0;
  const int tiles = __shfl_sync(0xffffffffu, own.after, 31);
  if (tiles == 0) return;

  __syncthreads();  // the barriers are there

  // Tiles beyond the count are zeros.
  const int most = all_wide ? S::kMost : 4;
  const int passes = (tiles + most - 1) / most;
  const int of_pass = (tiles + passes - 1) / passes;
  RingPlace place;
  const auto each_pass = [&](const auto& pass) {
    for (int first = 0; first < tiles; first += of_pass) {
      const int count = min(of_pass, tiles - first);
      if (!all_wide) {
        pass.template operator()<4, false>(first, count);
      } else if (count <= 2) {
        pass.template operator()<2, true>(first, count);
      } else if (count <= 4) {
        pass.template operator()<4, true>(first, count);
      } else if (count <= 6) {
        pass.template operator()<6, true>(first, count);
      } else {
        pass.template operator()<8, true>(first, count);
      }
      barrier_of_both();  // before the next pass fills shared memory
    }
  };
  if (thread < S::kMultipliers) {
    take_registers<S::kMultiplierRegisters>();
    const int group = thread / 128;
    const bool has_rows = group * 64 < block.count;
    each_pass([&]<int kTiles, bool kWide>(int first, int count) {
      float sums[kTiles * 8] = {};
      multiply_stages<kTiles>(sums, shared, k.stages, group, has_rows, place);
      barrier_of_both();
      store_hidden<kTiles>(p, block, own, shared, first, count, split, sums);
    });
  } else {
    leave_registers<S::kLoaderRegisters>();
    each_pass([&]<int kTiles, bool kWide>(int first, int count) {
      load_stages<kTiles, kWide>(p, block, own, shared, first, count, k, place);
      barrier_of_both();
      pass_cluster_barriers(p);
    });
  }
}

}  // namespace

}  // namespace cuda
RANKFOLD_NAMESPACE_END
