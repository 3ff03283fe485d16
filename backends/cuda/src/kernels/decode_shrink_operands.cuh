// What decode_shrink.cu multiplies, included there alone: rows of x and A as operands, entries, and
// what a block shares.
#pragma once

#include "../elements.cuh"
#include "../tensor.cuh"
#include "decode.hpp"
#include "decode_copies.cuh"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * 32;
constexpr int kTile = 8;            // ranks of a matrix instruction
constexpr int kChunk = 32;          // k that a warp takes at a time: 8 a lane
constexpr int kGroup = 2 * kChunk;  // and in turn with the warps that share K
constexpr int kSumTiles = 6;        // whose sums stand in shared memory at a time
constexpr int kMaxTiles = 24;       // of a pass
constexpr unsigned kAll = 0xffffffffu;

struct DecodeShrinkParams {
  const void* x;
  std::int64_t x_stride;
  const AdapterEntry* entries;
  std::int64_t slot_stride;
  Grouping grouping;
  SplitHidden h;
  int in;
  int groups;           ///< of K
  int groups_of_split;  ///< every split has these
  int longer_splits;    ///< and the first splits one more
  int kind;
  int num_slices;
  int max_rank;
  int wide;     ///< rows of x are aligned, and in is a multiple of 64
  int fetches;  ///< A is asked for before the kernel in front has ended
};

// Eight consecutive elements of a row of x or A.
template <class T>
struct Eight {
  uint4 part[sizeof(T) / 2];
};

template <class T, bool kOnce>
__device__ __forceinline__ Eight<T> load_wide(const T* p) {
  Eight<T> v;
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(T)) / 2; ++i) {
    const T* const at = p + i * (16 / sizeof(T));
    v.part[i] = kOnce ? load_once(at) : load_shared_use(at);
  }
  return v;
}

// Rows that are not aligned: those elements before the end, asked for and then put together, so
// that several are on their way.
template <class T>
struct Loose;
template <class T>
requires(sizeof(T) == 2) struct Loose<T> {
  Piece piece;
  const T* from;
  int n;
  __device__ __forceinline__ void load(const T* p, int left) {
    from = p;
    n = min(max(left, 0), 8);
    piece = load_piece(p, n);
  }
  __device__ __forceinline__ Eight<T> get() const { return {{join(from, n, piece)}}; }
};
template <>
struct Loose<float> {
  std::uint32_t words[8];
  __device__ __forceinline__ void load(const float* p, int left) {
#pragma unroll
    for (int i = 0; i < 8; ++i) words[i] = load_word_if(i < left, p + i);
  }
  __device__ __forceinline__ Eight<float> get() const {
    return {{make_uint4(words[0], words[1], words[2], words[3]),
             make_uint4(words[4], words[5], words[6], words[7])}};
  }
};

// The same well inside a row: the aligned 16 bytes around them, which are all of the row. A load of
// one word of each lane is as much work for the first level of cache as one of 16 bytes.
constexpr int kMargin = 8;  // elements of the row before and behind a lane's eight
template <class T>
struct Inside {
  static constexpr int kParts = 1 + static_cast<int>(sizeof(T)) / 2;
  uint4 part[kParts];
  const T* from;
  __device__ __forceinline__ void load(const T* p, int left) {
    from = p;
    const T* const base =
        reinterpret_cast<const T*>(reinterpret_cast<std::uintptr_t>(p) & ~std::uintptr_t{15});
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      part[i] = make_uint4(0, 0, 0, 0);
      load_into_if<false>(part[i], left > 0, base + i * (16 / static_cast<int>(sizeof(T))));
    }
  }
  __device__ __forceinline__ Eight<T> get() const {
    constexpr int kWords = 2 * static_cast<int>(sizeof(T));
    const auto bits = static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(from));
    std::uint32_t words[4 * kParts];
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      words[4 * i] = part[i].x;
      words[4 * i + 1] = part[i].y;
      words[4 * i + 2] = part[i].z;
      words[4 * i + 3] = part[i].w;
    }
#pragma unroll
    for (int i = 0; i < kWords + 2; ++i) words[i] = (bits & 8) != 0 ? words[i + 2] : words[i];
#pragma unroll
    for (int i = 0; i < kWords + 1; ++i) words[i] = (bits & 4) != 0 ? words[i + 1] : words[i];
    if constexpr (sizeof(T) == 2) {
      const unsigned select = (bits & 2) != 0 ? 0x5432 : 0x3210;
#pragma unroll
      for (int i = 0; i < kWords; ++i) words[i] = __byte_perm(words[i], words[i + 1], select);
    }
    Eight<T> v;
#pragma unroll
    for (int i = 0; i < kWords / 4; ++i)
      v.part[i] = make_uint4(words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3]);
    return v;
  }
};

// x as the left operand: rows g and g + 8, the 32 k of a chunk.
template <class TX, class TA>
struct Left;
template <class TX>
struct Left<TX, TX> {
  std::uint32_t a[2][4];
  __device__ __forceinline__ Left(const Eight<TX>& row, const Eight<TX>& other)
      : a{{row.part[0].x, other.part[0].x, row.part[0].y, other.part[0].y},
          {row.part[0].z, other.part[0].z, row.part[0].w, other.part[0].w}} {}
};
template <class TX>
struct Left<TX, float> {
  float2 row[4], other[4];  ///< a TF32 number each, as it stands
  __device__ __forceinline__ Left(const Eight<TX>& one, const Eight<TX>& two)
      : row{widen_pair<TX>(one.part[0].x), widen_pair<TX>(one.part[0].y),
            widen_pair<TX>(one.part[0].z), widen_pair<TX>(one.part[0].w)},
        other{widen_pair<TX>(two.part[0].x), widen_pair<TX>(two.part[0].y),
              widen_pair<TX>(two.part[0].z), widen_pair<TX>(two.part[0].w)} {}
};

// sums += x times eight rows of A over a chunk.
template <class TX>
__device__ __forceinline__ void multiply_chunk(float (&sums)[4], const Left<TX, TX>& x,
                                               const Eight<TX>& a) {
  multiply<TX>(sums, x.a[0][0], x.a[0][1], x.a[0][2], x.a[0][3], a.part[0].x, a.part[0].y);
  multiply<TX>(sums, x.a[1][0], x.a[1][1], x.a[1][2], x.a[1][3], a.part[0].z, a.part[0].w);
}
template <class TX>
__device__ __forceinline__ void multiply_chunk(float (&sums)[4], const Left<TX, float>& x,
                                               const Eight<float>& a) {
  const std::uint32_t words[8] = {a.part[0].x, a.part[0].y, a.part[0].z, a.part[0].w,
                                  a.part[1].x, a.part[1].y, a.part[1].z, a.part[1].w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    // A is the sum of two TF32 numbers.
    std::uint32_t high[2], low[2];
    split_tf32(__uint_as_float(words[2 * i]), high[0], low[0]);
    split_tf32(__uint_as_float(words[2 * i + 1]), high[1], low[1]);
    const std::uint32_t x0 = __float_as_uint(x.row[i].x), x1 = __float_as_uint(x.other[i].x);
    const std::uint32_t x2 = __float_as_uint(x.row[i].y), x3 = __float_as_uint(x.other[i].y);
    multiply_tf32(sums, x0, x1, x2, x3, low[0], low[1]);
    multiply_tf32(sums, x0, x1, x2, x3, high[0], high[1]);
  }
}

template <class TA>
struct EntryOfA {
  const TA* a;
  std::int64_t stride;
  int rank;
};
// All of it asked for at once, so that one wait serves. The assembler would put the stride off
// until after the branch on the rank, and it is another sector of memory: so the rank depends on
// it.
template <class TA>
__device__ __forceinline__ EntryOfA<TA> read_entry(const AdapterEntry* entry, int max_rank) {
  const uint4 pointers = load_shared_use(&entry->a);
  const uint4 numbers = load_shared_use(&entry->rank);
  const uint4 strides = load_shared_use(&entry->a_row_stride);
  const std::uint64_t a = static_cast<std::uint64_t>(pointers.y) << 32 | pointers.x;
  const std::uint64_t stride = static_cast<std::uint64_t>(strides.y) << 32 | strides.x;
  const int rank = min(max(static_cast<int>(numbers.x), 0), max_rank);
  const bool has_a = a != 0 && static_cast<std::int64_t>(stride) >= 0;
  return {reinterpret_cast<const TA*>(a), static_cast<std::int64_t>(stride), has_a ? rank : 0};
}

// What the tiles of a pass become: columns of h, and how many of the eight exist.
struct Columns {
  int first[kMaxTiles];
  int ranks[kMaxTiles];
};
struct Shared {
  float sums[kWarps][kSumTiles][kDecodeRows][kTile];
  const void* rows_of_a[kMaxTiles][kTile];  ///< where they are not aligned
  Columns columns;
  int rows[kDecodeRows];
};

}  // namespace

}  // namespace cuda
RANKFOLD_NAMESPACE_END
