// Forward and backward of one adapter as plain Eigen products, rows shared out among threads: what
// a training engine writes first.
#pragma once

#include <cstdint>

#include "rankfold/dtype.hpp"

namespace rankfold::bench {

inline constexpr std::int64_t kTrainRows = 2048;
inline constexpr std::int64_t kTrainWidth = 2048;  ///< in and out
inline constexpr std::int64_t kTrainRank = 16;
inline constexpr float kTrainScaling = 0.5f;

template <class T>
struct EigenTraining {
  const T* x;   ///< [rows, width]
  T* y;         ///< [rows, width]
  const T* dy;  ///< [rows, width]
  T* dx;        ///< [rows, width], added to
  const T* a;   ///< [rank, width]
  const T* b;   ///< [width, rank]
  float* h;     ///< [rows, rank]
  float* da;    ///< [rank, width]
  float* db;    ///< [width, rank]
  int threads;
};

/// h = x A^T; y += scaling h B^T.
template <class T>
void eigen_forward(const EigenTraining<T>& data);
/// ds = scaling dy B; dx += ds A; dA = ds^T x; dB = scaling dy^T h.
template <class T>
void eigen_backward(const EigenTraining<T>& data);

}  // namespace rankfold::bench
