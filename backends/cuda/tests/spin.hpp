// A kernel that occupies a stream until it is let go.
#pragma once

#include <cuda_runtime_api.h>

namespace rankfold::cuda_test {

/// Spins on the stream until *go (pinned host memory) is not zero, or for ten seconds of a fast
/// clock.
void launch_spin(const volatile int* go, cudaStream_t stream);

/// Does nothing, once, with the <<<>>> of the language.
void launch_nothing(cudaStream_t stream);

}  // namespace rankfold::cuda_test
