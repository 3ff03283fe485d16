// How the kernels of few rows bring weights and rows into shared memory: asynchronous copies of 16
// bytes where rows are aligned, of fewer where they are not, and through registers where they stand
// at odd elements. What is behind the last element becomes zero.
#pragma once

#include <cstdint>

#include "rankfold/export.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

namespace {

__device__ __forceinline__ std::uint32_t shared_address(const void* p) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
}

/// kBytes (4, 8 or 16) from `from`, of which the first `bytes` exist.
template <int kBytes>
__device__ __forceinline__ void copy_async(std::uint32_t to, const void* from, int bytes) {
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(kBytes),
                 "r"(bytes)
                 : "memory");
  }
}
__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
/// 16 bytes where they are wanted; else what stands there stays.
__device__ __forceinline__ void copy_async_if(std::uint32_t to, const void* from, bool wanted) {
  asm volatile(
      "{ .reg .pred p; setp.ne.s32 p, %2, 0; @p cp.async.cg.shared.global [%0], [%1], 16; }" ::"r"(
          to),
      "l"(from), "r"(static_cast<int>(wanted))
      : "memory");
}
/// 16 bytes, or as many of zero.
__device__ __forceinline__ void copy_async_or_clear(std::uint32_t to, const void* from,
                                                    bool there) {
  asm volatile(
      "{ .reg .pred p; setp.eq.s32 p, %2, 0; cp.async.cg.shared.global [%0], [%1], 16, p; }" ::"r"(
          to),
      "l"(from), "r"(static_cast<int>(there))
      : "memory");
}
template <int kPending>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}
/// At most `pending` of the newest groups are still on their way.
__device__ __forceinline__ void wait_for_copies(int pending) {
  switch (pending) {
    case 0:
      return wait_for_copies<0>();
    case 1:
      return wait_for_copies<1>();
    case 2:
      return wait_for_copies<2>();
    case 3:
      return wait_for_copies<3>();
    default:
      return wait_for_copies<4>();
  }
}

__device__ __forceinline__ uint4 read_shared(std::uint32_t at) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(at)
               : "memory");
  return v;
}
__device__ __forceinline__ uint2 read_shared_8(std::uint32_t at) {
  uint2 v;
  asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(at) : "memory");
  return v;
}
__device__ __forceinline__ void write_shared(std::uint32_t at, const uint4& v) {
  asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(at), "r"(v.x), "r"(v.y), "r"(v.z),
               "r"(v.w)
               : "memory");
}

/// Words and single elements of 16 bytes that stand anywhere, before they are put together. Nothing
/// past the last element is read, and the loads are predicated: several pieces are in flight.
struct Piece {
  std::uint32_t words[4];
  std::uint32_t first, last;  ///< elements of 2 bytes that no whole word has
};
__device__ __forceinline__ std::uint32_t load_word_if(bool wanted, const void* p) {
  std::uint32_t v;
  asm volatile("{ .reg .pred p; setp.ne.s32 p, %2, 0; mov.u32 %0, 0; @p ld.global.u32 %0, [%1]; }"
               : "=&r"(v)
               : "l"(p), "r"(static_cast<int>(wanted)));
  return v;
}
__device__ __forceinline__ std::uint32_t load_element_if(bool wanted, const void* p) {
  std::uint32_t v;
  asm volatile(
      "{ .reg .pred p; .reg .u16 h; setp.ne.s32 p, %2, 0; mov.u16 h, 0; @p ld.global.u16 h, [%1]; "
      "cvt.u32.u16 %0, h; }"
      : "=r"(v)
      : "l"(p), "r"(static_cast<int>(wanted)));
  return v;
}
/// Of elements of 2 bytes the first n, at most eight.
__device__ __forceinline__ Piece load_piece(const void* from, int n) {
  const char* const p = static_cast<const char*>(from);
  const int odd = static_cast<int>(reinterpret_cast<std::uintptr_t>(p) >> 1) & 1;
  Piece piece;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    piece.words[i] = load_word_if(odd + 2 * i + 2 <= n, p + 2 * odd + 4 * i);
  }
  piece.first = load_element_if(odd != 0 && n > 0, p);
  piece.last = load_element_if(n > odd && ((n - odd) & 1) != 0, p + 2 * (n - 1));
  return piece;
}
__device__ __forceinline__ uint4 join(const void* from, int n, const Piece& piece) {
  const bool odd = (reinterpret_cast<std::uintptr_t>(from) & 2) != 0;
  std::uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const std::uint32_t before = i > 0 ? piece.words[i - 1] >> 16 : piece.first;
    words[i] = odd ? before | piece.words[i] << 16 : piece.words[i];
    if ((n - 1) / 2 == i && n > 0) words[i] |= piece.last << (16 * ((n - 1) & 1));
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

/// How a row may be copied: 16, 8 or 4 bytes at a time, or 2: not at all.
__device__ __forceinline__ int copy_unit(const void* p, std::int64_t stride_bytes) {
  const auto bits = static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(p)) |
                    static_cast<unsigned>(stride_bytes);
  return (bits & 15) == 0 ? 16 : (bits & 7) == 0 ? 8 : (bits & 3) == 0 ? 4 : 2;
}
template <int kBytes>
__device__ __forceinline__ void copy_parts(std::uint32_t to, const void* from, int bytes) {
#pragma unroll
  for (int i = 0; i < 16 / kBytes; ++i) {
    copy_async<kBytes>(to + i * kBytes, static_cast<const char*>(from) + i * kBytes,
                       min(max(bytes - i * kBytes, 0), kBytes));
  }
}
/// 16 bytes of which the first `bytes` exist, copied in units; unit 2: through registers.
__device__ __forceinline__ void copy_16(std::uint32_t to, const void* from, int bytes, int unit) {
  if (unit == 16) {
    copy_async<16>(to, from, bytes);
  } else if (unit == 8) {
    copy_parts<8>(to, from, bytes);
  } else if (unit == 4) {
    copy_parts<4>(to, from, bytes);
  } else {
    write_shared(to, join(from, bytes / 2, load_piece(from, bytes / 2)));
  }
}

}  // namespace

}  // namespace cuda
RANKFOLD_NAMESPACE_END
