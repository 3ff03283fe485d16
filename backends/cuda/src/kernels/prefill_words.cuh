// Loads of the kernels of many rows by whole words.
#pragma once

#include <cstdint>

#include "rankfold/export.hpp"

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

}  // namespace cuda
RANKFOLD_NAMESPACE_END
