// Which kernels this program has, and which of them have been launched: kernel_registry.cpp and
// runtime_calls.cpp stand before the CUDA runtime's functions.
#pragma once

#include <string>
#include <vector>

namespace rankfold::cuda_test {

struct KernelUse {
  std::string name;  ///< with its template arguments
  long long launches = 0;
};

/// All kernels of the program.
std::vector<KernelUse> kernel_uses();

/// Called for every launch.
void note_launch(const void* kernel) noexcept;

}  // namespace rankfold::cuda_test
