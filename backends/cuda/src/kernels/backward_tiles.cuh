// What the tensor-core kernels of backward are made of: 64 x 64 tiles in shared memory, Hopper's
// matrix instruction on them, and how blocks find their rows. Code for other architectures compiles
// to nothing.
#pragma once

#include <cstdint>

#include "async_copy.cuh"
#include "backward_tensor.hpp"
#include "backward_wgmma.cuh"
#include "rows.cuh"
#include "tensor.cuh"
#include "tensor_map.cuh"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {
namespace tiles {

constexpr int kThreads = 256;            ///< two warpgroups, each with its own columns
constexpr int kGroup = 128;              ///< threads of a warpgroup
constexpr int kRows = 64;                ///< rows of a stage
constexpr int kTileBytes = kRows * 128;  ///< 64 rows of 64 16-bit elements
constexpr int kOrderRows = 2048;         ///< row numbers kept in shared memory: a ring
constexpr std::uint32_t kSwizzledRow = 128;

// Rows of tiles are 128 bytes; their 16-byte pieces are permuted as the matrix instruction's
// 128-byte swizzle has it, so that neither rows nor columns collide in the banks.
__device__ __forceinline__ std::uint32_t tile_offset(int row, int piece) {
  return static_cast<std::uint32_t>(row) * kSwizzledRow +
         (static_cast<std::uint32_t>(piece ^ (row & 7)) << 4);
}

/// 16 bytes into shared memory: `count` (up to 8) elements, then zeros. Asynchronous where they are
/// aligned.
template <class T>
__device__ __forceinline__ void fetch_piece(std::uint32_t to, const T* from, int count,
                                            bool aligned) {
  if (aligned) {
    copy_16(to, from, 2 * count);
    return;
  }
#pragma unroll 1
  for (int e = 0; e < 8; ++e) {
    std::uint16_t bits = 0;
    if (e < count) memcpy(&bits, from + e, 2);
    asm volatile("st.shared.u16 [%0], %1;" ::"r"(to + 2 * e), "h"(bits) : "memory");
  }
}

__device__ __forceinline__ bool is_aligned_16(const void* data, std::int64_t stride) {
  return ((reinterpret_cast<std::uintptr_t>(data) | static_cast<std::uintptr_t>(2 * stride)) &
          15) == 0;
}
__device__ __forceinline__ void store_shared(std::uint32_t to, const uint4& v) {
  asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(to), "r"(v.x), "r"(v.y), "r"(v.z),
               "r"(v.w)
               : "memory");
}
__device__ __forceinline__ void store_shared(std::uint32_t to, std::uint32_t x, std::uint32_t y) {
  asm volatile("st.shared.v2.u32 [%0], {%1,%2};" ::"r"(to), "r"(x), "r"(y) : "memory");
}
__device__ __forceinline__ void store_shared(std::uint32_t to, std::uint32_t x) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(x) : "memory");
}
__device__ __forceinline__ std::uint32_t load_shared(std::uint32_t from) {
  std::uint32_t v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(from) : "memory");
  return v;
}
__device__ __forceinline__ uint4 load_shared_16(std::uint32_t from) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(from)
               : "memory");
  return v;
}

/// Rows of one slot that a block sums over.
struct RowChunk {
  int slot = -1;  ///< -1: there is no such chunk
  int first = 0;  ///< place of its first row in the order
  int count = 0;
  int partial =
      -1;  ///< index of its partial sums; -1: the slot has no other chunk, and the sum is whole
};

/// Sums over the lanes below, own included.
__device__ __forceinline__ int scan_lanes(int value, int lane) {
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int other = __shfl_up_sync(0xffffffffu, value, step);
    if (lane >= step) value += other;
  }
  return value;
}

struct SlotChunks {
  int begin = 0;
  int rows = 0;
  int chunks = 0;
  int partials = 0;
};
__device__ __forceinline__ SlotChunks chunks_of_slot(const SlotRuns& g, int chunk_rows, int slot) {
  SlotChunks found;
  if (slot >= g.num_slots) return found;
  found.begin = slot > 0 ? g.ends[slot - 1] : 0;
  found.rows = g.ends[slot] - found.begin;
  found.chunks = (found.rows + chunk_rows - 1) / chunk_rows;
  found.partials = found.chunks > 1 ? found.chunks : 0;
  return found;
}

/// The chunk of this index, the same in all lanes; all lanes of a warp call it.
__device__ inline RowChunk find_chunk(const SlotRuns& g, int chunk_rows, int index) {
  RowChunk found;
  if (g.ends == nullptr) {
    const std::int64_t first = static_cast<std::int64_t>(index) * chunk_rows;
    if (g.uniform_slot < 0 || g.uniform_slot >= g.num_slots || first >= g.num_rows) return found;
    found.slot = g.uniform_slot;
    found.first = static_cast<int>(first);
    found.count = min(chunk_rows, g.num_rows - found.first);
    found.partial = g.num_rows > chunk_rows ? index : -1;
    return found;
  }
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int chunks_before = 0, partials_before = 0;
  for (int base = 0; base < g.num_slots; base += 32) {
    const SlotChunks own = chunks_of_slot(g, chunk_rows, base + lane);
    const int chunks = scan_lanes(own.chunks, lane), partials = scan_lanes(own.partials, lane);
    const int at = index - (chunks_before + chunks - own.chunks);  // which of the lane's chunks
    const unsigned who = __ballot_sync(0xffffffffu, at >= 0 && at < own.chunks);
    if (who != 0) {
      const int source = __ffs(static_cast<int>(who)) - 1;
      const int nth = __shfl_sync(0xffffffffu, at, source);
      const int begin = __shfl_sync(0xffffffffu, own.begin, source);
      const int rows = __shfl_sync(0xffffffffu, own.rows, source);
      const int first_partial =
          __shfl_sync(0xffffffffu, partials_before + partials - own.partials, source);
      found.slot = base + source;
      found.first = begin + nth * chunk_rows;
      found.count = min(chunk_rows, rows - nth * chunk_rows);
      found.partial = rows > chunk_rows ? first_partial + nth : -1;
      return found;
    }
    chunks_before += __shfl_sync(0xffffffffu, chunks, 31);
    partials_before += __shfl_sync(0xffffffffu, partials, 31);
  }
  return found;
}

/// The rank that rows compute with: 0 where A or B is missing.
__device__ __forceinline__ int paired_rank(const AdapterEntry& entry, int max_rank) {
  return entry.a != nullptr && entry.b != nullptr ? bounded_rank(entry, max_rank) : 0;
}

/// Row numbers of a chunk, 1024 places read at a time.
struct RowNumbers {
  const std::int32_t* order;  ///< of the chunk's first row; null: rows follow one another
  std::int32_t* ring;         ///< shared, kOrderRows
  int first;
  int count;
  int num_rows;

  /// All threads. Seen after the next __syncthreads.
  __device__ void fill(int from) const {
#pragma unroll 1
    for (int i = from + static_cast<int>(threadIdx.x); i < from + kOrderRows / 2; i += kThreads) {
      if (i < count)
        ring[i % kOrderRows] = order == nullptr ? first + i : min(max(order[i], 0), num_rows - 1);
    }
  }
  /// Past the count: anything.
  __device__ int operator[](int place) const { return ring[place % kOrderRows]; }
};

/// Four rows of a tile, 16 apart, by each thread of a warpgroup: `bytes` (0 to 16) of the thread's
/// piece, zeros after them and in rows past the count.
template <class T>
__device__ __forceinline__ void fetch_rows(std::uint32_t tile, const RowNumbers& rows,
                                           int first_place, const T* from, std::int64_t stride,
                                           int bytes, bool aligned) {
  const int own = static_cast<int>(threadIdx.x) % kGroup, piece = own % 8, row = own / 8;
  // Rows 16 apart have one permutation.
  const std::uint32_t to = tile + tile_offset(row, piece);
  if (aligned) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int place = first_place + row + 16 * i, there = place < rows.count ? bytes : 0;
      copy_16(to + i * 16 * kSwizzledRow, there > 0 ? from + rows[place] * stride : from, there);
    }
    return;
  }
#pragma unroll 1
  for (int i = 0; i < 4; ++i) {
    const int place = first_place + row + 16 * i, there = place < rows.count ? bytes : 0;
    fetch_piece(to + i * 16 * kSwizzledRow, there > 0 ? from + rows[place] * stride : from,
                there / 2, false);
  }
}

/// Four floats, or zeros; no branch, so that nothing waits for them before they are used.
__device__ __forceinline__ float4 load_4_if(bool condition, const float* from) {
  float4 v;
  asm volatile(
      "{\n .reg .pred p;\n setp.ne.b32 p, %5, 0;\n mov.f32 %0, 0f00000000;\n mov.f32 %1, "
      "0f00000000;\n"
      " mov.f32 %2, 0f00000000;\n mov.f32 %3, 0f00000000;\n @p ld.global.v4.f32 {%0,%1,%2,%3}, "
      "[%4];\n}"
      : "=&f"(v.x), "=&f"(v.y), "=&f"(v.z), "=&f"(v.w)
      : "l"(from), "r"(static_cast<int>(condition))
      : "memory");
  return v;
}
/// One, or 1.
__device__ __forceinline__ float load_or_one(bool condition, const float* from) {
  float v;
  asm volatile(
      "{\n .reg .pred p;\n setp.ne.b32 p, %2, 0;\n mov.f32 %0, 0f3F800000;\n @p ld.global.f32 %0, "
      "[%1];\n}"
      : "=&f"(v)
      : "l"(from), "r"(static_cast<int>(condition))
      : "memory");
  return v;
}

/// One thread's share of 64 rows of a float32 matrix (h or ds) on its way into two tiles, high and
/// low parts: row threadIdx / 4 and kColumns / 4 columns of it. Up to 32 columns both parts stand
/// in one tile, side by side.
template <class T, int kColumns>
struct SplitLoader {
  static constexpr int kOwn = kColumns / 4;
  static constexpr int kBytes = kColumns == 64 ? 2 * kTileBytes : kTileBytes;
  static constexpr std::uint32_t kLow =
      kColumns == 64 ? kTileBytes : kColumns * 2;  // where low parts begin

  const float* data;  ///< first column of row 0, 16-byte aligned like every row
  std::int64_t stride;
  int limit;             ///< columns that exist in memory from data on, rounded up to 4
  std::uint32_t valid;   ///< of the own columns: which count; the others are zeros
  const float* weights;  ///< a factor a row, or null
  float scaling;
  float values[kOwn];
  float weight;

  /// Places are rows of the matrix, or have their numbers in `rows`.
  template <bool kByNumber>
  __device__ void load(const RowNumbers& rows, int first_place) {
    const int place = first_place + static_cast<int>(threadIdx.x) / 4,
              column = static_cast<int>(threadIdx.x) % 4 * kOwn;
    const bool there = place < rows.count && valid != 0;
    const std::int64_t row = !there ? 0 : kByNumber ? rows[place] : rows.first + place;
    weight = load_or_one(there && weights != nullptr, weights + row);
    const float* const from = data + row * stride + column;
#pragma unroll
    for (int i = 0; i < kOwn; i += 4) {
      const float4 four = load_4_if(there && column + i < limit, from + i);
      values[i] = four.x;
      values[i + 1] = four.y;
      values[i + 2] = four.z;
      values[i + 3] = four.w;
    }
  }
  __device__ float value(int i) const {
    return (valid >> i) & 1 ? scaling * weight * values[i] : 0.0f;
  }
  /// Into the tile at `to`; scale is a power of two.
  __device__ void store(std::uint32_t to, float scale) const {
    const int row = static_cast<int>(threadIdx.x) / 4,
              column = static_cast<int>(threadIdx.x) % 4 * kOwn;
    const std::uint32_t low_tile = kColumns == 64 ? to + kTileBytes : to;
    constexpr int kStep = kOwn < 8 ? 4 : 8;  // of 16-byte pieces, where a thread has whole ones
#pragma unroll
    for (int i = 0; i < kOwn; i += kStep) {
      std::uint32_t high[4] = {}, low[4] = {};
#pragma unroll
      for (int j = 0; j < kStep / 2; ++j) {
        split_pair<T>(value(i + 2 * j) * scale, value(i + 2 * j + 1) * scale, high[j], low[j]);
      }
      const int high_at = (column + i) * 2,
                low_at = kColumns == 64 ? high_at : high_at + kColumns * 2;
      if constexpr (kStep == 8) {
        store_shared(to + tile_offset(row, high_at / 16),
                     make_uint4(high[0], high[1], high[2], high[3]));
        store_shared(low_tile + tile_offset(row, low_at / 16),
                     make_uint4(low[0], low[1], low[2], low[3]));
      } else {
        store_shared(to + tile_offset(row, high_at / 16) + high_at % 16, high[0], high[1]);
        store_shared(low_tile + tile_offset(row, low_at / 16) + low_at % 16, low[0], low[1]);
      }
    }
    publish_to_matrices();
  }
};

/// A power of two that brings the largest finite value of a chunk near 2^14, for f16's narrow
/// range. All threads call it. `words`: 8 of shared memory.
template <int kLoaders, bool kByNumber, class Loader>
__device__ float chunk_scale(Loader* loaders, const RowNumbers& rows, std::uint32_t* words) {
  std::uint32_t most = 0;
  for (int place = 0; place < rows.count; place += kRows) {
    if (place % (kOrderRows / 2) == 0 && place > 0) {
      __syncthreads();
      rows.fill(place);
      __syncthreads();
    }
#pragma unroll
    for (int g = 0; g < kLoaders; ++g) {
      loaders[g].template load<kByNumber>(rows, place);
#pragma unroll
      for (int i = 0; i < Loader::kOwn; ++i) {
        const std::uint32_t bits = __float_as_uint(loaders[g].value(i)) & 0x7fffffffu;
        if (bits < 0x7f800000u) most = max(most, bits);
      }
    }
  }
  most = __reduce_max_sync(0xffffffffu, most);
  if (threadIdx.x % 32 == 0) words[threadIdx.x / 32] = most;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kThreads / 32; ++i) most = max(most, words[i]);
  __syncthreads();
  const int exponent = static_cast<int>(most >> 23) - 127;
  return most == 0 ? 1.0f : exp2f(static_cast<float>(min(max(14 - exponent, -120), 120)));
}

/// Four ranks of a row as high and low parts: 64 of each a row.
__device__ __forceinline__ void put_parts(__nv_bfloat16* split, std::int64_t place, int rank,
                                          const float4& v) {
  std::uint32_t high[2], low[2];
  split_pair<__nv_bfloat16>(v.x, v.y, high[0], low[0]);
  split_pair<__nv_bfloat16>(v.z, v.w, high[1], low[1]);
  __nv_bfloat16* const to = split + place * 2 * kTileMaxRank + rank;
  *reinterpret_cast<uint2*>(to) = make_uint2(high[0], high[1]);
  *reinterpret_cast<uint2*>(to + kTileMaxRank) = make_uint2(low[0], low[1]);
}

}  // namespace tiles
}  // namespace cuda
RANKFOLD_NAMESPACE_END
