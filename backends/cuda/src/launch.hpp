// Launching: errors come back from the launch itself, so that no earlier error of the host is taken
// for ours.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "runtime.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

inline constexpr std::int64_t kMaxGridX = 2147483647;
inline constexpr std::int64_t kMaxGridY = 65535;

constexpr std::int64_t divide_up(std::int64_t a, std::int64_t b) noexcept {
  return (a + b - 1) / b;
}

/// Kernels stride over their grid in both dimensions, so that a grid may be smaller than the work.
inline dim3 grid_of(std::int64_t x, std::int64_t y = 1) noexcept {
  return dim3(static_cast<unsigned>(std::clamp<std::int64_t>(x, 1, kMaxGridX)),
              static_cast<unsigned>(std::clamp<std::int64_t>(y, 1, kMaxGridY)));
}

/// overlaps: the kernel may begin while the one before still runs, and waits for it itself
/// (wait_for_previous); for the second launch of an operation alone. Older devices run it
/// afterwards.
template <class Params>
Status launch(void (*kernel)(Params), dim3 grid, int threads, cudaStream_t stream,
              const Params& params, bool overlaps = false) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.stream = stream;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = overlaps ? 1 : 0;
  return to_status(cudaLaunchKernelEx(&config, kernel, params), "cudaLaunchKernelEx");
}

}  // namespace cuda
RANKFOLD_NAMESPACE_END
