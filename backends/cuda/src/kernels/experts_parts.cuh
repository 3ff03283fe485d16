// What the fused experts' kernel loads and multiplies. Weights, x and y go from memory straight into the places
// that the matrix instruction wants: the order of k is free where both operands agree, and rows of B are permuted
// so that a lane ends with eight neighbours of y.
#pragma once

#include "elements.cuh"
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

template <int kBytes>
__device__ __forceinline__ void copy_async(void* to, const void* from, bool wanted) {
  const auto address = static_cast<unsigned>(__cvta_generic_to_shared(to));
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(wanted ? 16 : 0)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(address), "l"(from), "r"(wanted ? 8 : 0)
                 : "memory");
  }
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kLeft>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

// What a lane needs next is on its way in shared memory and needs no registers. Each lane reads back what it has
// asked for itself, so that nobody waits for another. What stands anywhere, or ends early, comes by elements.

/// 8 elements of T, `count` of them there; zeros after.
template <bool kWide, class T>
__device__ __forceinline__ void ask_eight(uint4* to, const T* from, int count) {
  if constexpr (kWide) {
    copy_async<16>(to, from, count > 0);
  } else {
    *to = load_elements(from, count);
  }
}
/// 4 elements.
template <bool kWide, class T>
__device__ __forceinline__ void ask_four(uint2* to, const T* from, int count) {
  if constexpr (kWide) {
    copy_async<8>(to, from, count > 0);
  } else {
    const uint4 v = load_elements(from, min(count, 4));
    *to = make_uint2(v.x, v.y);
  }
}

/// Eight neighbours of a row of y.
template <class TY>
struct Eight {
  static constexpr int kQuads = static_cast<int>(sizeof(TY)) / 2;  // of 16 bytes
  std::uint32_t v[kQuads * 4];

  /// Quads stand 32 apart.
  template <bool kWide>
  static __device__ __forceinline__ void ask(uint4* to, const TY* from, int count) {
    if constexpr (sizeof(TY) == 2) {
      ask_eight<kWide>(to, from, count);
    } else if constexpr (kWide) {
      copy_async<16>(to, from, count > 0);
      copy_async<16>(to + 32, from + 4, count > 0);
    } else {
      float e[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) e[i] = i < count ? from[i] : 0.0f;
      *reinterpret_cast<float4*>(to) = make_float4(e[0], e[1], e[2], e[3]);
      *reinterpret_cast<float4*>(to + 32) = make_float4(e[4], e[5], e[6], e[7]);
    }
  }
  __device__ __forceinline__ void take(const uint4* from) {
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
      const uint4 q = from[i * 32];
      v[4 * i] = q.x, v[4 * i + 1] = q.y, v[4 * i + 2] = q.z, v[4 * i + 3] = q.w;
    }
  }
  /// v + f d, or f d; even[j] is column 2j of d, odd[j] column 2j + 1.
  __device__ __forceinline__ void add(bool overwrites, float f, const float (&even)[4], const float (&odd)[4]) {
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
          reinterpret_cast<uint4*>(p)[i] = make_uint4(v[4 * i], v[4 * i + 1], v[4 * i + 2], v[4 * i + 3]);
        }
      }
      return;
    }
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
};

/// An entry as a block keeps it, in shared memory.
struct SliceOfBlock {
  const void* a;
  const void* b;
  std::int64_t a_stride, b_stride;
  int rank;
  float scaling;
  int is_wide;  // a, b and y
};

__device__ inline SliceOfBlock read_slice(const AdapterEntry& entry, int max_rank, bool y_is_wide) {
  SliceOfBlock s;
  s.a = entry.a;
  s.b = entry.b;
  s.a_stride = entry.a_row_stride;
  s.b_stride = entry.b_row_stride;
  s.scaling = entry.scaling;
  const int rank = min(max(entry.rank, 0), max_rank);
  s.rank = s.a != nullptr && s.b != nullptr ? rank : 0;
  s.is_wide = s.rank == 0 ||
              (y_is_wide && reinterpret_cast<std::uintptr_t>(s.a) % 16 == 0 && s.a_stride % 8 == 0 &&
               reinterpret_cast<std::uintptr_t>(s.b) % 8 == 0 && s.b_stride % 4 == 0 && rank % 4 == 0);
  return s;
}

template <class T, int kTiles>
__device__ __forceinline__ void multiply_step(float (&acc)[kTiles][4], const uint4 (&a)[kTiles][2], const uint4& x) {
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
    multiply<T>(acc[i], a[i][0].x, a[i][1].x, a[i][0].y, a[i][1].y, x.x, x.y);
    multiply<T>(acc[i], a[i][0].z, a[i][1].z, a[i][0].w, a[i][1].w, x.z, x.w);
  }
}

/// acc[n][i] += A tile i x (token tile n) over a warp's k, 32 a step. x: a pointer a token, in shared memory.
template <class T, int kTokenTiles, int kTiles, int kStages>
struct Ring {
  static constexpr int kPieces = kTiles * 2 + kTokenTiles;  // 16 bytes of each lane
  uint4* lane_ring;  // the warp's, at the lane
  int k, end;        // k of the lane

  __device__ __forceinline__ Ring(uint4* of_warp, int begin, int end_of_warp)
      : lane_ring(of_warp + threadIdx.x % 32),
        k(begin + static_cast<int>(threadIdx.x) % 4 * 8),
        end(end_of_warp) {}

  template <bool kWide>
  __device__ __forceinline__ void ask_a(const T* const (&a)[kTiles][2], int step, int stage) {
    const int at = k + step * 32;
#pragma unroll
    for (int i = 0; i < kTiles * 2; ++i) {
      const T* const row = a[i / 2][i % 2];
      ask_eight<kWide>(lane_ring + (stage * kPieces + i) * 32, row + at, row != nullptr ? end - at : 0);
    }
  }
  template <bool kWide>
  __device__ __forceinline__ void ask_x(const void* const* x, int token_tiles, int step, int stage) {
    const int at = k + step * 32;
#pragma unroll
    for (int n = 0; n < kTokenTiles; ++n) {
      if (kTokenTiles > 1 && n >= token_tiles) break;
      const T* const row = static_cast<const T*>(x[n * 8 + static_cast<int>(threadIdx.x) % 32 / 4]);
      ask_eight<kWide>(lane_ring + (stage * kPieces + kTiles * 2 + n) * 32, row + at, end - at);
    }
  }
  template <bool kWide>
  __device__ __forceinline__ void begin(const T* const (&a)[kTiles][2]) {
#pragma unroll 1
    for (int i = 0; i < kStages - 1; ++i) ask_a<kWide>(a, i, i);
  }
  /// After begin().
  template <bool kWide>
  __device__ __forceinline__ void run(float (&acc)[kTokenTiles][kTiles][4], const T* const (&a)[kTiles][2],
                                      const void* const* x, int token_tiles, int steps) {
#pragma unroll 1
    for (int i = 0; i < kStages - 1; ++i) {
      ask_x<kWide>(x, token_tiles, i, i);
      commit_copies();
    }
    int stage = 0;
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      wait_for_copies<kStages - 2>();
      if (step + kStages - 1 < steps) {
        const int last = stage == 0 ? kStages - 1 : stage - 1;
        ask_a<kWide>(a, step + kStages - 1, last);
        ask_x<kWide>(x, token_tiles, step + kStages - 1, last);
      }
      commit_copies();
      const uint4* const from = lane_ring + stage * kPieces * 32;
      uint4 av[kTiles][2];
#pragma unroll
      for (int i = 0; i < kTiles * 2; ++i) av[i / 2][i % 2] = from[i * 32];
#pragma unroll
      for (int n = 0; n < kTokenTiles; ++n) {
        if (kTokenTiles > 1 && n >= token_tiles) break;
        multiply_step<T>(acc[n], av, from[(kTiles * 2 + n) * 32]);
      }
      stage = stage + 1 == kStages ? 0 : stage + 1;
    }
    wait_for_copies<0>();  // zeros, where k ended early
  }
};

/// 64 columns of B at one rank tile, as operands; zero past the columns and past the rank. To 8 places 32 apart.
template <bool kWide, class T>
__device__ __forceinline__ void ask_b(uint2* to, const SliceOfBlock& slice, int column, int out, int rank_tile) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int k = rank_tile * 16 + lane % 4 * 4;
  const int first = column + lane / 4 * 8;
  const std::int64_t stride = slice.b_stride;
  const T* p = static_cast<const T*>(slice.b) + first * stride + k;
  const int left = out - first, count = slice.rank - k;
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    ask_four<kWide>(to + j * 32, p, j < left ? count : 0);
    p += stride;
  }
}

/// h of a rank tile and a token as parts of T: 4 ranks a lane.
template <class T>
struct HiddenParts {
  uint4 high_low;  // high 0 1, high 2 3, low 0 1, low 2 3
  uint2 rest;      // bf16: what both leave
  /// c += 16 rows of B, two neighbours a lane.
  __device__ __forceinline__ void multiply_into(float (&c)[4], uint2 b0, uint2 b1) const {
    multiply<T>(c, b0.x, b1.x, b0.y, b1.y, high_low.x, high_low.y);
    multiply<T>(c, b0.x, b1.x, b0.y, b1.y, high_low.z, high_low.w);
    if constexpr (!std::is_same_v<T, __half>) multiply<T>(c, b0.x, b1.x, b0.y, b1.y, rest.x, rest.y);
  }
};
template <class T>
__device__ __forceinline__ void split_hidden(const float4& h, uint4& high_low, uint2& rest) {
  split_pair<T>(h.x, h.y, high_low.x, high_low.z);
  split_pair<T>(h.z, h.w, high_low.y, high_low.w);
  if constexpr (!std::is_same_v<T, __half>) {
    // Three parts of bf16 are 24 bits: two would leave small results of large terms short of their last bit.
    const auto left = [](float v, std::uint32_t high, std::uint32_t low, int half) {
      const auto part = [&](std::uint32_t bits) {
        return __uint_as_float(half == 0 ? bits << 16 : bits & 0xffff0000u);
      };
      const float without_high = v == part(high) ? 0.0f : v - part(high);
      return without_high == part(low) ? 0.0f : without_high - part(low);
    };
    rest.x = narrow_pair<T>(left(h.x, high_low.x, high_low.z, 0), left(h.y, high_low.x, high_low.z, 1));
    rest.y = narrow_pair<T>(left(h.z, high_low.y, high_low.w, 0), left(h.w, high_low.y, high_low.w, 1));
  }
}

__device__ __forceinline__ float power_of_two(int exponent) {
  return __uint_as_float(static_cast<unsigned>(exponent + 127) << 23);
}
/// The power of two that takes the largest of a row's h to [2^14, 2^15): there f16 has room for both parts.
__device__ __forceinline__ int scale_for_f16(float largest) {
  if (!(largest > 0.0f) || largest > 3.0e38f) return 0;
  const int exponent = static_cast<int>(__float_as_uint(largest) >> 23) - 127;
  return min(max(14 - exponent, -126), 126);
}

}  // namespace experts
}  // namespace cuda
RANKFOLD_NAMESPACE_END
