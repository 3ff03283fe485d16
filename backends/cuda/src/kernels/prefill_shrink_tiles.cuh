// What prefill_shrink.cu is made of, included there alone: the product of a block's rows with tiles
// of ranks.
#pragma once

#include "prefill_shrink_parts.cuh"
#include "prefill_words.cuh"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

namespace {

/// The block's part of K and the thread's pieces of x.
template <class T, class W, int kRows, int kMost>
struct LoadedRows {
  using S = Stages<W, kRows, kMost>;
  const T* x[S::kXPieces];
  int first_k;  // of the ring's first stage
  int stages;   // of the ring
  int piece;
  int first_row;
  std::uint32_t base;  // of the ring's x
};
template <bool kWide, class T, class W, int kRows, int kMost>
__device__ __forceinline__ void load_x(const ShrinkParams& p,
                                       const LoadedRows<T, W, kRows, kMost>& rows, int stage,
                                       int place) {
  using S = Stages<W, kRows, kMost>;
  const int k = rows.first_k + stage * S::kRings * kStep;
  const int bytes = bytes_at<T>(p.in, k, rows.piece);
  const int offset = bytes > 0 ? k : 0;
  const std::uint32_t to = rows.base + static_cast<std::uint32_t>(place * S::kXBytes) +
                           tile_offset(rows.first_row, rows.piece);
#pragma unroll
  for (int i = 0; i < S::kXPieces; ++i) {
    load_piece<kWide>(to + static_cast<std::uint32_t>(i * S::kRowStep * kTileRowBytes),
                      rows.x[i] + offset, bytes);
  }
}

/// Eight neighbouring weights of float32 on their way into shared memory.
struct WeightPiece {
  std::uint32_t words[8];

  /// `count` of them, zeros past it; kWide: from a multiple of 16 bytes, none or all eight.
  template <bool kWide>
  __device__ __forceinline__ void fetch(const float* from, int count) {
#pragma unroll
    for (int i = 0; i < 8; ++i) words[i] = 0u;
    if constexpr (kWide) {
      load_words_if(words, count > 0, count > 0, from);
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        if (i < count) words[i] = __float_as_uint(from[i]);
      }
    }
  }
  /// As sums of two parts of T, 16 bytes each.
  template <class T>
  __device__ __forceinline__ void store(std::uint32_t to, int part_bytes) const {
    std::uint32_t high[4], low[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      split_pair<T>(__uint_as_float(words[2 * i]), __uint_as_float(words[2 * i + 1]), high[i],
                    low[i]);
    }
    store_shared_16(to, high);
    store_shared_16(to + static_cast<std::uint32_t>(part_bytes), low);
  }
};

/// Tiles first_tile.. (count of them, at most kTiles) of the block's rows over its part of K.
/// x_loaded: x of the first stages is under way.
template <class T, class W, int kRows, int kMost, int kTiles, bool kWide>
__device__ __forceinline__ void multiply_pass(const ShrinkParams& p, const RowBlock& block,
                                              const SliceTiles& own, std::uint32_t shared,
                                              int first_tile, int count, int split,
                                              const LoadedRows<T, W, kRows, kMost>& rows,
                                              bool x_loaded) {
  using S = Stages<W, kRows, kMost>;
  constexpr int kRings = S::kRings, kRowStep = S::kRowStep, kXBytes = S::kXBytes;
  constexpr int kAPieces = (kTiles * 16 + kRowStep - 1) / kRowStep;
  constexpr int kPartBytes = kTiles * 16 * kTileRowBytes;
  constexpr int kABytes = S::kParts * kPartBytes;
  constexpr int kAPlaces = S::kParts == 2 ? 2 : 0;  // 0: as many as stages
  constexpr int kFit =
      (S::kBytes / kRings - kAPlaces * kABytes) / (kXBytes + (kAPlaces == 0 ? kABytes : 0));
  constexpr int kStages = S::kFixed != 0 ? S::kFixed : kFit < 8 ? kFit : 8;
  static_assert(kStages >= 3);

  const int group = static_cast<int>(threadIdx.x) / 128;  // warpgroup
  const int ring = kRings == 2 ? group : 0;
  const int piece = rows.piece, first_row = rows.first_row, stages = rows.stages;
  LoadedRows<T, W, kRows, kMost> mine = rows;
  if constexpr (S::kFixed == 0) {
    constexpr int kRingBytes = kStages * kXBytes + (kAPlaces == 0 ? kStages : kAPlaces) * kABytes;
    mine.base = shared + static_cast<std::uint32_t>(ring * kRingBytes);
  }
  const std::uint32_t a_base = mine.base + kStages * kXBytes;
  const std::uint32_t own_offset =
      tile_offset(first_row, piece);  // rows kRowStep apart have the same swizzle

  const W* a_rows[kAPieces];
  unsigned valid = 0;
#pragma unroll
  for (int i = 0; i < kAPieces; ++i) {
    const int row = first_row + i * kRowStep;
    const int index = row / 16;  // the same in the whole warp
    const Tile tile = find_tile(own, first_tile + index);
    const int rank = tile.first + row % 16;
    const bool is_row = index < count && rank < tile.rank;
    a_rows[i] = static_cast<const W*>(is_row ? tile.a : p.x) +
                (is_row ? rank * tile.stride + piece * 8 : 0);
    if (is_row) valid |= 1u << i;
  }
  // Past K both operands are zero, past the rank A is: nothing is multiplied that is not there.
  [[maybe_unused]] const auto load_a = [&](int stage, int place) {
    const int k = rows.first_k + stage * kRings * kStep;
    const int bytes = bytes_at<T>(p.in, k, piece);
    const std::uint32_t to = a_base + static_cast<std::uint32_t>(place * kABytes) + own_offset;
#pragma unroll
    for (int i = 0; i < kAPieces; ++i) {
      if ((kTiles * 16) % kRowStep != 0 && first_row + i * kRowStep >= kTiles * 16) continue;
      const int present = (valid >> i & 1u) != 0 ? bytes : 0;
      load_piece<kWide>(to + static_cast<std::uint32_t>(i * kRowStep * kTileRowBytes),
                        reinterpret_cast<const T*>(a_rows[i]) + (present > 0 ? k : 0), present);
    }
  };
  // Weights of float32 come through registers and are stored as the sums of two parts a stage
  // before they are multiplied; the second level of cache is asked for them some stages earlier.
  constexpr int kEarlier = 4;
  [[maybe_unused]] WeightPiece fetched[S::kParts == 2 ? kAPieces : 1];
  [[maybe_unused]] const auto ask_for_a = [&](int stage) {
    if constexpr (kWide) {
      const int k = rows.first_k + stage * kRings * kStep;
      if (piece % 4 != 0 || stage >= stages || k + piece * 8 >= p.in) return;
#pragma unroll
      for (int i = 0; i < kAPieces; ++i) {
        const float* const from = reinterpret_cast<const float*>(a_rows[i]) + k;
        if ((valid >> i & 1u) != 0) asm volatile("prefetch.global.L2 [%0];" ::"l"(from) : "memory");
      }
    }
  };
  [[maybe_unused]] const auto fetch_a = [&](int stage) {
    const int k = rows.first_k + stage * kRings * kStep;
    const int count = stage < stages ? min(max(p.in - k - piece * 8, 0), 8) : 0;
#pragma unroll
    for (int i = 0; i < kAPieces; ++i) {
      const int present = (valid >> i & 1u) != 0 ? count : 0;
      fetched[i].template fetch<kWide>(
          reinterpret_cast<const float*>(a_rows[i]) + (present > 0 ? k : 0), present);
    }
    ask_for_a(stage + kEarlier);
  };
  [[maybe_unused]] const auto store_a = [&](int place) {
    const std::uint32_t to = a_base + static_cast<std::uint32_t>(place * kABytes) + own_offset;
#pragma unroll
    for (int i = 0; i < kAPieces; ++i) {
      if ((kTiles * 16) % kRowStep != 0 && first_row + i * kRowStep >= kTiles * 16) continue;
      fetched[i].template store<T>(to + static_cast<std::uint32_t>(i * kRowStep * kTileRowBytes),
                                   kPartBytes);
    }
  };
  const auto barrier = [&] {
    if constexpr (kRings == 2) {
      warpgroup_barrier(1 + group);
    } else {
      __syncthreads();
    }
  };

  // Matrix instructions cut off what they add; over all of K that would be seen in h. They make
  // sums of few stages, and instructions that round add those up.
  constexpr int kRun = kTiles >= 8 ? 4 : 1;
  float sums[kTiles * 8] = {};
  float of_run[kTiles * 8] = {};
  const auto add_run = [&] {
#pragma unroll
    for (int i = 0; i < kTiles * 8; ++i) sums[i] += of_run[i];
  };
  if constexpr (S::kParts == 2) {
    fetch_a(0);
#pragma unroll
    for (int s = 1; s < kEarlier; ++s) ask_for_a(s);
  }
#pragma unroll 1
  for (int s = 0; s < kStages - 1; ++s) {
    if (s < stages) {
      if (!x_loaded) load_x<kWide>(p, mine, s, s);
      if constexpr (S::kParts == 1) load_a(s, s);
    }
    commit_copies();
  }
  if constexpr (S::kParts == 2) {
    store_a(0);
    fetch_a(1);
  }
  int place = 0;
#pragma unroll 1
  for (int s = 0; s < stages; ++s) {
    // Of the stage before: its place is free once all have passed the barrier.
    finish_tiles(of_run);
    const bool begins_run = s % kRun == 0;
    if (begins_run) add_run();
    wait_copies<kStages - 2>();
    publish_to_matrices();
    barrier();
    const std::uint32_t x_at =
        mine.base + static_cast<std::uint32_t>(place * kXBytes) +
        static_cast<std::uint32_t>(kRings == 2 ? 0 : group * 64 * kTileRowBytes);
    const std::uint32_t a_at =
        a_base + static_cast<std::uint32_t>((kAPlaces == 2 ? s % 2 : place) * kABytes);
    if constexpr (S::kParts == 2) {
      begin_tiles_of_parts<T, kTiles>(of_run, x_at, a_at, a_at + kPartBytes, !begins_run);
    } else {
      begin_tiles<T, kTiles>(of_run, x_at, a_at, !begins_run);
    }
    const int next = s + kStages - 1;
    if (next < stages) {
      const int free = place == 0 ? kStages - 1 : place - 1;
      load_x<kWide>(p, mine, next, free);
      if constexpr (S::kParts == 1) load_a(next, free);
    }
    commit_copies();
    if constexpr (S::kParts == 2) {
      store_a((s + 1) % 2);
      fetch_a(s + 2);
    }
    place = place == kStages - 1 ? 0 : place + 1;
  }
  finish_tiles(of_run);
  add_run();
  wait_copies<0>();
  __syncthreads();

  store_sums<kRows, kRings, kTiles>(p, block, own, shared, first_tile, count, split, sums);
}

}  // namespace

}  // namespace cuda
RANKFOLD_NAMESPACE_END
