// Counts what this process asks of the CUDA runtime, whoever asks: the functions of
// runtime_calls.cpp stand before those of libcudart and hand every call on. Calls by way of the
// driver API are not seen.
#pragma once

#include <cstdint>

namespace rankfold::cuda_test {

struct RuntimeCalls {
  std::int64_t allocations = 0;       ///< of device or pinned memory, and freeing it
  std::int64_t synchronisations = 0;  ///< the host waits: streams, events, devices, blocking copies
  std::int64_t default_stream = 0;    ///< work enqueued on the legacy or a thread's default stream
  std::int64_t kernels = 0;           ///< launched
  std::int64_t others = 0;            ///< copies, fills and host functions enqueued
  std::int64_t blocking_streams = 0;  ///< streams created that wait for the legacy default stream
};

/// Since the process began, of all threads.
RuntimeCalls runtime_calls() noexcept;

/// Since the object was made.
class RuntimeCallScope {
 public:
  RuntimeCallScope() noexcept : start_(runtime_calls()) {}
  RuntimeCalls counts() const noexcept;

 private:
  RuntimeCalls start_;
};

}  // namespace rankfold::cuda_test
