// What the machine itself reaches, in the same run: the yardsticks of the table.
#pragma once

#include <cstddef>

namespace rankfold::bench {

/// Bytes per second of a plain loop on all threads that reads memory which is in no cache. The
/// fastest of `repetitions`.
double read_bandwidth(const void* memory, std::size_t bytes, int threads, int repetitions);

/// Floating-point operations per second of one float32 product of Eigen, size x size x size, its
/// columns shared out among the threads. The fastest of `repetitions`.
double eigen_product_rate(int size, int threads, int repetitions);

int num_threads();

}  // namespace rankfold::bench
