// What the fused experts' kernel loads and multiplies. Weights, x and y go from memory straight
// into the places that the matrix instruction wants: the order of k is free where both operands
// agree, and rows of B are permuted so that a lane ends with eight neighbours of y.
#pragma once

#include "async_copy.cuh"
#include "elements.cuh"
#include "experts_rows.cuh"
#include "rankfold/adapter_table.hpp"
#include "tensor.cuh"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {
namespace experts {

/// Up to 8 elements, zero past the count.
template <class T>
__device__ __forceinline__ uint4 load_elements(const T* p, int count) {
  std::uint32_t v[4] = {};
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    std::uint16_t bits = 0;
    if (i < count) memcpy(&bits, p + i, 2);
    v[i / 2] |= static_cast<std::uint32_t>(bits) << (i % 2 * 16);
  }
  return make_uint4(v[0], v[1], v[2], v[3]);
}

// Shared memory by its own 32-bit addresses: a generic pointer would be made anew at each use.
__device__ __forceinline__ uint4 take_16(unsigned from) {
  uint4 v;
  asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(from)
               : "memory");
  return v;
}
__device__ __forceinline__ uint2 take_8(unsigned from) {
  uint2 v;
  asm volatile("ld.shared.v2.b32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(from) : "memory");
  return v;
}
template <class P>
__device__ __forceinline__ P* take_pointer(unsigned from) {
  std::uint64_t v;
  asm volatile("ld.shared.b64 %0, [%1];" : "=l"(v) : "r"(from) : "memory");
  return reinterpret_cast<P*>(v);
}
__device__ __forceinline__ void put_16(unsigned to, uint4 v) {
  asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(to), "r"(v.x), "r"(v.y), "r"(v.z),
               "r"(v.w)
               : "memory");
}
__device__ __forceinline__ void put_8(unsigned to, uint2 v) {
  asm volatile("st.shared.v2.b32 [%0], {%1,%2};" ::"r"(to), "r"(v.x), "r"(v.y) : "memory");
}
// What a lane needs next is on its way in shared memory and needs no registers. Each lane reads
// back what it has asked for itself, so that nobody waits for another. What stands anywhere, or
// ends early, comes by elements.

/// 8 elements of T, `count` of them there; zeros after.
template <bool kWide, class T>
__device__ __forceinline__ void ask_eight(unsigned to, const T* from, int count) {
  if constexpr (kWide) {
    copy_16(to, from, count > 0 ? 16 : 0);
  } else {
    put_16(to, load_elements(from, count));
  }
}
/// 4 elements.
template <bool kWide, class T>
__device__ __forceinline__ void ask_four(unsigned to, const T* from, int count) {
  if constexpr (kWide) {
    copy_8(to, from, count > 0 ? 8 : 0);
  } else {
    const uint4 v = load_elements(from, min(count, 4));
    put_8(to, make_uint2(v.x, v.y));
  }
}

/// Eight neighbours of a row of y.
template <class TY>
struct Eight {
  static constexpr int kQuads = static_cast<int>(sizeof(TY)) / 2;  // of 16 bytes
  std::uint32_t v[kQuads * 4];

  /// Quads stand 512 bytes apart.
  template <bool kWide>
  static __device__ __forceinline__ void ask(unsigned to, const TY* from, int count) {
    if constexpr (kWide) {
#pragma unroll
      for (int i = 0; i < kQuads; ++i)
        copy_16(to + i * 512, reinterpret_cast<const uint4*>(from) + i, count > 0 ? 16 : 0);
    } else if constexpr (sizeof(TY) == 2) {
      put_16(to, load_elements(from, count));
    } else {
      std::uint32_t e[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) e[i] = i < count ? __float_as_uint(from[i]) : 0;
      put_16(to, make_uint4(e[0], e[1], e[2], e[3]));
      put_16(to + 512, make_uint4(e[4], e[5], e[6], e[7]));
    }
  }
  __device__ __forceinline__ void take(unsigned from) {
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
      const uint4 q = take_16(from + i * 512);
      v[4 * i] = q.x, v[4 * i + 1] = q.y, v[4 * i + 2] = q.z, v[4 * i + 3] = q.w;
    }
  }
  /// v + f d, or f d; even[j] is column 2j of d, odd[j] column 2j + 1.
  __device__ __forceinline__ void add(bool overwrites, float f, const float (&even)[4],
                                      const float (&odd)[4]) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float2 old;
      if constexpr (sizeof(TY) == 4) {
        old = make_float2(__uint_as_float(v[2 * j]), __uint_as_float(v[2 * j + 1]));
      } else {
        old = widen_pair<TY>(v[j]);
      }
      const float d0 = f * even[j], d1 = f * odd[j];
      const float s0 = overwrites ? d0 : old.x + d0, s1 = overwrites ? d1 : old.y + d1;
      if constexpr (sizeof(TY) == 4) {
        v[2 * j] = __float_as_uint(s0), v[2 * j + 1] = __float_as_uint(s1);
      } else {
        v[j] = narrow_pair<TY>(s0, s1);
      }
    }
  }
  template <bool kWide>
  __device__ __forceinline__ void store(TY* p, int count) const {
    if constexpr (kWide) {
      if (count > 0) {
#pragma unroll
        for (int i = 0; i < kQuads; ++i) {
          reinterpret_cast<uint4*>(p)[i] =
              make_uint4(v[4 * i], v[4 * i + 1], v[4 * i + 2], v[4 * i + 3]);
        }
      }
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        if (i >= count) break;
        if constexpr (sizeof(TY) == 4) {
          p[i] = __uint_as_float(v[i]);
        } else {
          const auto bits = static_cast<std::uint16_t>(v[i / 2] >> (i % 2 * 16));
          memcpy(p + i, &bits, 2);
        }
      }
    }
  }
};

/// An entry as a block keeps it, in shared memory.
struct SliceOfBlock {
  const void* a;
  const void* b;
  std::int64_t a_stride, b_stride;
  std::int64_t y_column;
  int rank;
  int out;
  float scaling;
  int is_wide;  // a, b and y
};

__device__ inline SliceOfBlock read_slice(const AdapterEntry& entry, const Params& p, int slice) {
  SliceOfBlock s;
  s.out = p.out[slice];
  s.y_column = p.y_column[slice];
  const bool y_is_wide = (p.y_is_wide >> slice) & 1;
  s.a = entry.a;
  s.b = entry.b;
  s.a_stride = entry.a_row_stride;
  s.b_stride = entry.b_row_stride;
  s.scaling = entry.scaling;
  const int rank = min(max(entry.rank, 0), p.max_rank);
  s.rank = s.a != nullptr && s.b != nullptr ? rank : 0;
  s.is_wide =
      s.rank == 0 ||
      (y_is_wide && reinterpret_cast<std::uintptr_t>(s.a) % 16 == 0 && s.a_stride % 8 == 0 &&
       reinterpret_cast<std::uintptr_t>(s.b) % 8 == 0 && s.b_stride % 4 == 0 && rank % 4 == 0);
  return s;
}

/// a: operands of two instructions a tile.
template <class T, int kTiles>
__device__ __forceinline__ void multiply_step(float (&acc)[kTiles][4], const uint4 (&a)[kTiles][2],
                                              const uint4& x) {
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
    multiply<T>(acc[i], a[i][0].x, a[i][0].y, a[i][0].z, a[i][0].w, x.x, x.y);
    multiply<T>(acc[i], a[i][1].x, a[i][1].y, a[i][1].z, a[i][1].w, x.z, x.w);
  }
}

/// acc[n][i] += A tile i x (token tile n) over a warp's k: 32 a step, in turn with the other warps,
/// so that a block reads neighbours at a time.
template <class T, int kTokenTiles, int kWarps, int kTiles, int kStages>
struct Ring {
  static constexpr int kStep = kWarps * 32;                 // from a warp's k to its next
  static constexpr int kPieces = kTiles * 2 + kTokenTiles;  // 16 bytes of each lane
  static constexpr int kStageBytes = kPieces * 512;
  unsigned lane_ring;  // the warp's, at the lane
  int at, length;      // the k of A that is asked for next, and their end; from the warp's first
  const T* a[kTiles * 2];

  /// of_warp: the warp's part of shared memory.
  __device__ __forceinline__ Ring(const void* of_warp)
      : lane_ring(shared_address(of_warp) + threadIdx.x % 32 * 16) {}

  template <bool kWide>
  __device__ __forceinline__ void ask_a(int stage) {
#pragma unroll
    for (int i = 0; i < kTiles * 2; ++i) {
      ask_eight<kWide>(lane_ring + stage * kStageBytes + i * 512, a[i] + at,
                       a[i] != nullptr ? length - at : 0);
    }
    at += kStep;
  }
  template <bool kWide>
  __device__ __forceinline__ void ask_x(const T* (&x)[kTokenTiles], int& x_left, int token_tiles,
                                        int stage) {
#pragma unroll
    for (int n = 0; n < kTokenTiles; ++n) {
      ask_eight<kWide>(lane_ring + stage * kStageBytes + (kTiles * 2 + n) * 512, x[n],
                       n < token_tiles ? x_left : 0);
    }
#pragma unroll
    for (int n = 0; n < kTokenTiles; ++n) x[n] += kStep;
    x_left -= kStep;
  }
  /// rows: of A. from: the warp's first k; left: all from there on.
  template <bool kWide>
  __device__ __forceinline__ void begin(const T* const (&rows)[kTiles][2], int from, int left) {
    at = static_cast<int>(threadIdx.x) % 4 * 8;
    length = left;
#pragma unroll
    for (int i = 0; i < kTiles * 2; ++i)
      a[i] = rows[i / 2][i % 2] != nullptr ? rows[i / 2][i % 2] + from : nullptr;
#pragma unroll 1
    for (int i = 0; i < kStages - 1; ++i) ask_a<kWide>(i);
  }
  /// After begin(). x_rows: shared address of a pointer a token; from: the warp's first k.
  template <bool kWide>
  __device__ __forceinline__ void run(float (&acc)[kTokenTiles][kTiles][4], unsigned x_rows,
                                      int token_tiles, int from) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const T* x[kTokenTiles];
#pragma unroll
    for (int n = 0; n < kTokenTiles; ++n)
      x[n] = take_pointer<const T>(x_rows + (n * 8 + lane / 4) * 8) + from + lane % 4 * 8;
    int x_left = length - lane % 4 * 8;
#pragma unroll 1
    for (int i = 0; i < kStages - 1; ++i) {
      ask_x<kWide>(x, x_left, token_tiles, i);
      commit_copies();
    }
    const int steps = (length + kStep - 1) / kStep;
    int stage = 0;
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      wait_copies<kStages - 2>();
      const unsigned here = lane_ring + stage * kStageBytes;
      if (step + kStages - 1 < steps) {
        const int last = stage == 0 ? kStages - 1 : stage - 1;
        ask_a<kWide>(last);
        ask_x<kWide>(x, x_left, token_tiles, last);
      }
      commit_copies();
      uint4 av[kTiles][2];
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        const uint4 low = take_16(here + i * 1024), high = take_16(here + i * 1024 + 512);
        av[i][0] = make_uint4(low.x, high.x, low.y, high.y);
        av[i][1] = make_uint4(low.z, high.z, low.w, high.w);
      }
#pragma unroll
      for (int n = 0; n < kTokenTiles; ++n) {
        if (kTokenTiles > 1 && n >= token_tiles) break;
        multiply_step<T>(acc[n], av, take_16(here + (kTiles * 2 + n) * 512));
      }
      stage = stage + 1 == kStages ? 0 : stage + 1;
    }
    wait_copies<0>();
  }
};

/// 64 columns of B at one rank tile; zero past the columns and past the rank. To 8 places 256 bytes
/// apart.
template <bool kWide, class T>
__device__ __forceinline__ void ask_b(unsigned to, const SliceOfBlock& slice, int column,
                                      int rank_tile) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int k = rank_tile * 16 + lane % 4 * 4;
  const int first = column + lane / 4 * 8;
  const std::int64_t stride = slice.b_stride;
  const T* p = static_cast<const T*>(slice.b) + first * stride + k;
  const int left = slice.out - first, count = slice.rank - k;
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    ask_four<kWide>(to + j * 256, p, j < left ? count : 0);
    p += stride;
  }
}
/// As operands: rows 2j and 2j + 1 of the lane's eight.
__device__ __forceinline__ void take_b(uint4 (&b)[4], unsigned from) {
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const uint2 even = take_8(from + j * 512), odd = take_8(from + j * 512 + 256);
    b[j] = make_uint4(even.x, odd.x, even.y, odd.y);
  }
}

/// h of a rank tile and a token as parts of T: 4 ranks a lane.
template <class T>
struct HiddenParts {
  uint4 high_low;  // high 0 1, high 2 3, low 0 1, low 2 3
  uint2 rest;      // bf16: what both leave
  /// c += 16 rows of B, two neighbours a lane.
  __device__ __forceinline__ void multiply_into(float (&c)[4], const uint4& b) const {
    multiply<T>(c, b.x, b.y, b.z, b.w, high_low.x, high_low.y);
    multiply<T>(c, b.x, b.y, b.z, b.w, high_low.z, high_low.w);
    if constexpr (!std::is_same_v<T, __half>) multiply<T>(c, b.x, b.y, b.z, b.w, rest.x, rest.y);
  }
};
template <class T>
__device__ __forceinline__ void split_hidden(const float4& h, uint4& high_low, uint2& rest) {
  // Three parts of bf16 are 24 bits: two would leave small results of large terms short of their
  // last bit.
  constexpr int kParts = std::is_same_v<T, __half> ? 2 : 3;
  std::uint32_t first[kParts], second[kParts];
  split_pair<T>(h.x, h.y, first);
  split_pair<T>(h.z, h.w, second);
  high_low = make_uint4(first[0], second[0], first[1], second[1]);
  if constexpr (kParts == 3) rest = make_uint2(first[2], second[2]);
}

__device__ __forceinline__ float power_of_two(int exponent) {
  return __uint_as_float(static_cast<unsigned>(exponent + 127) << 23);
}
/// The power of two that takes the largest of a row's h to [2^14, 2^15): there f16 has room for
/// both parts.
__device__ __forceinline__ int scale_for_f16(float largest) {
  if (!(largest > 0.0f) || largest > 3.0e38f) return 0;
  const int exponent = static_cast<int>(__float_as_uint(largest) >> 23) - 127;
  return min(max(14 - exponent, -126), 126);
}

}  // namespace experts
}  // namespace cuda
RANKFOLD_NAMESPACE_END
