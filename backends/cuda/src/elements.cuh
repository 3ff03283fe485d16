// Elements of x, y, A and B: exact widening to float32, one rounding back.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "rankfold/dtype.hpp"
#include "rankfold/status.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

__device__ inline float widen(float value) { return value; }
__device__ inline float widen(__half value) { return __half2float(value); }
__device__ inline float widen(__nv_bfloat16 value) { return __bfloat162float(value); }

template <class T>
__device__ T narrow(float value);
template <>
__device__ inline float narrow<float>(float value) {
  return value;
}
template <>
__device__ inline __half narrow<__half>(float value) {
  return __float2half_rn(value);
}
template <>
__device__ inline __nv_bfloat16 narrow<__nv_bfloat16>(float value) {
  return __float2bfloat16_rn(value);
}

/// Calls f with a null pointer of the element type of dtype.
template <class F>
Status with_element(DType dtype, F f) {
  switch (dtype) {
    case DType::f16:
      return f(static_cast<const __half*>(nullptr));
    case DType::bf16:
      return f(static_cast<const __nv_bfloat16*>(nullptr));
    default:
      return f(static_cast<const float*>(nullptr));
  }
}

}  // namespace cuda
RANKFOLD_NAMESPACE_END
