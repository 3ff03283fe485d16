#include "runtime.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

Status to_status(cudaError_t error, const char* call) noexcept {
  if (error == cudaSuccess) return {};
  // The runtime keeps a copy for cudaGetLastError, where the host would take it for its own.
  (void)cudaGetLastError();
  const StatusCode code =
      error == cudaErrorMemoryAllocation ? StatusCode::out_of_memory : StatusCode::device_error;
  return Status::format(code, "cuda: %s: %s (%s)", call, cudaGetErrorString(error),
                        cudaGetErrorName(error));
}

}  // namespace cuda
RANKFOLD_NAMESPACE_END
