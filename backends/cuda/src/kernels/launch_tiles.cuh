// Launching kernels of much shared memory, and what the host must know of views for them.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "launch.hpp"
#include "rankfold/dtype.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

/// overlaps: the kernel calls wait_for_previous() and may begin before what it depends on has
/// ended.
template <class Params>
Status launch_tiles(void (*kernel)(Params), std::int64_t blocks, int threads, int shared_bytes,
                    bool overlaps, cudaStream_t stream, const Params& params,
                    std::int64_t blocks_y = 1) {
  if (shared_bytes > 48 * 1024) {
    // Kept with the function, by device; asking for it again costs little.
    if (Status status = to_status(
            cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes),
            "cudaFuncSetAttribute");
        !status.ok()) {
      return status;
    }
  }
  cudaLaunchConfig_t config{};
  config.gridDim = grid_of(blocks, blocks_y);
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<std::size_t>(shared_bytes);
  config.stream = stream;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = overlaps ? 1 : 0;
  return to_status(cudaLaunchKernelEx(&config, kernel, params), "cudaLaunchKernelEx");
}

inline bool is_aligned(const void* data, std::int64_t row_bytes, int bytes) noexcept {
  return reinterpret_cast<std::uintptr_t>(data) % bytes == 0 && row_bytes % bytes == 0;
}

/// Calls f with a null pointer of the 16-bit element type of dtype.
template <class F>
Status with_half(DType dtype, F f) {
  if (dtype == DType::f16) return f(static_cast<const __half*>(nullptr));
  return f(static_cast<const __nv_bfloat16*>(nullptr));
}

}  // namespace cuda
RANKFOLD_NAMESPACE_END
