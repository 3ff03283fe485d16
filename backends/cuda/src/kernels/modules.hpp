// The kernels of this library, loaded when a backend is made: the driver would else load each at
// its first launch, in the middle of a step, where it takes device memory and may wait for what
// runs.
#pragma once

#include "rankfold/status.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

/// One a file of kernels; the driver knows such a file as a module. Constant after start.
class KernelModule {
 public:
  explicit KernelModule(const void* anchor) noexcept : anchor_(anchor), next_(first()) {
    first() = this;
  }
  const void* anchor() const noexcept { return anchor_; }
  const KernelModule* next() const noexcept { return next_; }
  static const KernelModule*& first() noexcept {
    static const KernelModule* list = nullptr;
    return list;
  }

 private:
  const void* anchor_;
  const KernelModule* next_;
};

/// Loads every kernel of every module into the current device. Returns how many there are. What
/// cannot be loaded now, since the driver is too old to be asked, is loaded at its first launch.
int load_kernels() noexcept;

}  // namespace cuda
RANKFOLD_NAMESPACE_END

/// Stands at the end of every file of kernels, inside the namespace: a kernel by which its module
/// is found. The object is linked with the functions that launch the file's kernels, or neither is.
#define RANKFOLD_CUDA_MODULE(name)                                                        \
  namespace {                                                                             \
  __global__ void name##_module_anchor() {}                                               \
  const KernelModule name##_module(reinterpret_cast<const void*>(&name##_module_anchor)); \
  }
