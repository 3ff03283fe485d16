// Compiled with default visibility (CMakeLists.txt): the names of libcudart, in the program itself.
#include "runtime_calls.hpp"

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <atomic>

#include "kernel_registry.hpp"

namespace rankfold::cuda_test {

namespace {

struct Counters {
  std::atomic<std::int64_t> allocations{0}, synchronisations{0}, default_stream{0}, kernels{0},
      others{0}, blocking_streams{0};
};
Counters counters;

void on_stream(cudaStream_t stream) noexcept {
  // Null is the legacy or the thread's default stream, by how the caller was compiled.
  if (stream == nullptr || stream == cudaStreamLegacy || stream == cudaStreamPerThread)
    ++counters.default_stream;
}
void kernel_on(const void* kernel, cudaStream_t stream) noexcept {
  ++counters.kernels;
  note_launch(kernel);
  on_stream(stream);
}
void other_on(cudaStream_t stream) noexcept {
  ++counters.others;
  on_stream(stream);
}
void allocation() noexcept { ++counters.allocations; }
void synchronisation() noexcept { ++counters.synchronisations; }
// Runs on the default stream, and the host waits.
void blocking_call() noexcept {
  ++counters.synchronisations;
  ++counters.default_stream;
}
void new_stream(unsigned flags) noexcept {
  if ((flags & cudaStreamNonBlocking) == 0) ++counters.blocking_streams;
}

template <class Function>
Function* next(const char* name) noexcept {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

}  // namespace

RuntimeCalls runtime_calls() noexcept {
  return {counters.allocations, counters.synchronisations, counters.default_stream,
          counters.kernels,     counters.others,           counters.blocking_streams};
}

RuntimeCalls RuntimeCallScope::counts() const noexcept {
  const RuntimeCalls now = runtime_calls();
  return {now.allocations - start_.allocations,
          now.synchronisations - start_.synchronisations,
          now.default_stream - start_.default_stream,
          now.kernels - start_.kernels,
          now.others - start_.others,
          now.blocking_streams - start_.blocking_streams};
}

}  // namespace rankfold::cuda_test

using namespace rankfold::cuda_test;

// One function of the runtime: counted, then handed on.
#define RANKFOLD_COUNTED(name, parameters, arguments, count)                 \
  extern "C" cudaError_t CUDARTAPI name parameters {                         \
    count;                                                                   \
    static auto* const real = next<cudaError_t CUDARTAPI parameters>(#name); \
    return real arguments;                                                   \
  }

// clang-format off
RANKFOLD_COUNTED(cudaMalloc, (void** to, size_t bytes), (to, bytes), allocation())
RANKFOLD_COUNTED(cudaMallocAsync, (void** to, size_t bytes, cudaStream_t stream), (to, bytes, stream), (allocation(), on_stream(stream)))
RANKFOLD_COUNTED(cudaMallocFromPoolAsync, (void** to, size_t bytes, cudaMemPool_t pool, cudaStream_t stream), (to, bytes, pool, stream), (allocation(), on_stream(stream)))
RANKFOLD_COUNTED(cudaMallocManaged, (void** to, size_t bytes, unsigned flags), (to, bytes, flags), allocation())
RANKFOLD_COUNTED(cudaMallocPitch, (void** to, size_t* pitch, size_t width, size_t height), (to, pitch, width, height), allocation())
RANKFOLD_COUNTED(cudaMallocHost, (void** to, size_t bytes), (to, bytes), allocation())
RANKFOLD_COUNTED(cudaHostAlloc, (void** to, size_t bytes, unsigned flags), (to, bytes, flags), allocation())
RANKFOLD_COUNTED(cudaHostRegister, (void* memory, size_t bytes, unsigned flags), (memory, bytes, flags), allocation())
RANKFOLD_COUNTED(cudaFree, (void* memory), (memory), allocation())
RANKFOLD_COUNTED(cudaFreeAsync, (void* memory, cudaStream_t stream), (memory, stream), (allocation(), on_stream(stream)))
RANKFOLD_COUNTED(cudaFreeHost, (void* memory), (memory), allocation())

RANKFOLD_COUNTED(cudaDeviceSynchronize, (void), (), synchronisation())
RANKFOLD_COUNTED(cudaStreamSynchronize, (cudaStream_t stream), (stream), synchronisation())
RANKFOLD_COUNTED(cudaEventSynchronize, (cudaEvent_t event), (event), synchronisation())
RANKFOLD_COUNTED(cudaMemcpy, (void* to, const void* from, size_t bytes, cudaMemcpyKind kind), (to, from, bytes, kind), blocking_call())
RANKFOLD_COUNTED(cudaMemcpy2D, (void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height, cudaMemcpyKind kind), (to, to_pitch, from, from_pitch, width, height, kind), blocking_call())
RANKFOLD_COUNTED(cudaMemcpyToSymbol, (const void* symbol, const void* from, size_t bytes, size_t offset, cudaMemcpyKind kind), (symbol, from, bytes, offset, kind), blocking_call())
RANKFOLD_COUNTED(cudaMemcpyFromSymbol, (void* to, const void* symbol, size_t bytes, size_t offset, cudaMemcpyKind kind), (to, symbol, bytes, offset, kind), blocking_call())
RANKFOLD_COUNTED(cudaMemset, (void* memory, int value, size_t bytes), (memory, value, bytes), blocking_call())
RANKFOLD_COUNTED(cudaMemset2D, (void* memory, size_t pitch, int value, size_t width, size_t height), (memory, pitch, value, width, height), blocking_call())

RANKFOLD_COUNTED(cudaLaunchKernel, (const void* kernel, dim3 grid, dim3 block, void** arguments, size_t shared, cudaStream_t stream), (kernel, grid, block, arguments, shared, stream), kernel_on(kernel, stream))
RANKFOLD_COUNTED(cudaLaunchKernelExC, (const cudaLaunchConfig_t* config, const void* kernel, void** arguments), (config, kernel, arguments), kernel_on(kernel, config->stream))
RANKFOLD_COUNTED(cudaLaunchCooperativeKernel, (const void* kernel, dim3 grid, dim3 block, void** arguments, size_t shared, cudaStream_t stream), (kernel, grid, block, arguments, shared, stream), kernel_on(kernel, stream))
RANKFOLD_COUNTED(cudaMemcpyAsync, (void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream), (to, from, bytes, kind, stream), other_on(stream))
RANKFOLD_COUNTED(cudaMemcpy2DAsync, (void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height, cudaMemcpyKind kind, cudaStream_t stream), (to, to_pitch, from, from_pitch, width, height, kind, stream), other_on(stream))
RANKFOLD_COUNTED(cudaMemcpyToSymbolAsync, (const void* symbol, const void* from, size_t bytes, size_t offset, cudaMemcpyKind kind, cudaStream_t stream), (symbol, from, bytes, offset, kind, stream), other_on(stream))
RANKFOLD_COUNTED(cudaMemcpyFromSymbolAsync, (void* to, const void* symbol, size_t bytes, size_t offset, cudaMemcpyKind kind, cudaStream_t stream), (to, symbol, bytes, offset, kind, stream), other_on(stream))
RANKFOLD_COUNTED(cudaMemsetAsync, (void* memory, int value, size_t bytes, cudaStream_t stream), (memory, value, bytes, stream), other_on(stream))
RANKFOLD_COUNTED(cudaMemset2DAsync, (void* memory, size_t pitch, int value, size_t width, size_t height, cudaStream_t stream), (memory, pitch, value, width, height, stream), other_on(stream))
RANKFOLD_COUNTED(cudaLaunchHostFunc, (cudaStream_t stream, cudaHostFn_t function, void* data), (stream, function, data), other_on(stream))
RANKFOLD_COUNTED(cudaGraphLaunch, (cudaGraphExec_t graph, cudaStream_t stream), (graph, stream), other_on(stream))
RANKFOLD_COUNTED(cudaEventRecord, (cudaEvent_t event, cudaStream_t stream), (event, stream), on_stream(stream))
RANKFOLD_COUNTED(cudaEventRecordWithFlags, (cudaEvent_t event, cudaStream_t stream, unsigned flags), (event, stream, flags), on_stream(stream))
RANKFOLD_COUNTED(cudaStreamWaitEvent, (cudaStream_t stream, cudaEvent_t event, unsigned flags), (stream, event, flags), on_stream(stream))

RANKFOLD_COUNTED(cudaStreamCreate, (cudaStream_t* stream), (stream), new_stream(0))
RANKFOLD_COUNTED(cudaStreamCreateWithFlags, (cudaStream_t* stream, unsigned flags), (stream, flags), new_stream(flags))
RANKFOLD_COUNTED(cudaStreamCreateWithPriority, (cudaStream_t* stream, unsigned flags, int priority), (stream, flags, priority), new_stream(flags))

// What nvcc calls for <<<>>> where it has the kernel's handle.
RANKFOLD_COUNTED(__cudaLaunchKernel, (cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments, size_t shared, cudaStream_t stream), (kernel, grid, block, arguments, shared, stream), kernel_on(kernel, stream))
// clang-format on
