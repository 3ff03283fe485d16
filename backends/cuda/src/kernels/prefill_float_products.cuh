// Products of h with columns of B of float32, both as sums of two parts of f16. Included by
// prefill_expand_floats.cu alone.
#pragma once

#include "prefill_operands.cuh"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

namespace {

/// sums += h B^T over kSlabs slabs, begun; the largest products last.
template <int kSlabs, int kGroups>
__device__ __forceinline__ void begin_float_slabs(float (&sums)[kGroups][4][4],
                                                  const Fragment<__half>* h, std::uint32_t high,
                                                  std::uint32_t low, int lane) {
  constexpr int kSlabBytes = kGroups * 32 * kSlabRowBytes;
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  (void)lane;
  warpgroup_begin();
#pragma unroll
  for (int s = 0; s < kSlabs; ++s) {
    float* const to = &sums[0][0][0];
    warpgroup_multiply_rows<__half, kGroups>(to, h[s].part[1],
                                             slab_descriptor(high + s * kSlabBytes));
    warpgroup_multiply_rows<__half, kGroups>(to, h[s].part[0],
                                             slab_descriptor(low + s * kSlabBytes));
  }
#pragma unroll
  for (int s = 0; s < kSlabs; ++s) {
    warpgroup_multiply_rows<__half, kGroups>(&sums[0][0][0], h[s].part[0],
                                             slab_descriptor(high + s * kSlabBytes));
  }
  warpgroup_commit();
#else
#pragma unroll
  for (int s = 0; s < kSlabs; ++s) multiply_slab(sums, h[s], low + s * kSlabBytes, lane);
#pragma unroll
  for (int s = 0; s < kSlabs; ++s) multiply_slab(sums, h[s], high + s * kSlabBytes, lane);
#endif
}
template <int kGroups>
__device__ __forceinline__ void end_float_slabs(float (&sums)[kGroups][4][4],
                                                std::uint32_t scales) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  warpgroup_wait(reinterpret_cast<float(&)[kGroups * 16]>(sums));
#endif
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint4 v = load_shared_16(scales + static_cast<std::uint32_t>(group * 128 + i * 16));
      const float scale[4] = {__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z),
                              __uint_as_float(v.w)};
#pragma unroll
      for (int j = 0; j < 8; ++j) sums[group][2 * i + j / 4][j % 4] *= scale[j / 4 * 2 + j % 2];
    }
  }
}

}  // namespace

}  // namespace cuda
RANKFOLD_NAMESPACE_END
