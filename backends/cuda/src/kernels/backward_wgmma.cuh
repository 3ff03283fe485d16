// Hopper's matrix instruction on tiles in shared memory, as backward uses it: sums of 64 rows and
// 16 to 256 columns in registers. Code for other architectures compiles to nothing.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "rankfold/export.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {
namespace tiles {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define RANKFOLD_HAS_WGMMA 1
#else
#define RANKFOLD_HAS_WGMMA 0
#endif

/// Descriptor of a tile that begins on 1024 bytes: 128-byte swizzle, groups of eight rows 1024
/// bytes apart. It serves both ways of reading: rows as the summed index (transposed), or columns.
/// Operands of more than 64 columns, read with rows as the summed index, are several tiles,
/// tile_step bytes apart.
template <int kTileStep = 1024>
__device__ __forceinline__ std::uint64_t descriptor(std::uint32_t address) {
  constexpr std::uint64_t kLayout = (std::uint64_t{1} << 62) | (std::uint64_t{64} << 32) |
                                    (static_cast<std::uint64_t>(kTileStep / 16) << 16);
  return kLayout | (static_cast<std::uint64_t>(address & 0x3ffff) >> 4);
}

__device__ __forceinline__ void wgmma_fence() {
#if RANKFOLD_HAS_WGMMA
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void wgmma_commit() {
#if RANKFOLD_HAS_WGMMA
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
#if RANKFOLD_HAS_WGMMA
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
#endif
}
/// After wgmma_wait: sums are not read before it.
template <int kCount>
__device__ __forceinline__ void settle(float (&sums)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(sums[i])::"memory");
}
/// As load_matrices, each 8 x 8 matrix transposed: lane l has elements l / 4 of rows 2 (l % 4) and
/// the next.
__device__ __forceinline__ void load_matrices_transposed(std::uint32_t (&m)[4],
                                                         std::uint32_t from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(from)
               : "memory");
}

#define RANKFOLD_R0 "%0,%1,%2,%3,%4,%5,%6,%7"
#define RANKFOLD_R8 "%8,%9,%10,%11,%12,%13,%14,%15"
#define RANKFOLD_R16 "%16,%17,%18,%19,%20,%21,%22,%23"
#define RANKFOLD_R24 "%24,%25,%26,%27,%28,%29,%30,%31"
#define RANKFOLD_R32 "%32,%33,%34,%35,%36,%37,%38,%39"
#define RANKFOLD_R40 "%40,%41,%42,%43,%44,%45,%46,%47"
#define RANKFOLD_R48 "%48,%49,%50,%51,%52,%53,%54,%55"
#define RANKFOLD_R56 "%56,%57,%58,%59,%60,%61,%62,%63"
#define RANKFOLD_R64 "%64,%65,%66,%67,%68,%69,%70,%71"
#define RANKFOLD_R72 "%72,%73,%74,%75,%76,%77,%78,%79"
#define RANKFOLD_R80 "%80,%81,%82,%83,%84,%85,%86,%87"
#define RANKFOLD_R88 "%88,%89,%90,%91,%92,%93,%94,%95"
#define RANKFOLD_R96 "%96,%97,%98,%99,%100,%101,%102,%103"
#define RANKFOLD_R104 "%104,%105,%106,%107,%108,%109,%110,%111"
#define RANKFOLD_R112 "%112,%113,%114,%115,%116,%117,%118,%119"
#define RANKFOLD_R120 "%120,%121,%122,%123,%124,%125,%126,%127"
#define RANKFOLD_R0_15 RANKFOLD_R0 "," RANKFOLD_R8
#define RANKFOLD_R0_31 RANKFOLD_R0_15 "," RANKFOLD_R16 "," RANKFOLD_R24
#define RANKFOLD_R0_63 \
  RANKFOLD_R0_31 "," RANKFOLD_R32 "," RANKFOLD_R40 "," RANKFOLD_R48 "," RANKFOLD_R56
#define RANKFOLD_R0_127                                                              \
  RANKFOLD_R0_63 "," RANKFOLD_R64 "," RANKFOLD_R72 "," RANKFOLD_R80 "," RANKFOLD_R88 \
                 "," RANKFOLD_R96 "," RANKFOLD_R104 "," RANKFOLD_R112 "," RANKFOLD_R120
#define RANKFOLD_F4(i) "+f"(c[i]), "+f"(c[(i) + 1]), "+f"(c[(i) + 2]), "+f"(c[(i) + 3])
#define RANKFOLD_F8(i) RANKFOLD_F4(i), RANKFOLD_F4((i) + 4)
#define RANKFOLD_F16(i) RANKFOLD_F8(i), RANKFOLD_F8((i) + 8)
#define RANKFOLD_F32(i) RANKFOLD_F16(i), RANKFOLD_F16((i) + 16)
#define RANKFOLD_F64(i) RANKFOLD_F32(i), RANKFOLD_F32((i) + 32)
#define RANKFOLD_WGMMA(columns, registers, a_at, b_at, adds_at, transposes_at, ...)          \
  if constexpr (std::is_same_v<T, __half>) {                                                 \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" columns "k16.f32.f16.f16 {" registers   \
                 "}, %" a_at ", %" b_at ", %" adds_at ", 1, 1, %" transposes_at ", 1;"       \
                 : __VA_ARGS__                                                               \
                 : "l"(a), "l"(b), "n"(kAdds), "n"(kTransposesA));                           \
  } else {                                                                                   \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" columns "k16.f32.bf16.bf16 {" registers \
                 "}, %" a_at ", %" b_at ", %" adds_at ", 1, 1, %" transposes_at ", 1;"       \
                 : __VA_ARGS__                                                               \
                 : "l"(a), "l"(b), "n"(kAdds), "n"(kTransposesA));                           \
  }

/// c[64 x kColumns] += a b of one step of 16, or c = a b where kAdds is 0. b always has its summed
/// index in rows; a has it there when kTransposesA is 1, else in columns.
template <class T, int kColumns, int kTransposesA, int kAdds = 1>
__device__ __forceinline__ void wgmma(float (&c)[kColumns / 2], std::uint64_t a, std::uint64_t b) {
#if RANKFOLD_HAS_WGMMA
  if constexpr (kColumns == 16) {
    RANKFOLD_WGMMA("16", RANKFOLD_R0, "8", "9", "10", "11", RANKFOLD_F8(0))
  } else if constexpr (kColumns == 32) {
    RANKFOLD_WGMMA("32", RANKFOLD_R0_15, "16", "17", "18", "19", RANKFOLD_F16(0))
  } else if constexpr (kColumns == 64) {
    RANKFOLD_WGMMA("64", RANKFOLD_R0_31, "32", "33", "34", "35", RANKFOLD_F32(0))
  } else if constexpr (kColumns == 128) {
    RANKFOLD_WGMMA("128", RANKFOLD_R0_63, "64", "65", "66", "67", RANKFOLD_F64(0))
  } else {
    static_assert(kColumns == 256);
    RANKFOLD_WGMMA("256", RANKFOLD_R0_127, "128", "129", "130", "131", RANKFOLD_F64(0),
                   RANKFOLD_F64(64))
  }
#endif
}

/// The same with a in registers, bf16: a thread of warp w has of each row l / 4 of 16 w and of 16 w
/// + 8 two neighbouring columns from 2 (l % 4) and from 8 more. b has its summed index in rows
/// where kTransposesB is 1, else in columns. Registers of a stay as they are until the product has
/// ended.
template <int kColumns, int kTransposesB, int kAdds = 1>
__device__ __forceinline__ void wgmma_of_registers(float (&c)[kColumns / 2],
                                                   const std::uint32_t (&a)[4], std::uint64_t b) {
#if RANKFOLD_HAS_WGMMA
  if constexpr (kColumns == 64) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" RANKFOLD_R0_31
                 "}, {%32,%33,%34,%35}, %36, %37, 1, 1, %38;"
                 : RANKFOLD_F32(0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(kAdds),
                   "n"(kTransposesB));
  } else {
    static_assert(kColumns == 128);
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" RANKFOLD_R0_63
                 "}, {%64,%65,%66,%67}, %68, %69, 1, 1, %70;"
                 : RANKFOLD_F64(0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(kAdds),
                   "n"(kTransposesB));
  }
#endif
}

#undef RANKFOLD_R0
#undef RANKFOLD_R8
#undef RANKFOLD_R16
#undef RANKFOLD_R24
#undef RANKFOLD_R32
#undef RANKFOLD_R40
#undef RANKFOLD_R48
#undef RANKFOLD_R56
#undef RANKFOLD_R64
#undef RANKFOLD_R72
#undef RANKFOLD_R80
#undef RANKFOLD_R88
#undef RANKFOLD_R96
#undef RANKFOLD_R104
#undef RANKFOLD_R112
#undef RANKFOLD_R120
#undef RANKFOLD_R0_15
#undef RANKFOLD_R0_31
#undef RANKFOLD_R0_63
#undef RANKFOLD_R0_127
#undef RANKFOLD_F4
#undef RANKFOLD_F8
#undef RANKFOLD_F16
#undef RANKFOLD_F32
#undef RANKFOLD_F64
#undef RANKFOLD_WGMMA

}  // namespace tiles
}  // namespace cuda
RANKFOLD_NAMESPACE_END
