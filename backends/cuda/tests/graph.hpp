// A captured CUDA graph.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>

#include "device.hpp"

namespace rankfold::cuda_test {

/// Throws std::runtime_error with the runtime's text.
void check_cuda(cudaError_t error, const char* call);

class Graph {
 public:
  /// What `enqueue` enqueues on the stream, captured; nothing runs. In the strictest mode: whatever
  /// is not legal in a capture anywhere in the process fails it.
  Graph(Stream stream, const std::function<void()>& enqueue);
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  void launch(Stream stream) const;
  /// Of any kind: kernels, copies, fills.
  std::size_t num_nodes() const;

 private:
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
};

}  // namespace rankfold::cuda_test
