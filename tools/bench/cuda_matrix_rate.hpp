// How fast the device multiplies bf16 matrices, by cuBLAS, which is loaded when it is there.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

namespace rankfold::tools {

struct MatrixRate {
  double flops_per_second = 0;  ///< 0: not measured
  std::string source;           ///< what multiplied, or why nothing did
};
/// A product of two 8192 x 8192 matrices of noise, float32 accumulation; median of 10.
MatrixRate cuda_matrix_rate(cudaStream_t stream);

}  // namespace rankfold::tools
