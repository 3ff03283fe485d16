// Elements of any dtype as float, for the naive backend.
#pragma once

#include <bit>
#include <cstdint>

#include "rankfold/dtype.hpp"

namespace rankfold::conformance {

inline float read(DType dtype, const void* data, std::int64_t index) {
  switch (dtype) {
    case DType::f16:
      return to_float(static_cast<const Half*>(data)[index]);
    case DType::bf16:
      return to_float(static_cast<const BFloat16*>(data)[index]);
    default:
      return static_cast<const float*>(data)[index];
  }
}

inline void write(DType dtype, void* data, std::int64_t index, float value) {
  switch (dtype) {
    case DType::f16:
      static_cast<Half*>(data)[index] = to_half(value);
      break;
    case DType::bf16:
      static_cast<BFloat16*>(data)[index] = to_bfloat16(value);
      break;
    default:
      static_cast<float*>(data)[index] = value;
  }
}

inline float through(DType dtype, float value) {
  float result = 0;
  std::uint64_t cell = 0;
  write(dtype, &cell, 0, value);
  result = read(dtype, &cell, 0);
  return result;
}

inline float to_tf32(float value) {
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) & 0xffffe000u);
}

}  // namespace rankfold::conformance
