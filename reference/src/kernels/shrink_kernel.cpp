#include "shrink_kernel.hpp"

#include <algorithm>

#include "../plan.hpp"
#include "simd.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace reference {

namespace {

constexpr int kTileRows = 3;
constexpr int kTileRanks = 4;
constexpr std::int64_t kPackRanks = 64;  // rows of A that are widened together: 256 KB of a chunk
constexpr std::int64_t kPrefetchBytes =
    512;                              // how far ahead A is asked for when few rows stream it
constexpr std::int64_t kFewRows = 3;  // up to here, A is widened in registers

// What a tile asks for while it computes: `step` bytes further for each sixteen k. Evenly spread,
// since a burst would fill the processor's queue of misses and stop the tile.
struct Trail {
  const char* p = nullptr;
  std::int64_t step = 0;
};
struct Ahead {
  Trail x;
  Trail a;
};

// sums[m][n] = sum over k of x[m][k] a[n][k]; x is widened and padded to a multiple of 16.
template <class TA, int kRows, int kRanks>
inline void dot_tile(const float* x, std::int64_t x_stride, const TA* a, std::int64_t a_stride,
                     std::int64_t size, Ahead ahead, float (&sums)[kRows][kRanks]) noexcept {
  F8 acc[kRows][kRanks];
  for (int m = 0; m < kRows; ++m) {
    for (int n = 0; n < kRanks; ++n) acc[m][n] = zero8();
  }
  std::int64_t k = 0;
  for (; k + kPairLanes <= size; k += kPairLanes) {
    if constexpr (std::is_same_v<TA, float>) {
      __builtin_prefetch(ahead.x.p);
      __builtin_prefetch(ahead.a.p);
      ahead.x.p += ahead.x.step;
      ahead.a.p += ahead.a.step;
    }
    if constexpr (kEvenOdd<TA>) {
      for (int n = 0; n < kRanks; ++n) {
        const Pair weight = load_pair(a + n * a_stride + k);
        __builtin_prefetch(reinterpret_cast<const char*>(a + n * a_stride + k) + kPrefetchBytes);
        for (int m = 0; m < kRows; ++m) {
          const float* const row = x + m * x_stride + k;
          acc[m][n] = fma(load8(row), weight.first, acc[m][n]);
          acc[m][n] = fma(load8(row + kLanes), weight.second, acc[m][n]);
        }
      }
    } else {
      for (std::int64_t half = k; half < k + kPairLanes; half += kLanes) {
        F8 row[kRows];
        for (int m = 0; m < kRows; ++m) row[m] = load8(x + m * x_stride + half);
        for (int n = 0; n < kRanks; ++n) {
          const F8 weight = load8(a + n * a_stride + half);
          for (int m = 0; m < kRows; ++m) acc[m][n] = fma(row[m], weight, acc[m][n]);
        }
      }
    }
  }
  if (k < size) {
    for (int n = 0; n < kRanks; ++n) {
      const Pair weight = load_pair(a + n * a_stride + k, size - k);
      for (int m = 0; m < kRows; ++m) {
        const Pair row = load_pair(x + m * x_stride + k);
        acc[m][n] = fma(row.first, weight.first, acc[m][n]);
        acc[m][n] = fma(row.second, weight.second, acc[m][n]);
      }
    }
  }
  for (int m = 0; m < kRows; ++m) {
    for (int n = 0; n < kRanks; ++n) sums[m][n] = sum(acc[m][n]);
  }
}

// Adds one chunk's sums to a tile of h, or sets them.
template <class TA, int kRows, int kRanks>
inline void dot_chunk(const float* x, std::int64_t x_stride, const TA* a, std::int64_t a_stride,
                      std::int64_t size, float* const (&h)[kTileRows], std::int64_t j, bool first,
                      Ahead ahead = {}) noexcept {
  float sums[kRows][kRanks];
  dot_tile<TA, kRows, kRanks>(x, x_stride, a, a_stride, size, ahead, sums);
  for (int m = 0; m < kRows; ++m) {
    for (int n = 0; n < kRanks; ++n) {
      float& target = h[m][j + n];
      target = first ? sums[m][n] : target + sums[m][n];
    }
  }
}

template <class TA, int kRanks>
inline void dot_rows(int num_rows, const float* x, std::int64_t x_stride, const TA* a,
                     std::int64_t a_stride, std::int64_t size, float* const (&h)[kTileRows],
                     std::int64_t j, bool first, Ahead ahead = {}) noexcept {
  switch (num_rows) {
    case 1:
      return dot_chunk<TA, 1, kRanks>(x, x_stride, a, a_stride, size, h, j, first, ahead);
    case 2:
      return dot_chunk<TA, 2, kRanks>(x, x_stride, a, a_stride, size, h, j, first, ahead);
    default:
      return dot_chunk<TA, 3, kRanks>(x, x_stride, a, a_stride, size, h, j, first, ahead);
  }
}

struct RowTile {
  int num_rows;
  float* h[kTileRows];
};

// Rows [first, first + 3) of the block, or what is left of them, with h in sums [rows, stride].
RowTile sums_tile(const ShrinkBlock& block, std::int64_t first, float* sums,
                  std::int64_t stride) noexcept {
  RowTile tile;
  tile.num_rows = static_cast<int>(std::min<std::int64_t>(kTileRows, block.num_rows - first));
  for (int m = 0; m < kTileRows; ++m) {
    tile.h[m] = sums + (first + std::min(m, tile.num_rows - 1)) * stride;
  }
  return tile;
}

RowTile row_tile(const ShrinkBlock& block, std::int64_t first) noexcept {
  RowTile tile;
  tile.num_rows = static_cast<int>(std::min<std::int64_t>(kTileRows, block.num_rows - first));
  for (int m = 0; m < kTileRows; ++m) {
    const std::int64_t i = first + std::min(m, tile.num_rows - 1);
    const std::int64_t row = block.h_rows != nullptr ? block.h_rows[i] : i;
    tile.h[m] = block.h + row * block.h_stride;
  }
  return tile;
}

// A row of x after dropout, in the order of widen<TA>.
template <class TX, class TA>
[[gnu::noinline]] void widen_dropped(const DropoutMask& dropout, const TX* x, std::int64_t row,
                                     std::int64_t begin, std::int64_t size,
                                     float* destination) noexcept {
  constexpr std::int64_t kPiece = 256;
  float piece[kPiece];
  std::uint32_t mask[kPiece];
  for (std::int64_t done = 0; done < size; done += kPiece) {
    const std::int64_t count = std::min(kPiece, size - done);
    widen<float>(x + done, piece, count);
    dropout.draw(row, begin + done, count, mask);
    drop(piece, mask, dropout.scale(), count, piece);
    widen<TA>(piece, destination + done, count);
  }
}

template <class TX, class TA>
void widen_rows(const ShrinkBlock& block, std::int64_t first, int num_rows, std::int64_t begin,
                std::int64_t size, float* destination, std::int64_t stride) noexcept {
  for (int m = 0; m < num_rows; ++m) {
    const std::int64_t row = block.rows[first + m];
    const TX* const x = static_cast<const TX*>(block.x) + row * block.x_stride + begin;
    if (block.dropout == nullptr) {
      widen<TA>(x, destination + m * stride, size);
    } else {
      widen_dropped<TX, TA>(*block.dropout, x, row, begin, size, destination + m * stride);
    }
  }
}

// Few rows: x is widened once, A streams by, four or eight of its rows at a time.
template <class TX, class TA>
void few_rows(const ShrinkBlock& block) noexcept {
  const auto* const a = static_cast<const TA*>(block.a);
  const std::int64_t stride = round_up(block.in, kPairLanes);
  const RowTile tile = row_tile(block, 0);
  widen_rows<TX, TA>(block, 0, tile.num_rows, 0, block.in, block.scratch, stride);
  for (std::int64_t j = block.rank_begin; j < block.rank_end;) {
    const std::int64_t left = block.rank_end - j;
    const std::int64_t step = left >= 8 && tile.num_rows == 1 ? 8 : left >= kTileRanks ? 4 : 1;
    for (std::int64_t k = 0; k < block.in; k += kShrinkChunk) {
      const std::int64_t size = std::min(kShrinkChunk, block.in - k);
      const float* const x = block.scratch + k;
      const TA* const weights = a + j * block.a_stride + k;
      if (step == 8) {
        dot_chunk<TA, 1, 8>(x, stride, weights, block.a_stride, size, tile.h, j, k == 0);
      } else if (step == kTileRanks) {
        dot_rows<TA, kTileRanks>(tile.num_rows, x, stride, weights, block.a_stride, size, tile.h, j,
                                 k == 0);
      } else {
        dot_rows<TA, 1>(tile.num_rows, x, stride, weights, block.a_stride, size, tile.h, j, k == 0);
      }
    }
    j += step;
  }
}

// What the tiles of one chunk ask for between them: the same chunk of the next rows of x, and the
// next chunk of A.
template <class TX, class TA>
class ChunkAhead {
 public:
  ChunkAhead(const ShrinkBlock& block, std::int64_t first_rank, std::int64_t ranks, std::int64_t k,
             std::int64_t size) noexcept
      : block_(block), k_(k) {
    const std::int64_t next = std::min(kShrinkChunk, block.in - k - size);
    a_ = static_cast<const char*>(block.a) +
         (first_rank * block.a_stride + k + size) * static_cast<std::int64_t>(sizeof(TA));
    a_row_bytes_ = next * static_cast<std::int64_t>(sizeof(TA));
    const std::int64_t tiles = (block.num_rows + kTileRows - 1) / kTileRows * (ranks / kTileRanks);
    tile_bytes_ = tiles > 0 ? (ranks * a_row_bytes_ + tiles - 1) / tiles : 0;
    steps_ = std::max<std::int64_t>(size / kPairLanes, 1);
  }

  /// For the next tile: rows of x from i on, rank tile `tile`.
  Ahead next(std::int64_t i, std::int64_t tile) noexcept {
    const auto* const nothing = reinterpret_cast<const char*>(block_.scratch);
    Ahead ahead{{nothing, 0}, {nothing, 0}};
    const std::int64_t row = i + kTileRows + tile;
    if (tile < kTileRows && row < block_.num_rows) {
      const TX* const x = static_cast<const TX*>(block_.x) + block_.rows[row] * block_.x_stride;
      ahead.x = {reinterpret_cast<const char*>(x + k_),
                 kPairLanes * static_cast<std::int64_t>(sizeof(TX))};
    }
    if (a_row_bytes_ > 0) {
      const std::int64_t at =
          asked_ / a_row_bytes_ * block_.a_stride * static_cast<std::int64_t>(sizeof(TA)) +
          asked_ % a_row_bytes_;
      ahead.a = {a_ + at, (tile_bytes_ + steps_ - 1) / steps_};
      asked_ += tile_bytes_;
    }
    return ahead;
  }

 private:
  const ShrinkBlock& block_;
  const std::int64_t k_;
  const char* a_ = nullptr;
  std::int64_t a_row_bytes_ = 0;
  std::int64_t tile_bytes_ = 0;
  std::int64_t steps_ = 1;
  std::int64_t asked_ = 0;
};

// Many rows: a chunk of A is widened once for all of them. Sums of chunks are added in scratch:
// other threads write their ranks of the same rows of h, into the same lines of the cache.
template <class TX, class TA>
void many_rows(const ShrinkBlock& block) noexcept {
  const auto* const a = static_cast<const TA*>(block.a);
  float* const x = block.scratch;
  float* const weights = x + kTileRows * kShrinkChunk;
  float* const sums = weights + std::min(block.rank_end - block.rank_begin, kPackRanks) *
                                    std::min(round_up(block.in, kPairLanes), kShrinkChunk);
  for (std::int64_t first = block.rank_begin; first < block.rank_end; first += kPackRanks) {
    const std::int64_t ranks = std::min(kPackRanks, block.rank_end - first);
    for (std::int64_t k = 0; k < block.in; k += kShrinkChunk) {
      const std::int64_t size = std::min(kShrinkChunk, block.in - k);
      const std::int64_t padded = round_up(size, kPairLanes);
      for (std::int64_t j = 0; j < ranks; ++j) {
        widen<TA>(a + (first + j) * block.a_stride + k, weights + j * padded, size);
      }
      ChunkAhead<TX, TA> ahead(block, first, ranks, k, size);
      for (std::int64_t i = 0; i < block.num_rows; i += kTileRows) {
        const RowTile tile = sums_tile(block, i, sums, ranks);
        widen_rows<TX, TA>(block, i, tile.num_rows, k, size, x, padded);
        std::int64_t j = 0;
        for (; j + kTileRanks <= ranks; j += kTileRanks) {
          dot_rows<float, kTileRanks>(tile.num_rows, x, padded, weights + j * padded, padded,
                                      padded, tile.h, j, k == 0, ahead.next(i, j / kTileRanks));
        }
        for (; j < ranks; ++j) {
          dot_rows<float, 1>(tile.num_rows, x, padded, weights + j * padded, padded, padded, tile.h,
                             j, k == 0);
        }
      }
    }
    for (std::int64_t i = 0; i < block.num_rows; ++i) {
      const std::int64_t row = block.h_rows != nullptr ? block.h_rows[i] : i;
      std::copy_n(sums + i * ranks, ranks, block.h + row * block.h_stride + first);
    }
  }
}

}  // namespace

std::int64_t shrink_scratch_floats(std::int64_t in, std::int64_t max_rank) noexcept {
  const std::int64_t few = kFewRows * round_up(in, kPairLanes);
  const std::int64_t chunk = std::min(round_up(in, kPairLanes), kShrinkChunk);
  const std::int64_t ranks = std::min(max_rank, kPackRanks);
  const std::int64_t many = kTileRows * kShrinkChunk + ranks * chunk + kMaxGroupRows * ranks;
  return std::max(few, many);
}

void shrink_block(const ShrinkBlock& block) noexcept {
  with_element(block.x_dtype, [&]<class TX>(const TX*) {
    with_element(block.a_dtype, [&]<class TA>(const TA*) {
      if (block.num_rows <= kFewRows) {
        few_rows<TX, TA>(block);
      } else {
        many_rows<TX, TA>(block);
      }
    });
  });
}

}  // namespace reference
RANKFOLD_NAMESPACE_END
