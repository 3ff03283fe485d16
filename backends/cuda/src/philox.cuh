// Dropout's random numbers: Philox4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as
// easy as 1, 2, 3; SC 2011).
#pragma once

#include <cmath>
#include <cstdint>

#include "rankfold/arguments.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

/// The mask of a call. threshold 0 with drops false: nothing is drawn.
struct DropoutMask {
  std::uint64_t seed = 0;
  std::int64_t row_base = 0;
  std::uint32_t threshold = 0;
  float scale = 1.0f;
  int drops = 0;

  DropoutMask() = default;
  explicit DropoutMask(const Dropout& dropout) noexcept
      : seed(dropout.seed),
        row_base(dropout.row_base),
        threshold(static_cast<std::uint32_t>(std::floor(static_cast<double>(dropout.p) * 0x1p32))),
        scale(1.0f / (1.0f - dropout.p)),
        drops(dropout.p > 0.0f ? 1 : 0) {}
};

#if defined(__CUDACC__)

__device__ inline uint4 philox4x32_10(uint4 counter, std::uint64_t seed) {
  std::uint32_t k0 = static_cast<std::uint32_t>(seed), k1 = static_cast<std::uint32_t>(seed >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const std::uint32_t high_even = __umulhi(0xd2511f53u, counter.x),
                        low_even = 0xd2511f53u * counter.x;
    const std::uint32_t high_odd = __umulhi(0xcd9e8d57u, counter.z),
                        low_odd = 0xcd9e8d57u * counter.z;
    counter = make_uint4(high_odd ^ counter.y ^ k0, low_odd, high_even ^ counter.w ^ k1, low_even);
    k0 += 0x9e3779b9u;
    k1 += 0xbb67ae85u;
  }
  return counter;
}

/// Whether element (row, column) of x is kept for a slice.
__device__ inline bool keeps(const DropoutMask& mask, std::int64_t row, std::int64_t column,
                             int slice) {
  const uint4 word = philox4x32_10(
      make_uint4(static_cast<std::uint32_t>(column / 4),
                 static_cast<std::uint32_t>(static_cast<std::uint64_t>(row) +
                                            static_cast<std::uint64_t>(mask.row_base)),
                 static_cast<std::uint32_t>(slice), 0),
      mask.seed);
  const int lane = static_cast<int>(column % 4);
  const std::uint32_t value = lane == 0 ? word.x : lane == 1 ? word.y : lane == 2 ? word.z : word.w;
  return value >= mask.threshold;
}

/// The element as A sees it: a dropped one is 0 whatever x holds.
__device__ inline float dropped(const DropoutMask& mask, float x, std::int64_t row,
                                std::int64_t column, int slice) {
  if (!mask.drops) return x;
  return keeps(mask, row, column, slice) ? x * mask.scale : 0.0f;
}

#endif  // __CUDACC__

}  // namespace cuda
RANKFOLD_NAMESPACE_END
