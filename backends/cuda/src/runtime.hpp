// The CUDA runtime as this backend uses it: errors as Status, and the device of a call.
#pragma once

#include <cuda_runtime_api.h>

#include "rankfold/status.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

/// device_error (out_of_memory where it is that) with the runtime's own name and text; ok for
/// success.
Status to_status(cudaError_t error, const char* call) noexcept;

/// Makes a device current for a scope. A host's current device is its own affair: it is the same
/// afterwards.
class DeviceScope {
 public:
  explicit DeviceScope(int device) noexcept {
    error_ = cudaGetDevice(&before_);
    if (error_ == cudaSuccess && before_ != device) {
      error_ = cudaSetDevice(device);
      changed_ = error_ == cudaSuccess;
    }
  }
  ~DeviceScope() {
    if (changed_) (void)cudaSetDevice(before_);
  }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;
  Status status() const noexcept { return to_status(error_, "cudaSetDevice"); }

 private:
  int before_ = 0;
  bool changed_ = false;
  cudaError_t error_ = cudaSuccess;
};

}  // namespace cuda
RANKFOLD_NAMESPACE_END
