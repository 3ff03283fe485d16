// Which GPUs the kernels of this build run on.
#pragma once

#include "rankfold/export.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

/// Whether code for `architectures`, written as CMAKE_CUDA_ARCHITECTURES with commas
/// ("80,90a-real"), runs on a device of compute capability major.minor: machine code of the same
/// major and no larger minor, or PTX of no larger version, which the driver compiles; with an `a`
/// only the very same version.
bool runs_on(const char* architectures, int major, int minor) noexcept;

}  // namespace cuda
RANKFOLD_NAMESPACE_END
