// Loads of the kernels of many rows by whole words.
#pragma once

#include <cstdint>

#include "wgmma.cuh"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

/// Eight words from a multiple of 16 bytes, four and four.
__device__ __forceinline__ void load_words_if(std::uint32_t (&v)[8], bool first, bool second,
                                              const void* p) {
  asm volatile(
      "{ .reg .pred p, q; setp.ne.s32 p, %9, 0; setp.ne.s32 q, %10, 0; "
      "@p ld.global.v4.u32 {%0,%1,%2,%3}, [%8]; @q ld.global.v4.u32 {%4,%5,%6,%7}, [%8+16]; }"
      : "+r"(v[0]), "+r"(v[1]), "+r"(v[2]), "+r"(v[3]), "+r"(v[4]), "+r"(v[5]), "+r"(v[6]),
        "+r"(v[7])
      : "l"(p), "r"(static_cast<int>(first)), "r"(static_cast<int>(second))
      : "memory");
}

/// Four words from a multiple of 16 bytes; volatile, so that the assembler leaves the load where it
/// stands.
__device__ __forceinline__ void load_four_in_order(std::uint32_t (&v)[4], bool there,
                                                   const void* p) {
  asm volatile(
      "{ .reg .pred p; setp.ne.s32 p, %5, 0; @p ld.volatile.global.v4.u32 {%0,%1,%2,%3}, [%4]; }"
      : "+r"(v[0]), "+r"(v[1]), "+r"(v[2]), "+r"(v[3])
      : "l"(p), "r"(static_cast<int>(there))
      : "memory");
}
/// The same by way of the first level of cache, of which another load takes the other half of a
/// sector.
__device__ __forceinline__ void load_four_if(std::uint32_t (&v)[4], bool there, const void* p) {
  asm volatile(
      "{ .reg .pred p; setp.ne.s32 p, %5, 0; @p ld.relaxed.cta.global.v4.u32 {%0,%1,%2,%3}, [%4]; }"
      : "+r"(v[0]), "+r"(v[1]), "+r"(v[2]), "+r"(v[3])
      : "l"(p), "r"(static_cast<int>(there))
      : "memory");
}

__device__ __forceinline__ void store_shared_8(std::uint32_t to, const std::uint32_t (&v)[2]) {
  asm volatile("st.volatile.shared.v2.u32 [%0], {%1,%2};" ::"r"(to), "r"(v[0]), "r"(v[1])
               : "memory");
}
__device__ __forceinline__ void load_shared_8(std::uint32_t (&v)[2], std::uint32_t from) {
  asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(v[0]), "=r"(v[1]) : "r"(from) : "memory");
}

/// Addresses in shared memory, of rows that many threads read.
__device__ __forceinline__ void store_address(std::uint32_t to, const void* address) {
  asm volatile("st.shared.u64 [%0], %1;" ::"r"(to),
               "l"(reinterpret_cast<unsigned long long>(address))
               : "memory");
}
template <class T>
__device__ __forceinline__ const T* load_address(std::uint32_t from) {
  unsigned long long address;
  asm volatile("ld.shared.u64 %0, [%1];" : "=l"(address) : "r"(from) : "memory");
  return reinterpret_cast<const T*>(address);
}

/// Two values as sums of two parts of T; the smaller part of an infinity is NaN.
template <class T>
__device__ __forceinline__ void split_finite(float first, float second, std::uint32_t& high,
                                             std::uint32_t& low) {
  high = narrow_pair<T>(first, second);
  const float2 back = widen_pair<T>(high);
  low = narrow_pair<T>(first - back.x, second - back.y);
}

/// Asks the second level of cache for bytes, a multiple of 16 from a multiple of 16 on.
__device__ __forceinline__ void prefetch_bulk(const void* from, int bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
#endif
}

}  // namespace cuda
RANKFOLD_NAMESPACE_END
