#include "modules.hpp"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <new>
#include <vector>

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

namespace {

// A function of the driver; nothing links libcuda, which may not be there.
template <class Function>
Function* driver_function(const char* name) noexcept {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion(name, &found, 12040, cudaEnableDefault, &result);
#else
  const cudaError_t error = cudaGetDriverEntryPoint(name, &found, cudaEnableDefault, &result);
#endif
  if (error != cudaSuccess || result != cudaDriverEntryPointSuccess) {
    (void)cudaGetLastError();
    return nullptr;
  }
  return reinterpret_cast<Function*>(found);
}

}  // namespace

int load_kernels() noexcept try {
  auto* const get_module = driver_function<CUresult(CUmodule*, CUfunction)>("cuFuncGetModule");
  auto* const get_count =
      driver_function<CUresult(unsigned*, CUmodule)>("cuModuleGetFunctionCount");
  auto* const enumerate =
      driver_function<CUresult(CUfunction*, unsigned, CUmodule)>("cuModuleEnumerateFunctions");
  auto* const load = driver_function<CUresult(CUfunction)>("cuFuncLoad");
  if (get_module == nullptr || get_count == nullptr || enumerate == nullptr || load == nullptr)
    return 0;
  int num_loaded = 0;
  for (const KernelModule* at = KernelModule::first(); at != nullptr; at = at->next()) {
    cudaFunction_t anchor = nullptr;
    CUmodule module = nullptr;
    unsigned count = 0;
    if (cudaGetFuncBySymbol(&anchor, at->anchor()) != cudaSuccess) {
      (void)cudaGetLastError();
      continue;
    }
    if (get_module(&module, anchor) != CUDA_SUCCESS || get_count(&count, module) != CUDA_SUCCESS)
      continue;
    std::vector<CUfunction> functions(count);
    if (enumerate(functions.data(), count, module) != CUDA_SUCCESS) continue;
    for (const CUfunction function : functions)
      num_loaded += load(function) == CUDA_SUCCESS ? 1 : 0;
  }
  return num_loaded;
} catch (const std::bad_alloc&) {
  return 0;
}

}  // namespace cuda
RANKFOLD_NAMESPACE_END
