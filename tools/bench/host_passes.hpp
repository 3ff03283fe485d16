// Plain loops over memory with every thread of the machine: what no operation on it can beat.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

namespace rankfold::tools {

/// A run of bytes; `written`: each element is read and written back, else it is read alone.
struct MemoryRange {
  void* data = nullptr;
  std::size_t bytes = 0;
  bool written = false;
};

/// Threads that the passes use.
int host_threads();
/// Runs work(index, count) on every thread of the machine, index 0 on the caller's.
void on_all_threads(const std::function<void(int, int)>& work);
/// Reads every range, and reads and writes back (unchanged) those that are `written`.
void elementwise_pass(const std::vector<MemoryRange>& ranges);
void copy_pass(void* destination, const void* source, std::size_t bytes);

/// Multiplications and additions a second of a large float32 product (Eigen) on all threads.
double host_matrix_rate();

}  // namespace rankfold::tools
