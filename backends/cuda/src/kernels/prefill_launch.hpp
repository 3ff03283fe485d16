// Launching kernels with much shared memory, clusters and overlap.
#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <cstdint>

#include "launch.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

struct LaunchShape {
  std::int64_t blocks = 1;
  std::int64_t blocks_y = 1;
  std::int64_t blocks_z = 1;
  int threads = 256;
  int shared_bytes = 0;
  int cluster = 1;
  bool overlaps = false;  ///< begins before the kernel in front has ended
};

/// `prepared` (one for each kernel) remembers the devices on which the kernel may use its shared
/// memory.
template <class Params>
Status launch_shaped(void (*kernel)(Params), const LaunchShape& shape,
                     std::atomic<std::uint64_t>* prepared, cudaStream_t stream,
                     const Params& params) {
  int device = 0;
  if (Status status = to_status(cudaGetDevice(&device), "cudaGetDevice"); !status.ok())
    return status;
  const std::uint64_t bit = std::uint64_t{1} << (device & 63);
  if (device > 63 || (prepared->load(std::memory_order_acquire) & bit) == 0) {
    const auto set = [&](cudaFuncAttribute attribute, int value) {
      return to_status(
          cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), attribute, value),
          "cudaFuncSetAttribute");
    };
    int most = 0;
    Status status =
        to_status(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
                  "cudaDeviceGetAttribute");
    if (status.ok()) status = set(cudaFuncAttributeMaxDynamicSharedMemorySize, most);
    // All kernels ask for the same carveout: changing it between two kernels would keep them from
    // overlapping.
    if (status.ok())
      status = set(cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
    if (!status.ok()) return status;
    if (device <= 63) prepared->fetch_or(bit, std::memory_order_release);
  }
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(shape.blocks), static_cast<unsigned>(shape.blocks_y),
                        static_cast<unsigned>(shape.blocks_z));
  config.blockDim = dim3(static_cast<unsigned>(shape.threads));
  config.dynamicSmemBytes = static_cast<std::size_t>(shape.shared_bytes);
  config.stream = stream;
  cudaLaunchAttribute attributes[2];
  config.attrs = attributes;
  if (shape.cluster > 1) {
    attributes[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
    attributes[config.numAttrs].val.clusterDim.x = static_cast<unsigned>(shape.cluster);
    attributes[config.numAttrs].val.clusterDim.y = 1;
    attributes[config.numAttrs].val.clusterDim.z = 1;
    ++config.numAttrs;
  }
  if (shape.overlaps) {
    attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[config.numAttrs].val.programmaticStreamSerializationAllowed = 1;
    ++config.numAttrs;
  }
  return to_status(cudaLaunchKernelEx(&config, kernel, params), "cudaLaunchKernelEx");
}

}  // namespace cuda
RANKFOLD_NAMESPACE_END
