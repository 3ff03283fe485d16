// Products of a warpgroup: 64 rows of x times up to 96 rows of A, both from shared memory, sums in
// registers. Rows are 64 elements of 16 bits; eight rows are a group of 1024 bytes in which the
// 16-byte piece c of row r stands at place c ^ r. Where the target has no such instruction, the
// four warps do the same with theirs.
#pragma once

#include "async_copy.cuh"
#include "tensor.cuh"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

/// Bytes of a row of an operand's tile.
inline constexpr int kTileRowBytes = 128;

/// Where the 16-byte piece of a row stands.
__device__ __forceinline__ std::uint32_t tile_offset(int row, int piece) {
  return static_cast<std::uint32_t>(row * kTileRowBytes + ((piece ^ (row & 7)) << 4));
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// Rows of 128 bytes swizzled as above, groups of eight 1024 bytes apart.
__device__ __forceinline__ std::uint64_t tile_descriptor(std::uint32_t shared_address) {
  return (static_cast<std::uint64_t>(shared_address & 0x3ffffu) >> 4) | (std::uint64_t{1} << 16) |
         (std::uint64_t{64} << 32) | (std::uint64_t{1} << 62);
}
/// Rows of 32 bytes whose two pieces change places in every second four, groups of eight 256 bytes
/// apart; the address is a multiple of 256.
__device__ __forceinline__ std::uint64_t slab_descriptor(std::uint32_t shared_address) {
  return (static_cast<std::uint64_t>(shared_address & 0x3ffffu) >> 4) | (std::uint64_t{1} << 16) |
         (std::uint64_t{16} << 32) | (std::uint64_t{3} << 62);
}
__device__ __forceinline__ void warpgroup_begin() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void warpgroup_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/// Registers of a warpgroup from here on: more, where others have left some, or fewer.
template <int kRegisters>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void leave_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kCount>
__device__ __forceinline__ void warpgroup_wait(float (&sums)[kCount]) {
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(sums[i])::"memory");
}

#define RANKFOLD_F4(d, i) "+f"((d)[i]), "+f"((d)[(i) + 1]), "+f"((d)[(i) + 2]), "+f"((d)[(i) + 3])
#define RANKFOLD_F8(d, i) RANKFOLD_F4(d, i), RANKFOLD_F4(d, (i) + 4)
#define RANKFOLD_F16(d, i) RANKFOLD_F8(d, i), RANKFOLD_F8(d, (i) + 8)
#define RANKFOLD_R0 "%0, %1, %2, %3, %4, %5, %6, %7"
#define RANKFOLD_R8 "%8, %9, %10, %11, %12, %13, %14, %15"
#define RANKFOLD_R16 "%16, %17, %18, %19, %20, %21, %22, %23"
#define RANKFOLD_R24 "%24, %25, %26, %27, %28, %29, %30, %31"
#define RANKFOLD_R32 "%32, %33, %34, %35, %36, %37, %38, %39"
#define RANKFOLD_R40 "%40, %41, %42, %43, %44, %45, %46, %47"
#define RANKFOLD_R48 "%48, %49, %50, %51, %52, %53, %54, %55"
#define RANKFOLD_R56 "%56, %57, %58, %59, %60, %61, %62, %63"
#define RANKFOLD_WGMMA(n, type, registers, a, b, c, ...)                                          \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" c ", 0;\nwgmma.mma_async.sync.aligned.m64n" n \
               "k16.f32." type "." type " {" registers "}, %" a ", %" b ", p, 1, 1, 0, 0;\n}"     \
               : __VA_ARGS__                                                                      \
               : "l"(x), "l"(a_rows), "r"(adds)                                                   \
               : "memory")
#define RANKFOLD_WGMMA_SIZES(type)                                                                 \
  if constexpr (kTiles == 1) {                                                                     \
    RANKFOLD_WGMMA("16", type, RANKFOLD_R0, "8", "9", "10", RANKFOLD_F8(d, 0));                    \
  } else if constexpr (kTiles == 2) {                                                              \
    RANKFOLD_WGMMA("32", type, RANKFOLD_R0 "," RANKFOLD_R8, "16", "17", "18", RANKFOLD_F16(d, 0)); \
  } else if constexpr (kTiles == 3) {                                                              \
    RANKFOLD_WGMMA("48", type, RANKFOLD_R0 "," RANKFOLD_R8 "," RANKFOLD_R16, "24", "25", "26",     \
                   RANKFOLD_F16(d, 0), RANKFOLD_F8(d, 16));                                        \
  } else if constexpr (kTiles == 4) {                                                              \
    RANKFOLD_WGMMA("64", type, RANKFOLD_R0 "," RANKFOLD_R8 "," RANKFOLD_R16 "," RANKFOLD_R24,      \
                   "32", "33", "34", RANKFOLD_F16(d, 0), RANKFOLD_F16(d, 16));                     \
  } else if constexpr (kTiles == 8) {                                                              \
    RANKFOLD_WGMMA("128", type,                                                                    \
                   RANKFOLD_R0 "," RANKFOLD_R8 "," RANKFOLD_R16 "," RANKFOLD_R24 "," RANKFOLD_R32  \
                               "," RANKFOLD_R40 "," RANKFOLD_R48 "," RANKFOLD_R56,                 \
                   "64", "65", "66", RANKFOLD_F16(d, 0), RANKFOLD_F16(d, 16), RANKFOLD_F16(d, 32), \
                   RANKFOLD_F16(d, 48));                                                           \
  } else {                                                                                         \
    static_assert(kTiles == 6);                                                                    \
    RANKFOLD_WGMMA("96", type,                                                                     \
                   RANKFOLD_R0 "," RANKFOLD_R8 "," RANKFOLD_R16 "," RANKFOLD_R24 "," RANKFOLD_R32  \
                               "," RANKFOLD_R40,                                                   \
                   "48", "49", "50", RANKFOLD_F16(d, 0), RANKFOLD_F16(d, 16),                      \
                   RANKFOLD_F16(d, 32));                                                           \
  }

/// d += x a_rows^T of 16 elements of k (adds 0: d = ...); kTiles times 16 rows of A.
template <class T, int kTiles>
__device__ __forceinline__ void warpgroup_multiply(float* d, std::uint64_t x, std::uint64_t a_rows,
                                                   int adds) {
  if constexpr (std::is_same_v<T, __half>) {
    RANKFOLD_WGMMA_SIZES("f16")
  } else {
    RANKFOLD_WGMMA_SIZES("bf16")
  }
}

#define RANKFOLD_WGMMA_ROWS(n, type, registers, a0, a1, a2, a3, b, ...)                      \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, 1, 0;\nwgmma.mma_async.sync.aligned.m64n" n \
               "k16.f32." type "." type " {" registers "}, {%" a0 ", %" a1 ", %" a2 ", %" a3 \
               "}, %" b ", p, 1, 1, 0;\n}"                                                   \
               : __VA_ARGS__                                                                 \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b_rows)                     \
               : "memory")
#define RANKFOLD_WGMMA_ROWS_SIZES(type)                                                            \
  if constexpr (kGroups == 1) {                                                                    \
    RANKFOLD_WGMMA_ROWS("32", type, RANKFOLD_R0 "," RANKFOLD_R8, "16", "17", "18", "19", "20",     \
                        RANKFOLD_F16(d, 0));                                                       \
  } else {                                                                                         \
    static_assert(kGroups == 2);                                                                   \
    RANKFOLD_WGMMA_ROWS("64", type, RANKFOLD_R0 "," RANKFOLD_R8 "," RANKFOLD_R16 "," RANKFOLD_R24, \
                        "32", "33", "34", "35", "36", RANKFOLD_F16(d, 0), RANKFOLD_F16(d, 16));    \
  }

/// d += a b_rows^T of 16 elements of k; a: of each warp 16 rows in registers, as the operand of
/// mma.m16n8k16; kGroups times 32 rows of B.
template <class T, int kGroups>
__device__ __forceinline__ void warpgroup_multiply_rows(float* d, const std::uint32_t (&a)[4],
                                                        std::uint64_t b_rows) {
  if constexpr (std::is_same_v<T, __half>) {
    RANKFOLD_WGMMA_ROWS_SIZES("f16")
  } else {
    RANKFOLD_WGMMA_ROWS_SIZES("bf16")
  }
}

#undef RANKFOLD_WGMMA_ROWS_SIZES
#undef RANKFOLD_WGMMA_ROWS
#undef RANKFOLD_WGMMA_SIZES
#undef RANKFOLD_WGMMA
#undef RANKFOLD_R0
#undef RANKFOLD_R8
#undef RANKFOLD_R16
#undef RANKFOLD_R24
#undef RANKFOLD_R32
#undef RANKFOLD_R40
#undef RANKFOLD_R48
#undef RANKFOLD_R56
#undef RANKFOLD_F16
#undef RANKFOLD_F8
#undef RANKFOLD_F4

/// sums = x a^T over 64 elements of k (adds: sums += ...), begun: finish_tiles() ends it. x: 64
/// rows, a: kTiles * 16 rows. Matrix instructions cut off what they add: long sums are the
/// caller's. Of sums lane 4g + t of warp w has rows 16w + g and 16w + g + 8, columns 2t and 2t + 1,
/// of every eight columns.
template <class T, int kTiles>
__device__ __forceinline__ void begin_tiles(float (&sums)[kTiles * 8], std::uint32_t x,
                                            std::uint32_t a, bool adds) {
  constexpr int kWide = kTiles == 12 ? 6 : kTiles == 8 ? 4 : kTiles;
  warpgroup_begin();
#pragma unroll
  for (int k = 0; k < 4; ++k) {
#pragma unroll
    for (int part = 0; part < kTiles; part += kWide) {
      const std::uint64_t left = tile_descriptor(x) + 2 * k;
      const std::uint64_t right = tile_descriptor(a + part * 16 * kTileRowBytes) + 2 * k;
      warpgroup_multiply<T, kWide>(sums + part * 8, left, right, k > 0 || adds ? 1 : 0);
    }
  }
  warpgroup_commit();
}
/// The same of A in two parts, the smaller first.
template <class T, int kTiles>
__device__ __forceinline__ void begin_tiles_of_parts(float (&sums)[kTiles * 8], std::uint32_t x,
                                                     std::uint32_t high, std::uint32_t low,
                                                     bool adds) {
  warpgroup_begin();
#pragma unroll
  for (int part = 0; part < 2; ++part) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      warpgroup_multiply<T, kTiles>(sums, tile_descriptor(x) + 2 * k,
                                    tile_descriptor(part == 0 ? low : high) + 2 * k,
                                    part > 0 || k > 0 || adds ? 1 : 0);
    }
  }
  warpgroup_commit();
}
template <int kCount>
__device__ __forceinline__ void finish_tiles(float (&sums)[kCount]) {
  warpgroup_wait(sums);
}
/// Ends all that was begun but the last; its sums are still nobody's.
__device__ __forceinline__ void finish_all_but_last() {
  asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
}

#else

template <int kRegisters>
__device__ __forceinline__ void take_registers() {}
template <int kRegisters>
__device__ __forceinline__ void leave_registers() {}
template <class T, int kTiles>
__device__ __forceinline__ void begin_tiles(float (&sums)[kTiles * 8], std::uint32_t x,
                                            std::uint32_t a, bool adds) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int x_row = static_cast<int>(threadIdx.x) / 32 % 4 * 16 + lane % 16;
  const int a_row = lane % 8 + lane / 16 * 8;
#pragma unroll
  for (int i = 0; i < kTiles * 8; ++i) sums[i] = adds ? sums[i] : 0.0f;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    std::uint32_t left[4];
    load_matrices(left, x + tile_offset(x_row, 2 * k + lane / 16));
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      std::uint32_t right[4];
      load_matrices(right,
                    a + tile * 16 * kTileRowBytes + tile_offset(a_row, 2 * k + lane / 8 % 2));
      float(&first)[4] = *reinterpret_cast<float(*)[4]>(sums + tile * 8);
      float(&second)[4] = *reinterpret_cast<float(*)[4]>(sums + tile * 8 + 4);
      multiply<T>(first, left[0], left[1], left[2], left[3], right[0], right[1]);
      multiply<T>(second, left[0], left[1], left[2], left[3], right[2], right[3]);
    }
  }
}
template <class T, int kTiles>
__device__ __forceinline__ void begin_tiles_of_parts(float (&sums)[kTiles * 8], std::uint32_t x,
                                                     std::uint32_t high, std::uint32_t low,
                                                     bool adds) {
  begin_tiles<T, kTiles>(sums, x, low, adds);
  begin_tiles<T, kTiles>(sums, x, high, true);
}
template <int kCount>
__device__ __forceinline__ void finish_tiles(float (&)[kCount]) {}
__device__ __forceinline__ void finish_all_but_last() {}

#endif

__device__ __forceinline__ void store_shared_16(std::uint32_t to, const std::uint32_t (&v)[4]) {
  asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(to), "r"(v[0]), "r"(v[1]), "r"(v[2]),
               "r"(v[3])
               : "memory");
}
__device__ __forceinline__ uint4 load_shared_16(std::uint32_t from) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(from)
               : "memory");
  return v;
}
/// Up to eight elements of 16 bits at any address; zeros past count.
__device__ __forceinline__ void gather_16(std::uint32_t (&v)[4], const void* from, int count) {
  const unsigned short* const p = static_cast<const unsigned short*>(from);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const std::uint32_t low = 2 * i < count ? p[2 * i] : 0u;
    const std::uint32_t high = 2 * i + 1 < count ? p[2 * i + 1] : 0u;
    v[i] = low | (high << 16);
  }
}
}  // namespace cuda
RANKFOLD_NAMESPACE_END
