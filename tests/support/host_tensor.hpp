// A dense tensor in host memory, by its bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "numbers.hpp"
#include "rankfold/dtype.hpp"

namespace rankfold::testing {

/// Row-major and dense. No sizes: not given.
struct HostTensor {
  DType dtype = DType::f32;
  std::vector<std::int64_t> sizes;
  std::vector<std::byte> bytes;

  HostTensor() = default;
  HostTensor(DType element, std::vector<std::int64_t> extents)
      : dtype(element), sizes(std::move(extents)) {
    bytes.resize(static_cast<std::size_t>(count()) * size_of(dtype));
  }

  bool given() const noexcept { return !sizes.empty(); }
  std::int64_t count() const noexcept {
    std::int64_t product = sizes.empty() ? 0 : 1;
    for (const std::int64_t size : sizes) product *= size;
    return product;
  }
  std::int64_t rows() const noexcept { return sizes.empty() ? 0 : sizes.front(); }
  std::int64_t columns() const noexcept { return sizes.size() < 2 ? 1 : sizes[1]; }

  std::byte* at(std::int64_t index) noexcept {
    return bytes.data() + static_cast<std::size_t>(index) * size_of(dtype);
  }
  const std::byte* at(std::int64_t index) const noexcept {
    return bytes.data() + static_cast<std::size_t>(index) * size_of(dtype);
  }
  double get(std::int64_t index) const noexcept { return read_number(dtype, at(index)); }
  void set(std::int64_t index, double value) noexcept { write_number(dtype, at(index), value); }
  bool same_bits(std::int64_t index, const HostTensor& other) const noexcept {
    return std::memcmp(at(index), other.at(index), size_of(dtype)) == 0;
  }

  /// All elements, widened exactly.
  std::vector<double> numbers() const {
    std::vector<double> values(static_cast<std::size_t>(count()));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = get(static_cast<std::int64_t>(i));
    return values;
  }
};

/// A vector of a C++ element type as a tensor.
template <class T>
HostTensor host_vector(std::span<const T> values) {
  HostTensor tensor(kDTypeOf<T>, {static_cast<std::int64_t>(values.size())});
  if (!values.empty()) std::memcpy(tensor.bytes.data(), values.data(), tensor.bytes.size());
  return tensor;
}
template <class T>
HostTensor host_vector(const std::vector<T>& values) {
  return host_vector<T>(std::span<const T>(values));
}

}  // namespace rankfold::testing
