#include "device.hpp"

#include "rankfold/cuda.hpp"

namespace rankfold::cuda_test {

LoraBackend& device() {
  static LoraBackend* const instance = [] {
    LoraBackend* made = nullptr;
    throw_if_error(cuda::descriptor().create(0, &made));
    return made;
  }();
  return *instance;
}

OwnedStream make_stream() { return OwnedStream::create(device()).value(); }

}  // namespace rankfold::cuda_test
