// The backend under test, and memory on it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "rankfold/memory.hpp"
#include "rankfold/operations.hpp"

namespace rankfold::cuda_test {

/// The first device; device_main.cpp has made sure that there is one.
LoraBackend& device();

inline cudaStream_t native(Stream stream) { return static_cast<cudaStream_t>(stream.handle); }

OwnedStream make_stream();

/// Host data on the device, and back. They wait.
template <class T>
Buffer upload(const std::vector<T>& data, Stream stream) {
  Buffer buffer = Buffer::create(device(), data.size() * sizeof(T)).value();
  throw_if_error(
      device().copy(buffer.data(), data.data(), buffer.bytes(), CopyKind::host_to_device, stream));
  throw_if_error(device().synchronize(stream));
  return buffer;
}
template <class T>
std::vector<T> download(const Buffer& buffer, Stream stream) {
  std::vector<T> data(buffer.bytes() / sizeof(T));
  throw_if_error(
      device().copy(data.data(), buffer.data(), buffer.bytes(), CopyKind::device_to_host, stream));
  throw_if_error(device().synchronize(stream));
  return data;
}

}  // namespace rankfold::cuda_test
