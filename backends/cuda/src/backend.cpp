#include "backend.hpp"

#include "runtime.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

namespace {

cudaEvent_t native(Event event) noexcept { return static_cast<cudaEvent_t>(event.handle); }

cudaMemcpyKind native(CopyKind kind) noexcept {
  switch (kind) {
    case CopyKind::host_to_device:
      return cudaMemcpyHostToDevice;
    case CopyKind::device_to_host:
      return cudaMemcpyDeviceToHost;
    case CopyKind::device_to_device:
      break;
  }
  return cudaMemcpyDeviceToDevice;
}

}  // namespace

Result<void*> CudaBackend::do_allocate(std::size_t bytes, MemoryKind kind) {
  const DeviceScope scope(traits_.index);
  if (Status status = scope.status(); !status.ok()) return status;
  void* memory = nullptr;
  const cudaError_t error = kind == MemoryKind::pinned
                                ? cudaHostAlloc(&memory, bytes, cudaHostAllocPortable)
                                : cudaMalloc(&memory, bytes);
  if (error == cudaSuccess) return memory;
  const Status status =
      to_status(error, kind == MemoryKind::pinned ? "cudaHostAlloc" : "cudaMalloc");
  return Status::format(status.code(), "%s; %zu bytes were asked for", status.message(), bytes);
}

void CudaBackend::do_deallocate(void* pointer, MemoryKind kind) noexcept {
  const DeviceScope scope(traits_.index);
  const cudaError_t error = kind == MemoryKind::pinned ? cudaFreeHost(pointer) : cudaFree(pointer);
  (void)to_status(error, "cudaFree");
}

Status CudaBackend::do_copy(void* destination, const void* source, std::size_t bytes, CopyKind kind,
                            Stream stream) {
  const DeviceScope scope(traits_.index);
  if (Status status = scope.status(); !status.ok()) return status;
  return to_status(cudaMemcpyAsync(destination, source, bytes, native(kind), cuda::native(stream)),
                   "cudaMemcpyAsync");
}

Status CudaBackend::do_fill(void* destination, std::uint8_t value, std::size_t bytes,
                            Stream stream) {
  const DeviceScope scope(traits_.index);
  if (Status status = scope.status(); !status.ok()) return status;
  return to_status(cudaMemsetAsync(destination, value, bytes, cuda::native(stream)),
                   "cudaMemsetAsync");
}

Result<Stream> CudaBackend::do_create_stream(StreamMode mode) {
  if (mode != StreamMode::automatic) {
    return Status::format(StatusCode::invalid_argument,
                          "create_stream: mode is %d; on cuda it should be automatic",
                          static_cast<int>(mode));
  }
  const DeviceScope scope(traits_.index);
  if (Status status = scope.status(); !status.ok()) return status;
  cudaStream_t stream = nullptr;
  // Non-blocking: it does not wait for the legacy default stream.
  Status status =
      to_status(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  if (!status.ok()) return status;
  return Stream{stream};
}

void CudaBackend::do_destroy_stream(Stream stream) noexcept {
  const DeviceScope scope(traits_.index);
  (void)to_status(cudaStreamSynchronize(cuda::native(stream)), "cudaStreamSynchronize");
  (void)to_status(cudaStreamDestroy(cuda::native(stream)), "cudaStreamDestroy");
}

Status CudaBackend::do_synchronize(Stream stream) {
  const DeviceScope scope(traits_.index);
  if (Status status = scope.status(); !status.ok()) return status;
  return to_status(cudaStreamSynchronize(cuda::native(stream)), "cudaStreamSynchronize");
}

Result<Event> CudaBackend::do_create_event() {
  const DeviceScope scope(traits_.index);
  if (Status status = scope.status(); !status.ok()) return status;
  cudaEvent_t event = nullptr;
  Status status =
      to_status(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate");
  if (!status.ok()) return status;
  return Event{event};
}

void CudaBackend::do_destroy_event(Event event) noexcept {
  const DeviceScope scope(traits_.index);
  (void)to_status(cudaEventDestroy(native(event)), "cudaEventDestroy");
}

Status CudaBackend::do_record(Event event, Stream stream) {
  const DeviceScope scope(traits_.index);
  if (Status status = scope.status(); !status.ok()) return status;
  return to_status(cudaEventRecord(native(event), cuda::native(stream)), "cudaEventRecord");
}

Status CudaBackend::do_wait(Stream stream, Event event) {
  const DeviceScope scope(traits_.index);
  if (Status status = scope.status(); !status.ok()) return status;
  return to_status(cudaStreamWaitEvent(cuda::native(stream), native(event), 0),
                   "cudaStreamWaitEvent");
}

Result<bool> CudaBackend::do_query(Event event) {
  const cudaError_t error = cudaEventQuery(native(event));
  if (error == cudaSuccess) return true;
  if (error == cudaErrorNotReady) {
    (void)cudaGetLastError();
    return false;
  }
  return to_status(error, "cudaEventQuery");
}

Status CudaBackend::do_synchronize(Event event) {
  return to_status(cudaEventSynchronize(native(event)), "cudaEventSynchronize");
}

}  // namespace cuda
RANKFOLD_NAMESPACE_END
