// What tensor-core kernels are made of: wide loads, matrix instructions, programmatic dependent
// launch.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "rankfold/export.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

/// Waits until the kernels before have finished and their writes are seen; nothing where the launch
/// was plain.
__device__ __forceinline__ void wait_for_previous() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
/// Lets the next kernel of the stream begin, if it was launched to overlap.
__device__ __forceinline__ void release_next() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// 16 bytes of what no kernel in flight writes and one block reads once: weights. Volatile, as the
/// compiler would move a plain read-only load below a wait.
__device__ __forceinline__ uint4 load_once(const void* p) {
  uint4 v;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p)
               : "memory");
  return v;
}
/// 16 bytes that other warps of the block read, too.
__device__ __forceinline__ uint4 load_shared_use(const void* p) {
  uint4 v;
  asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p)
               : "memory");
  return v;
}

/// Where not wanted v stays what it is. Predicated rather than branched round, so that many are in
/// flight at once.
template <bool kOnce>
__device__ __forceinline__ void load_into_if(uint4& v, bool wanted, const void* p) {
  if constexpr (kOnce) {
    asm volatile(
        "{ .reg .pred p; setp.ne.s32 p, %5, 0; @p ld.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, "
        "[%4]; }"
        : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w)
        : "l"(p), "r"(static_cast<int>(wanted))
        : "memory");
  } else {
    asm volatile("{ .reg .pred p; setp.ne.s32 p, %5, 0; @p ld.global.v4.u32 {%0,%1,%2,%3}, [%4]; }"
                 : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w)
                 : "l"(p), "r"(static_cast<int>(wanted))
                 : "memory");
  }
}
__device__ __forceinline__ void load_into_8_if(uint2& v, bool wanted, const void* p) {
  asm volatile(
      "{ .reg .pred p; setp.ne.s32 p, %3, 0; @p ld.global.L1::no_allocate.v2.u32 {%0,%1}, [%2]; }"
      : "+r"(v.x), "+r"(v.y)
      : "l"(p), "r"(static_cast<int>(wanted))
      : "memory");
}

/// Four floats that the kernel before wrote: from the second level of cache, as the first may hold
/// what was there.
__device__ __forceinline__ float4 load_partial_if(bool wanted, const float* p) {
  float4 v;
  asm volatile(
      "{ .reg .pred p; setp.ne.s32 p, %5, 0; mov.f32 %0, 0f00000000; mov.f32 %1, 0f00000000; "
      "mov.f32 %2, 0f00000000; mov.f32 %3, 0f00000000; @p ld.global.cg.v4.f32 {%0,%1,%2,%3}, [%4]; "
      "}"
      : "=&f"(v.x), "=&f"(v.y), "=&f"(v.z), "=&f"(v.w)
      : "l"(p), "r"(static_cast<int>(wanted))
      : "memory");
  return v;
}

/// c += a b of m16n8k16. Lane 4g + t has of a rows g, g + 8 and of b column g, at the same four
/// places of k; of c rows g (c[0], c[1]) and g + 8 (c[2], c[3]) at columns 2t, 2t + 1. Which k
/// stand at the places is the caller's choice, as long as a and b agree.
template <class T>
__device__ __forceinline__ void multiply(float (&c)[4], std::uint32_t a0, std::uint32_t a1,
                                         std::uint32_t a2, std::uint32_t a3, std::uint32_t b0,
                                         std::uint32_t b1) {
  if constexpr (std::is_same_v<T, __half>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  }
}
/// The same of m16n8k8 with TF32 operands (float32 bits, 10 of the mantissa used).
__device__ __forceinline__ void multiply_tf32(float (&c)[4], std::uint32_t a0, std::uint32_t a1,
                                              std::uint32_t a2, std::uint32_t a3, std::uint32_t b0,
                                              std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/// value = high + low to 22 bits: two TF32 operands.
__device__ __forceinline__ void split_tf32(float value, std::uint32_t& high, std::uint32_t& low) {
  high = __float_as_uint(value) & 0xffffe000u;
  const float rounded = __uint_as_float(high);
  low = __float_as_uint(value == rounded ? 0.0f : value - rounded);  // infinity stays infinity
}

template <class T>
__device__ __forceinline__ float2 widen_pair(std::uint32_t bits) {
  if constexpr (std::is_same_v<T, __half>) {
    __half2 pair;
    memcpy(&pair, &bits, 4);
    return __half22float2(pair);
  } else {
    return make_float2(__uint_as_float(bits << 16), __uint_as_float(bits & 0xffff0000u));
  }
}
template <class T>
__device__ __forceinline__ std::uint32_t narrow_pair(float first, float second) {
  std::uint32_t bits;
  if constexpr (std::is_same_v<T, __half>) {
    const __half2 pair = __floats2half2_rn(first, second);
    memcpy(&bits, &pair, 4);
  } else {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
    memcpy(&bits, &pair, 4);
  }
  return bits;
}
/// Two values as sums of parts of T, the first the largest: two parts hold 16 bits for bf16 and 22
/// for f16 (within its range), three hold all 24 of a float32 for bf16.
template <class T, int kParts>
__device__ __forceinline__ void split_pair(float first, float second,
                                           std::uint32_t (&parts)[kParts]) {
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    parts[i] = narrow_pair<T>(first, second);
    const float2 back = widen_pair<T>(parts[i]);
    // Infinity less itself would be NaN.
    first = first == back.x ? 0.0f : first - back.x;
    second = second == back.y ? 0.0f : second - back.y;
  }
}

/// Two parts.
template <class T>
__device__ __forceinline__ void split_pair(float first, float second, std::uint32_t& high,
                                           std::uint32_t& low) {
  std::uint32_t parts[2];
  split_pair<T>(first, second, parts);
  high = parts[0];
  low = parts[1];
}

}  // namespace cuda
RANKFOLD_NAMESPACE_END
