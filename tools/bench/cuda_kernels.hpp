// Plain kernels of the yardsticks on a CUDA device.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace rankfold::tools {

/// How many ways elementwise_pass has of cutting its work into blocks.
inline constexpr int kNumElementwiseShapes = 6;
/// destination[i] = source[i] with its sign bit turned, bf16; `bytes` a multiple of 16, both
/// 16-byte aligned.
cudaError_t elementwise_pass(void* destination, const void* source, std::size_t bytes, int shape,
                             cudaStream_t stream);
/// bf16 noise in [-1, 1).
cudaError_t fill_noise(void* data, std::size_t elements, std::uint32_t seed, cudaStream_t stream);

}  // namespace rankfold::tools
