#include <cuda_bf16.h>

#include "cuda_kernels.hpp"

namespace rankfold::tools {
namespace {

// A block's threads take neighbouring 16-byte pieces, kItems times, all loads before the first
// store.
template <int kItems>
__global__ void negate_kernel(uint4* __restrict__ destination, const uint4* __restrict__ source,
                              std::size_t pieces) {
  const std::size_t first =
      static_cast<std::size_t>(blockIdx.x) * blockDim.x * kItems + threadIdx.x;
  uint4 values[kItems];
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const std::size_t at = first + static_cast<std::size_t>(i) * blockDim.x;
    if (at < pieces) values[i] = source[at];
  }
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const std::size_t at = first + static_cast<std::size_t>(i) * blockDim.x;
    constexpr unsigned kSigns = 0x80008000u;
    uint4 value = values[i];
    value.x ^= kSigns;
    value.y ^= kSigns;
    value.z ^= kSigns;
    value.w ^= kSigns;
    if (at < pieces) destination[at] = value;
  }
}

__global__ void noise_kernel(__nv_bfloat16* data, std::size_t elements, std::uint32_t seed) {
  const std::size_t stride = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
       i < elements; i += stride) {
    std::uint32_t hash = static_cast<std::uint32_t>(i) * 2654435761u + seed;
    hash = (hash ^ (hash >> 16)) * 0x85ebca6bu;
    hash = (hash ^ (hash >> 13)) * 0xc2b2ae35u;
    hash ^= hash >> 16;
    data[i] = __float2bfloat16(static_cast<float>(static_cast<std::int32_t>(hash)) * 0x1p-31f);
  }
}

template <int kItems>
cudaError_t launch_negate(void* destination, const void* source, std::size_t bytes,
                          unsigned threads, cudaStream_t stream) {
  const std::size_t pieces = bytes / sizeof(uint4);
  const std::size_t per_block = std::size_t{threads} * kItems;
  const auto blocks = static_cast<unsigned>((pieces + per_block - 1) / per_block);
  negate_kernel<kItems><<<blocks, threads, 0, stream>>>(static_cast<uint4*>(destination),
                                                        static_cast<const uint4*>(source), pieces);
  return cudaGetLastError();
}

}  // namespace

cudaError_t elementwise_pass(void* destination, const void* source, std::size_t bytes, int shape,
                             cudaStream_t stream) {
  switch (shape) {
    case 0:
      return launch_negate<4>(destination, source, bytes, 128, stream);
    case 1:
      return launch_negate<1>(destination, source, bytes, 256, stream);
    case 2:
      return launch_negate<4>(destination, source, bytes, 256, stream);
    case 3:
      return launch_negate<2>(destination, source, bytes, 512, stream);
    case 4:
      return launch_negate<1>(destination, source, bytes, 1024, stream);
    default:
      return launch_negate<8>(destination, source, bytes, 256, stream);
  }
}

cudaError_t fill_noise(void* data, std::size_t elements, std::uint32_t seed, cudaStream_t stream) {
  noise_kernel<<<1024, 256, 0, stream>>>(static_cast<__nv_bfloat16*>(data), elements, seed);
  return cudaGetLastError();
}

}  // namespace rankfold::tools
