#include "cuda_matrix_rate.hpp"

#if __has_include(<cublas_v2.h>)
#include <cublas_v2.h>
#include <dlfcn.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "cuda_kernels.hpp"
#endif

namespace rankfold::tools {

#if __has_include(<cublas_v2.h>)
namespace {

constexpr int kSize = 8192;
constexpr int kProducts = 10;

// Loaded, not linked: the command works where the library is not installed.
struct Library {
  void* handle = nullptr;
  decltype(&cublasCreate) create = nullptr;
  decltype(&cublasDestroy) destroy = nullptr;
  decltype(&cublasSetStream) set_stream = nullptr;
  // Overloaded in C++, so spelled out.
  cublasStatus_t (*gemm)(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int,
                         const void*, const void*, cudaDataType, int, const void*, cudaDataType,
                         int, const void*, void*, cudaDataType, int, cublasComputeType_t,
                         cublasGemmAlgo_t) = nullptr;

  Library() {
    const std::string name = "libcublas.so." + std::to_string(CUBLAS_VER_MAJOR);
    handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) return;
    find(create, "cublasCreate_v2");
    find(destroy, "cublasDestroy_v2");
    find(set_stream, "cublasSetStream_v2");
    find(gemm, "cublasGemmEx");
  }
  bool complete() const {
    return create != nullptr && destroy != nullptr && set_stream != nullptr && gemm != nullptr;
  }

 private:
  template <class Function>
  void find(Function& function, const char* name) {
    function = reinterpret_cast<Function>(dlsym(handle, name));
  }
};

struct DeviceFree {
  void operator()(void* pointer) const { (void)cudaFree(pointer); }
};
std::unique_ptr<void, DeviceFree> noise(std::uint32_t seed, cudaStream_t stream) {
  void* data = nullptr;
  const std::size_t elements = std::size_t{kSize} * kSize;
  if (cudaMalloc(&data, elements * 2) != cudaSuccess) return nullptr;
  std::unique_ptr<void, DeviceFree> owner(data);
  if (fill_noise(data, elements, seed, stream) != cudaSuccess) return nullptr;
  return owner;
}

// Milliseconds of each product; empty: something failed.
std::vector<float> time_products(const Library& library, cublasHandle_t handle,
                                 cudaStream_t stream) {
  const auto a = noise(1, stream);
  const auto b = noise(2, stream);
  const auto c = noise(3, stream);
  if (!a || !b || !c) return {};
  cudaEvent_t events[kProducts + 1] = {};
  bool good = true;
  for (cudaEvent_t& event : events) good = good && cudaEventCreate(&event) == cudaSuccess;
  const float one = 1.0f;
  const float zero = 0.0f;
  for (int i = -3; good && i < kProducts; ++i) {
    if (i == 0) good = cudaEventRecord(events[0], stream) == cudaSuccess;
    good = good && library.gemm(handle, CUBLAS_OP_T, CUBLAS_OP_N, kSize, kSize, kSize, &one,
                                a.get(), CUDA_R_16BF, kSize, b.get(), CUDA_R_16BF, kSize, &zero,
                                c.get(), CUDA_R_16BF, kSize, CUBLAS_COMPUTE_32F,
                                CUBLAS_GEMM_DEFAULT) == CUBLAS_STATUS_SUCCESS;
    if (i >= 0) good = good && cudaEventRecord(events[i + 1], stream) == cudaSuccess;
  }
  good = cudaStreamSynchronize(stream) == cudaSuccess && good;
  std::vector<float> milliseconds(kProducts);
  for (int i = 0; good && i < kProducts; ++i) {
    good = cudaEventElapsedTime(&milliseconds[static_cast<std::size_t>(i)], events[i],
                                events[i + 1]) == cudaSuccess;
  }
  for (const cudaEvent_t event : events) {
    if (event != nullptr) (void)cudaEventDestroy(event);
  }
  if (!good) milliseconds.clear();
  return milliseconds;
}

}  // namespace

MatrixRate cuda_matrix_rate(cudaStream_t stream) {
  static const Library library;  // stays loaded: its threads may outlive a handle
  if (!library.complete()) return {0, "libcublas is not installed here"};
  cublasHandle_t handle = nullptr;
  if (library.create(&handle) != CUBLAS_STATUS_SUCCESS) return {0, "cublasCreate failed"};
  std::vector<float> milliseconds;
  if (library.set_stream(handle, stream) == CUBLAS_STATUS_SUCCESS) {
    milliseconds = time_products(library, handle, stream);
  }
  (void)library.destroy(handle);
  if (milliseconds.empty()) return {0, "cublasGemmEx failed"};
  std::sort(milliseconds.begin(), milliseconds.end());
  const double seconds = milliseconds[milliseconds.size() / 2] * 1e-3;
  const double flops = 2.0 * kSize * kSize * kSize;
  return {flops / seconds, "bf16 product of 8192 x 8192 by cuBLAS"};
}
#else
MatrixRate cuda_matrix_rate(cudaStream_t) { return {0, "built without cuBLAS"}; }
#endif

}  // namespace rankfold::tools
