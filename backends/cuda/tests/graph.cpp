#include "graph.hpp"

#include <stdexcept>
#include <string>

namespace rankfold::cuda_test {

void check_cuda(cudaError_t error, const char* call) {
  if (error != cudaSuccess)
    throw std::runtime_error(std::string(call) + ": " + cudaGetErrorString(error));
}

Graph::Graph(Stream stream, const std::function<void()>& enqueue) {
  check_cuda(cudaStreamBeginCapture(native(stream), cudaStreamCaptureModeGlobal),
             "cudaStreamBeginCapture");
  enqueue();
  check_cuda(cudaStreamEndCapture(native(stream), &graph_), "cudaStreamEndCapture");
  check_cuda(cudaGraphInstantiate(&executable_, graph_, 0), "cudaGraphInstantiate");
}

Graph::~Graph() {
  if (executable_ != nullptr) (void)cudaGraphExecDestroy(executable_);
  if (graph_ != nullptr) (void)cudaGraphDestroy(graph_);
}

void Graph::launch(Stream stream) const {
  check_cuda(cudaGraphLaunch(executable_, native(stream)), "cudaGraphLaunch");
}

std::size_t Graph::num_nodes() const {
  std::size_t count = 0;
  check_cuda(cudaGraphGetNodes(graph_, nullptr, &count), "cudaGraphGetNodes");
  return count;
}

}  // namespace rankfold::cuda_test
