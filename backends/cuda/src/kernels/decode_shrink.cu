#include "../elements.cuh"
#include "../launch.hpp"
#include "../tensor.cuh"
#include "decode.hpp"
#include "decode_rows.cuh"
#include "modules.hpp"

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
  int wide;  ///< rows of x are aligned, and in is a multiple of 8
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

// Element by element, those before the end: rows that are not aligned.
template <class T>
__device__ __forceinline__ Eight<T> load_elements(const T* p, int left) {
  std::uint32_t words[sizeof(T) * 2] = {};
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (i >= left) continue;
    if constexpr (sizeof(T) == 2) {
      const std::uint32_t bits = reinterpret_cast<const std::uint16_t*>(p)[i];
      words[i / 2] |= bits << (16 * (i % 2));
    } else {
      words[i] = reinterpret_cast<const std::uint32_t*>(p)[i];
    }
  }
  Eight<T> v;
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(T)) / 2; ++i) {
    v.part[i] = make_uint4(words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3]);
  }
  return v;
}

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
// All of it asked for at once, so that one wait serves: the compiler would put the stride off to
// where it is used.
template <class TA>
__device__ __forceinline__ EntryOfA<TA> read_entry(const AdapterEntry* entry, int max_rank) {
  const uint4 pointers = load_shared_use(&entry->a);
  const uint4 numbers = load_shared_use(&entry->rank);
  const uint4 strides = load_shared_use(&entry->a_row_stride);
  const std::uint64_t a = static_cast<std::uint64_t>(pointers.y) << 32 | pointers.x;
  const std::uint64_t stride = static_cast<std::uint64_t>(strides.y) << 32 | strides.x;
  const int rank = min(max(static_cast<int>(numbers.x), 0), max_rank);
  return {reinterpret_cast<const TA*>(a), static_cast<std::int64_t>(stride), a != 0 ? rank : 0};
}

// What the tiles of a pass become: columns of h, and how many of the eight exist.
struct Columns {
  int first[kMaxTiles];
  int ranks[kMaxTiles];
};
struct Shared {
  float sums[kWarps][kSumTiles][kDecodeRows][kTile];
  Columns columns;
  int rows[kDecodeRows];
};

// The part of K that a warp of a split has: every kSharers-th group, so that the warps of a block
// read neighbouring 128 bytes of a row at a time. It is the same whatever the rows.
template <int kSharers>
__device__ __forceinline__ void groups_of_warp(const DecodeShrinkParams& p, int& first,
                                               int& count) {
  const int split = static_cast<int>(blockIdx.y),
            warp = static_cast<int>(threadIdx.x) / 32 % kSharers;
  const int begin = split * p.groups_of_split + min(split, p.longer_splits);
  const int groups = p.groups_of_split + (split < p.longer_splits ? 1 : 0);
  first = begin + warp;
  count = (groups - warp + kSharers - 1) / kSharers;
}

// sums += x times the tiles over groups of which only the columns before the end of x exist, or
// whose rows are not aligned. Out of line: it is rare, and the way round it is short.
template <class TX, class TA, int kTiles>
__device__ __noinline__ void accumulate_slowly(const TA* const* a, const TX* const* x, int in,
                                               int first, int count, int step, float (*sums)[4]) {
  const int t = static_cast<int>(threadIdx.x) % 4;
#pragma unroll 1
  for (int i = 0; i < count; ++i) {
    const int k = (first + i * step) * kGroup, left = in - k - 8 * t;
    const Left<TX, TA> low(load_elements(x[0] + k, left), load_elements(x[1] + k, left));
    const Left<TX, TA> high(load_elements(x[0] + k + kChunk, left - kChunk),
                            load_elements(x[1] + k + kChunk, left - kChunk));
#pragma unroll 1
    for (int tile = 0; tile < kTiles; ++tile) {
      float part[4] = {};
      multiply_chunk<TX>(part, low, load_elements(a[tile] + k, left));
      multiply_chunk<TX>(part, high, load_elements(a[tile] + k + kChunk, left - kChunk));
      for (int c = 0; c < 4; ++c) sums[tile][c] += part[c];
    }
  }
}
// Copies, as what is passed by address would stand in memory all along.
template <class TX, class TA, int kTiles>
__device__ __forceinline__ void accumulate_copy(const TA* const (&a)[kTiles],
                                                const TX* const (&x)[2], int in, int first,
                                                int count, int step, float (&sums)[kTiles][4]) {
  const TA* of_a[kTiles];
  const TX* of_x[2] = {x[0], x[1]};
  float of_sums[kTiles][4];
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
    of_a[i] = a[i];
#pragma unroll
    for (int c = 0; c < 4; ++c) of_sums[i][c] = sums[i][c];
  }
  accumulate_slowly<TX, TA, kTiles>(of_a, of_x, in, first, count, step, of_sums);
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
#pragma unroll
    for (int c = 0; c < 4; ++c) sums[i][c] = of_sums[i][c];
  }
}

// sums += x times the tiles over kGroups groups, all asked for before the first is used.
template <int kGroups, int kSharers, class TX, class TA, int kTiles>
__device__ __forceinline__ void accumulate(const TA* (&a)[kTiles], const TX* (&x)[2], bool two,
                                           float (&sums)[kTiles][4]) {
  constexpr int kStep = kGroup * kSharers;  // from a group of the warp to its next
  Eight<TX> xs[2 * kGroups][2];
  Eight<TA> as[2 * kGroups][kTiles];
#pragma unroll
  for (int u = 0; u < 2 * kGroups; ++u) {
    const int offset = u / 2 * kStep + u % 2 * kChunk;
#pragma unroll
    for (int i = 0; i < kTiles; ++i) as[u][i] = load_wide<TA, true>(a[i] + offset);
    xs[u][0] = load_wide<TX, false>(x[0] + offset);
    if (two) {
      xs[u][1] = load_wide<TX, false>(x[1] + offset);
    } else {
      xs[u][1] = {};
    }
  }
#pragma unroll
  for (int i = 0; i < kTiles; ++i) a[i] += kGroups * kStep;
  x[0] += kGroups * kStep;
  x[1] += kGroups * kStep;
  // Matrix instructions cut off what they add; over all of K that would lean to zero. So their sums
  // are short, and added up by instructions that round.
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
    const int u = 2 * group;
    const Left<TX, TA> first(xs[u][0], xs[u][1]), second(xs[u + 1][0], xs[u + 1][1]);
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      float part[4] = {};
      multiply_chunk<TX>(part, first, as[u][i]);
      multiply_chunk<TX>(part, second, as[u + 1][i]);
#pragma unroll
      for (int c = 0; c < 4; ++c) sums[i][c] += part[c];
    }
  }
}

// The products of the tiles with the rows of the block, summed over the warps that share K, into h.
// a: the lane's row of each tile. Rows past the rank and past the count are others again: what they
// make is not stored, and nothing of it reaches what is.
template <class TX, class TA, int kTiles, int kGroups, int kParts>
__device__ __forceinline__ void shrink_tiles(const DecodeShrinkParams& p, const TA* (&a)[kTiles],
                                             bool wide, const TX* const (&rows)[2], int count,
                                             int first_tile, Shared& shared) {
  constexpr int kSharers = kWarps / kParts;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int g = lane / 4, t = lane % 4;
  int first, groups;
  groups_of_warp<kSharers>(p, first, groups);
  const bool two = count > 8;
  float sums[kTiles][4] = {};
  // A last group that K ends in is not among the full ones. It comes first, so that nothing of it
  // is kept; in the slow way, too, so that alignment changes no bits.
  if (groups > 0 && (first + (groups - 1) * kSharers + 1) * kGroup > p.in) {
    --groups;
    accumulate_copy(a, rows, p.in, first + groups * kSharers, 1, kSharers, sums);
  }
  if (wide && p.wide != 0) {
    const TX* x[2] = {rows[0] + first * kGroup, rows[1] + first * kGroup};
#pragma unroll
    for (int i = 0; i < kTiles; ++i) a[i] += first * kGroup;
    if constexpr (kGroups > 1) {
#pragma unroll 1
      for (; groups >= kGroups; groups -= kGroups) accumulate<kGroups, kSharers>(a, x, two, sums);
    }
#pragma unroll 1
    for (; groups > 0; --groups) accumulate<1, kSharers>(a, x, two, sums);
  } else if (groups > 0) {
    accumulate_copy(a, rows, p.in, first, groups, kSharers, sums);
  }
#pragma unroll
  for (int from = 0; from < kTiles; from += kSumTiles) {
    if (from > 0) __syncthreads();
#pragma unroll
    for (int i = from; i < kTiles && i < from + kSumTiles; ++i) {
      float(*const to)[kTile] = shared.sums[warp][i - from];
      *reinterpret_cast<float2*>(&to[g][2 * t]) = make_float2(sums[i][0], sums[i][1]);
      if (two) *reinterpret_cast<float2*>(&to[g + 8][2 * t]) = make_float2(sums[i][2], sums[i][3]);
    }
    __syncthreads();
    // The warps that share K add up their own tiles: a thread has four ranks of a row.
    const int part = kParts == 1 ? 0 : warp / kSharers;
    const int items = (kTiles - from < kSumTiles ? kTiles - from : kSumTiles) * kDecodeRows * 2;
    for (int item = static_cast<int>(threadIdx.x) % (32 * kSharers); item < items;
         item += 32 * kSharers) {
      const int quad = item % 2, token = item / 2 % kDecodeRows, i = item / (2 * kDecodeRows);
      const int tile = first_tile + part * kTiles + from + i;
      const int ranks = shared.columns.ranks[tile] - 4 * quad;
      if (token >= count || ranks <= 0) continue;
      float4 sum =
          *reinterpret_cast<const float4*>(&shared.sums[part * kSharers][i][token][4 * quad]);
#pragma unroll
      for (int w = 1; w < kSharers; ++w) {
        const float4 other =
            *reinterpret_cast<const float4*>(&shared.sums[part * kSharers + w][i][token][4 * quad]);
        sum.x += other.x;
        sum.y += other.y;
        sum.z += other.z;
        sum.w += other.w;
      }
      float* const h = p.h.data + blockIdx.y * p.h.split_stride +
                       shared.rows[token] * p.h.row_stride + shared.columns.first[tile] + 4 * quad;
      if (ranks >= 4 && reinterpret_cast<std::uintptr_t>(h) % 16 == 0) {
        *reinterpret_cast<float4*>(h) = sum;
      } else {
        h[0] = sum.x;
        if (ranks > 1) h[1] = sum.y;
        if (ranks > 2) h[2] = sum.z;
        if (ranks > 3) h[3] = sum.w;
      }
    }
  }
}

// Rows g and g + 8 of the block at the lane's k; past the count its last row again.
template <Lookup kLookup, class TX>
__device__ __forceinline__ void rows_of_x(const DecodeShrinkParams& p, const RowBlock& block,
                                          const TX* (&x)[2], int* rows) {
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
  const TX* const at = static_cast<const TX*>(p.x) + 8 * t;
  if constexpr (kLookup == Lookup::uniform) {
    if (threadIdx.x < kDecodeRows) rows[threadIdx.x] = block.first + static_cast<int>(threadIdx.x);
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      x[c] = at +
             static_cast<std::int64_t>(block.first + min(g + 8 * c, block.count - 1)) * p.x_stride;
    }
  } else {
    const int row = decode_row<kLookup>(p.grouping, p.kind, block, min(lane, block.count - 1));
    if (threadIdx.x < kDecodeRows) rows[threadIdx.x] = row;
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      x[c] = at + static_cast<std::int64_t>(__shfl_sync(kAll, row, g + 8 * c)) * p.x_stride;
    }
  }
}

template <class TA>
__device__ __forceinline__ bool is_wide(const TA* a, std::int64_t stride) {
  return ((reinterpret_cast<std::uintptr_t>(a) | static_cast<std::uintptr_t>(stride * sizeof(TA))) &
          15) == 0;
}

// max_rank at most 8 kPerSlice: where tiles stand is known without looking.
template <class TX, class TA, int kSlices, int kPerSlice, Lookup kLookup>
__global__ void __launch_bounds__(kThreads, 2)
    decode_shrink_low_rank(const __grid_constant__ DecodeShrinkParams p) {
  __shared__ __align__(16) Shared shared;
  constexpr int kTiles = kSlices * kPerSlice;
  release_next();
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
  const RowBlock block =
      find_decode_block<kLookup>(p.grouping, p.kind, static_cast<int>(blockIdx.x));
  if (block.slot < 0) return;
  const AdapterEntry* const entries = p.entries + block.slot * p.slot_stride;
  EntryOfA<TA> entry[kSlices];
#pragma unroll
  for (int i = 0; i < kSlices; ++i) entry[i] = read_entry<TA>(entries + i, p.max_rank);
  const TX* x[2];
  rows_of_x<kLookup>(p, block, x, shared.rows);
  // A slice of rank 0 has another's rows.
  const TA* some = nullptr;
#pragma unroll
  for (int i = 0; i < kSlices; ++i) some = entry[i].rank > 0 ? entry[i].a : some;
  if (some == nullptr) return;
  const TA* a[kTiles];
  std::uintptr_t low_bits = 0;
#pragma unroll
  for (int i = 0; i < kSlices; ++i) {
    const TA* const base = entry[i].rank > 0 ? entry[i].a : some;
    low_bits |= reinterpret_cast<std::uintptr_t>(base) |
                static_cast<std::uintptr_t>(entry[i].stride * sizeof(TA));
#pragma unroll
    for (int j = 0; j < kPerSlice; ++j) {
      a[kPerSlice * i + j] =
          base + max(min(8 * j + g, entry[i].rank - 1), 0) * entry[i].stride + 8 * t;
    }
  }
  const bool wide = (low_bits & 15) == 0;
  if (threadIdx.x == 0) {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      shared.columns.first[i] = i / kPerSlice * p.max_rank + i % kPerSlice * 8;
      shared.columns.ranks[i] = min(entry[i / kPerSlice].rank - i % kPerSlice * 8, 8);
    }
  }
  shrink_tiles<TX, TA, kTiles, kTiles <= 2 ? 2 : 1, 1>(p, a, wide, x, block.count, 0, shared);
}

// The lane's rows of kTiles tiles from `first` on, of all that the slices have; past the last it
// again. Lane s has slice s; end: where its tiles end among all.
template <class TA, int kTiles>
__device__ __forceinline__ bool list_tiles(const DecodeShrinkParams& p, const EntryOfA<TA>& entry,
                                           int end, int total, int first, int place,
                                           const TA* (&a)[kTiles], Columns& columns) {
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
  bool wide = true;
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
    const int tile = min(first + i, total - 1);
    const int slice = __ffs(static_cast<int>(__ballot_sync(kAll, end > tile))) - 1;
    const int begin = slice > 0 ? __shfl_sync(kAll, end, slice > 0 ? slice - 1 : 0) : 0;
    const auto of_slice = reinterpret_cast<const TA*>(
        __shfl_sync(kAll, reinterpret_cast<unsigned long long>(entry.a), slice));
    const std::int64_t stride = __shfl_sync(kAll, static_cast<long long>(entry.stride), slice);
    const int rank = __shfl_sync(kAll, entry.rank, slice), from = (tile - begin) * kTile;
    a[i] = of_slice + min(from + g, rank - 1) * stride + 8 * t;
    wide = wide && is_wide(of_slice, stride);
    columns.first[place + i] = slice * p.max_rank + from;
    columns.ranks[place + i] = first + i < total ? min(rank - from, kTile) : 0;
  }
  return wide;
}

// Twice kTiles tiles at a time, by the two halves of the block's warps; evenly where all fit.
template <class TX, class TA, int kTiles, int kGroups>
__device__ __forceinline__ void shrink_halves(const DecodeShrinkParams& p,
                                              const EntryOfA<TA>& entry, int end, int total,
                                              const TX* const (&x)[2], int count, Shared& shared) {
  const bool second = threadIdx.x >= kThreads / 2;
#pragma unroll 1
  for (int first = 0; first < total; first += 2 * kTiles) {
    if (first > 0) __syncthreads();
    const int rest = min(total - first, 2 * kTiles), half = (rest + 1) / 2;
    const int from = second ? first + half : first, to = second ? first + rest : first + half;
    const TA* a[kTiles];
    const bool wide = list_tiles(p, entry, end, to, from, second ? kTiles : 0, a, shared.columns);
    shrink_tiles<TX, TA, kTiles, kGroups, 2>(p, a, wide, x, count, 0, shared);
  }
}

template <class TX, class TA, Lookup kLookup>
__global__ void __launch_bounds__(kThreads, 1)
    decode_shrink_any_rank(const __grid_constant__ DecodeShrinkParams p) {
  __shared__ __align__(16) Shared shared;
  release_next();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const RowBlock block =
      find_decode_block<kLookup>(p.grouping, p.kind, static_cast<int>(blockIdx.x));
  if (block.slot < 0) return;
  EntryOfA<TA> entry{nullptr, 0, 0};
  if (lane < p.num_slices) {
    entry = read_entry<TA>(p.entries + block.slot * p.slot_stride + lane, p.max_rank);
  }
  const TX* x[2];
  rows_of_x<kLookup>(p, block, x, shared.rows);
  int end = (entry.rank + kTile - 1) / kTile;
#pragma unroll
  for (int step = 1; step < kMaxSlices; step *= 2) {
    const int other = __shfl_up_sync(kAll, end, step);
    if (lane >= step) end += other;
  }
  const int total = __shfl_sync(kAll, end, p.num_slices - 1);
  if (total == 0) return;
  // Few tiles: all warps share K. More: half of the warps has half of them, so that what a warp
  // asks for at a time stays 128 bytes of each row.
  if (total <= 3) {
    const TA* a[3];
    const bool wide = list_tiles(p, entry, end, total, 0, 0, a, shared.columns);
    shrink_tiles<TX, TA, 3, sizeof(TA) == 2 ? 4 : 2, 1>(p, a, wide, x, block.count, 0, shared);
    return;
  }
  constexpr int kShort = sizeof(TA) == 2 ? 1 : 2;  // of float32 half as much fits the registers
  if (total <= 8) {
    shrink_halves<TX, TA, 4, kShort == 1 ? 3 : 1>(p, entry, end, total, x, block.count, shared);
  } else if (total <= 12) {
    shrink_halves<TX, TA, 6, kShort == 1 ? 2 : 1>(p, entry, end, total, x, block.count, shared);
  } else if (total <= 16 && kShort == 1) {
    shrink_halves<TX, TA, 8, 2>(p, entry, end, total, x, block.count, shared);
  } else {
    shrink_halves<TX, TA, 12 / kShort, 1>(p, entry, end, total, x, block.count, shared);
  }
}

struct SumParams {
  const AdapterEntry* entries;
  std::int64_t slot_stride;
  Grouping grouping;
  SplitHidden h;
  float* out;
  std::int64_t out_stride;
  int kind;
  int num_slices;
  int max_rank;
};

__global__ void sum_rows(const __grid_constant__ SumParams p) {
  __shared__ int rows[kDecodeRows];
  const RowBlock block =
      find_decode_block<Lookup::any>(p.grouping, p.kind, static_cast<int>(blockIdx.x));
  if (block.slot < 0) return;
  const int row =
      decode_row<Lookup::any>(p.grouping, p.kind, block, static_cast<int>(threadIdx.x) % 32);
  if (threadIdx.x < kDecodeRows) rows[threadIdx.x] = row;
  __syncthreads();
  const int columns = p.num_slices * p.max_rank;
  for (int item = static_cast<int>(threadIdx.x); item < block.count * columns;
       item += static_cast<int>(blockDim.x)) {
    const int column = item % columns;
    const AdapterEntry& entry = p.entries[block.slot * p.slot_stride + column / p.max_rank];
    if (entry.a == nullptr || column % p.max_rank >= entry.rank) continue;
    const std::int64_t at = rows[item / columns];
    float sum = 0.0f;
    for (int split = 0; split < p.h.splits; ++split) {
      sum += p.h.data[split * p.h.split_stride + at * p.h.row_stride + column];
    }
    p.out[at * p.out_stride + column] = sum;
  }
}

template <class TX, class TA, int kPerSlice, Lookup kLookup>
Status launch_low_rank(const DecodeShrinkParams& p, dim3 grid, cudaStream_t stream) {
  switch (p.num_slices) {
    case 1:
      return launch(&decode_shrink_low_rank<TX, TA, 1, kPerSlice, kLookup>, grid, kThreads, stream,
                    p);
    case 2:
      return launch(&decode_shrink_low_rank<TX, TA, 2, kPerSlice, kLookup>, grid, kThreads, stream,
                    p);
    default:
      return launch(&decode_shrink_low_rank<TX, TA, 3, kPerSlice, kLookup>, grid, kThreads, stream,
                    p);
  }
}

template <class TX, class TA, Lookup kLookup>
Status launch_shrink(const DecodeShrinkParams& p, dim3 grid, cudaStream_t stream) {
  if constexpr (sizeof(TA) == 2) {
    if (p.num_slices <= 3 && p.max_rank <= kTile)
      return launch_low_rank<TX, TA, 1, kLookup>(p, grid, stream);
    if (p.num_slices <= 3 && p.max_rank <= 2 * kTile)
      return launch_low_rank<TX, TA, 2, kLookup>(p, grid, stream);
  }
  return launch(&decode_shrink_any_rank<TX, TA, kLookup>, grid, kThreads, stream, p);
}

template <class TX>
Status launch_shrink(const DecodeShrinkParams& p, DType a, dim3 grid, cudaStream_t stream) {
  if (a == DType::f32) return launch_shrink<TX, float, Lookup::any>(p, grid, stream);
  if (p.kind == Grouping::uniform) return launch_shrink<TX, TX, Lookup::uniform>(p, grid, stream);
  return launch_shrink<TX, TX, Lookup::any>(p, grid, stream);
}

}  // namespace

bool decode_shrink_takes(DType x, DType a) noexcept {
  return (x == DType::f16 || x == DType::bf16) && (a == x || a == DType::f32);
}

Status decode_shrink(const ConstTensorView& x, const AdapterTableView& table,
                     const Grouping& grouping, Grouping::Kind kind, std::int64_t blocks,
                     const SplitHidden& h, cudaStream_t stream) {
  const TableShape& shape = table.shape;
  if (blocks == 0 || shape.max_rank == 0 || shape.num_slots == 0) return {};
  const bool aligned = reinterpret_cast<std::uintptr_t>(x.data) % 16 == 0 && x.strides[0] % 8 == 0;
  const int groups = static_cast<int>(divide_up(shape.in, kGroup));
  const DecodeShrinkParams params{.x = x.data,
                                  .x_stride = x.strides[0],
                                  .entries = table.entries,
                                  .slot_stride = table.slot_stride,
                                  .grouping = grouping,
                                  .h = h,
                                  .in = static_cast<int>(shape.in),
                                  .groups = groups,
                                  .groups_of_split = groups / h.splits,
                                  .longer_splits = groups % h.splits,
                                  .kind = static_cast<int>(kind),
                                  .num_slices = shape.num_slices,
                                  .max_rank = shape.max_rank,
                                  .wide = aligned && shape.in % 8 == 0 ? 1 : 0};
  const dim3 grid = grid_of(blocks, h.splits);
  if (x.dtype == DType::f16) return launch_shrink<__half>(params, shape.a_dtype, grid, stream);
  return launch_shrink<__nv_bfloat16>(params, shape.a_dtype, grid, stream);
}

Status sum_splits(const SplitHidden& h, const AdapterTableView& table, const Grouping& grouping,
                  Grouping::Kind kind, std::int64_t blocks, const SplitHidden& out,
                  cudaStream_t stream) {
  if (blocks == 0 || table.shape.max_rank == 0 || table.shape.num_slots == 0) return {};
  return launch(&sum_rows, grid_of(blocks), 128, stream,
                SumParams{table.entries, table.slot_stride, grouping, h, out.data, out.row_stride,
                          static_cast<int>(kind), table.shape.num_slices, table.shape.max_rank});
}

RANKFOLD_CUDA_MODULE(decode_shrink)

}  // namespace cuda
RANKFOLD_NAMESPACE_END
