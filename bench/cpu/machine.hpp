// What the machine itself reaches, in the same run: the yardsticks of the table.
#pragma once

#include <cstddef>

namespace rankfold::bench {

/// Bytes per second of a plain loop on all threads that reads memory which is in no cache.
double read_bandwidth(const void* memory, std::size_t bytes, int threads);

inline constexpr int kProductSize = 2048;

/// Floating-point operations per second of one float32 product of Eigen, kProductSize cubed, its
/// columns shared out among the threads.
double eigen_product_rate(int threads);

int num_threads();

}  // namespace rankfold::bench
