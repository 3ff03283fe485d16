// A kernel that occupies a stream until it is let go.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace rankfold::cuda_test {

/// Spins on the stream until *go (pinned host memory) is not zero, or for ten seconds of a fast
/// clock.
void launch_spin(const volatile int* go, cudaStream_t stream);

/// Does nothing, once, with the <<<>>> of the language.
void launch_nothing(cudaStream_t stream);

/// Copies `bytes`, a multiple of 16, from one place on the device to another: after some twenty
/// microseconds, but what follows in the stream may be launched at once, if it was made for that.
void launch_late_copy(void* to, const void* from, std::size_t bytes, cudaStream_t stream);

/// The same without delay, launched while the kernel before it ends, for which it waits.
void launch_early_copy(void* to, const void* from, std::size_t bytes, cudaStream_t stream);

}  // namespace rankfold::cuda_test
