// Weights of float32 of prefill_shrink_floats.cuh, included there alone: loaded, split into two
// parts of bf16 and stored.
#pragma once

#include "prefill_words.cuh"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

namespace {

/// Four neighbouring weights of float32 on their way into shared memory.
struct WeightWords {
  std::uint32_t words[4];

  /// `count` of them, zeros past it; kWide: from a multiple of 16 bytes, none or all.
  template <bool kWide>
  __device__ __forceinline__ void fetch(const float* from, int count) {
#pragma unroll
    for (int i = 0; i < 4; ++i) words[i] = 0u;
    if constexpr (kWide) {
      load_four_in_order(words, count > 0, from);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (i < count) words[i] = __float_as_uint(from[i]);
      }
    }
  }
  /// As sums of two parts of bf16, 8 bytes each. `most` becomes NaN where an infinity left a
  /// smaller part of NaN: mend().
  template <int kPartBytes>
  __device__ __forceinline__ void store(std::uint32_t to, __nv_bfloat162& most) const {
    std::uint32_t high[2], low[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      split_finite<__nv_bfloat16>(__uint_as_float(words[2 * i]), __uint_as_float(words[2 * i + 1]),
                                  high[i], low[i]);
      __nv_bfloat162 pair;
      memcpy(&pair, &low[i], 4);
      most = __hmax2_nan(most, pair);
    }
    store_shared_8(to, high);
    store_shared_8(to + kPartBytes, low);
  }
  /// The smaller parts of infinities, as they were stored: zero.
  __device__ static void mend(std::uint32_t to, int part_bytes) {
    std::uint32_t high[2], low[2];
    load_shared_8(high, to);
    load_shared_8(low, to + part_bytes);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if ((high[i] & 0x7fffu) == 0x7f80u) low[i] &= 0xffff0000u;
      if ((high[i] & 0x7fff0000u) == 0x7f800000u) low[i] &= 0xffffu;
    }
    store_shared_8(to + part_bytes, low);
  }
};

}  // namespace

}  // namespace cuda
RANKFOLD_NAMESPACE_END
