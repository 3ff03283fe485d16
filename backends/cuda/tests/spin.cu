#include "spin.hpp"

namespace rankfold::cuda_test {

namespace {

__global__ void spin(const volatile int* go) {
  const long long start = clock64();
  while (*go == 0 && clock64() - start < 20000000000ll) {
  }
}
__global__ void nothing() {}

constexpr int kCopyThreads = 1024;

__device__ void copy_all(uint4* to, const uint4* from, std::size_t count) {
  for (std::size_t i = threadIdx.x; i < count; i += kCopyThreads) to[i] = from[i];
}
__global__ void __launch_bounds__(kCopyThreads)
    late_copy(uint4* to, const uint4* from, std::size_t count) {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
  const long long start = clock64();
  while (clock64() - start < 40000) {
  }
  copy_all(to, from, count);
}
__global__ void __launch_bounds__(kCopyThreads)
    early_copy(uint4* to, const uint4* from, std::size_t count) {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
  copy_all(to, from, count);
}

}  // namespace

void launch_spin(const volatile int* go, cudaStream_t stream) { spin<<<1, 1, 0, stream>>>(go); }
void launch_late_copy(void* to, const void* from, std::size_t bytes, cudaStream_t stream) {
  late_copy<<<1, kCopyThreads, 0, stream>>>(static_cast<uint4*>(to),
                                            static_cast<const uint4*>(from), bytes / 16);
}
void launch_early_copy(void* to, const void* from, std::size_t bytes, cudaStream_t stream) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(1);
  config.blockDim = dim3(kCopyThreads);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  cudaLaunchKernelEx(&config, &early_copy, static_cast<uint4*>(to), static_cast<const uint4*>(from),
                     bytes / 16);
}
void launch_nothing(cudaStream_t stream) { nothing<<<1, 1, 0, stream>>>(); }

}  // namespace rankfold::cuda_test
