// Compiled with default visibility (CMakeLists.txt).
#include "kernel_registry.hpp"

#include <cuda_runtime_api.h>
#include <cxxabi.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <mutex>

namespace rankfold::cuda_test {

namespace {

struct Kernels {
  std::mutex mutex;
  std::map<const void*, KernelUse> by_address;
};
// Kernels register themselves before main, in any order.
Kernels& kernels() {
  static Kernels* const instance = new Kernels;
  return *instance;
}

std::string readable(const char* name) {
  int status = 0;
  char* const text = abi::__cxa_demangle(name, nullptr, nullptr, &status);
  std::string result = status == 0 && text != nullptr ? text : name;
  std::free(text);
  return result;
}

}  // namespace

std::vector<KernelUse> kernel_uses() {
  const std::lock_guard lock(kernels().mutex);
  std::vector<KernelUse> uses;
  for (const auto& [address, use] : kernels().by_address) uses.push_back(use);
  std::sort(uses.begin(), uses.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return uses;
}

void note_launch(const void* kernel) noexcept {
  const std::lock_guard lock(kernels().mutex);
  const auto found = kernels().by_address.find(kernel);
  if (found != kernels().by_address.end()) ++found->second.launches;
}

}  // namespace rankfold::cuda_test

// What the code that nvcc makes calls for every kernel when the program starts.
extern "C" void __cudaRegisterFunction(void** binary, const char* host, char* device,
                                       const char* name, int threads, uint3* thread, uint3* block,
                                       dim3* block_dim, dim3* grid_dim, int* warp_size) {
  using Function =
      void(void**, const char*, char*, const char*, int, uint3*, uint3*, dim3*, dim3*, int*);
  static auto* const real = reinterpret_cast<Function*>(dlsym(RTLD_NEXT, "__cudaRegisterFunction"));
  auto& kernels = rankfold::cuda_test::kernels();
  {
    const std::lock_guard lock(kernels.mutex);
    kernels.by_address[host].name = rankfold::cuda_test::readable(name);
  }
  real(binary, host, device, name, threads, thread, block, block_dim, grid_dim, warp_size);
}
