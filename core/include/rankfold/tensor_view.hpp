// Views of memory that the caller owns: pointer, dtype, sizes, strides, device.
#pragma once

#include <cstdint>
#include <type_traits>

#include "rankfold/dtype.hpp"
#include "rankfold/export.hpp"

RANKFOLD_NAMESPACE_BEGIN

/// Where memory lives. The numbers are those of DLPack's DLDeviceType.
enum class DeviceType : std::int32_t { cpu = 1, cuda = 2, vulkan = 7, rocm = 10, oneapi = 14 };

/// One device. The index counts devices of the same type from 0.
struct Device {
  DeviceType type = DeviceType::cpu;
  std::int32_t index = 0;

  friend constexpr bool operator==(Device, Device) = default;
};

/// Most dimensions of a view.
inline constexpr int kMaxDims = 4;

/// A tensor to be read. Owns nothing; plain data. Strides are in elements and may be 0.
/// data == nullptr with num_dims == 0 means "not given" for an optional tensor.
struct ConstTensorView {
  const void* data = nullptr;
  DType dtype = DType::f32;
  std::int32_t num_dims = 0;
  std::int64_t sizes[kMaxDims] = {};
  std::int64_t strides[kMaxDims] = {};
  Device device = {};
};

/// A tensor to be written.
struct TensorView {
  void* data = nullptr;
  DType dtype = DType::f32;
  std::int32_t num_dims = 0;
  std::int64_t sizes[kMaxDims] = {};
  std::int64_t strides[kMaxDims] = {};
  Device device = {};

  operator ConstTensorView() const noexcept {  // NOLINT: what is writable is readable
    ConstTensorView view{data, dtype, num_dims, {}, {}, device};
    for (int i = 0; i < kMaxDims; ++i) {
      view.sizes[i] = sizes[i];
      view.strides[i] = strides[i];
    }
    return view;
  }
};

/// [rows, columns], element stride 1. row_stride < 0 means dense (row_stride = columns).
inline ConstTensorView const_matrix(const void* data, DType dtype, std::int64_t rows,
                                    std::int64_t columns, Device device = {},
                                    std::int64_t row_stride = -1) noexcept {
  return {data,  dtype, 2, {rows, columns, 0, 0}, {row_stride < 0 ? columns : row_stride, 1, 0, 0},
          device};
}
/// The same to be written.
inline TensorView matrix(void* data, DType dtype, std::int64_t rows, std::int64_t columns,
                         Device device = {}, std::int64_t row_stride = -1) noexcept {
  return {data,  dtype, 2, {rows, columns, 0, 0}, {row_stride < 0 ? columns : row_stride, 1, 0, 0},
          device};
}
/// The same with the dtype of T.
template <class T>
ConstTensorView const_matrix(const T* data, std::int64_t rows, std::int64_t columns,
                             Device device = {}, std::int64_t row_stride = -1) noexcept {
  return const_matrix(data, kDTypeOf<T>, rows, columns, device, row_stride);
}
/// The same to be written, with the dtype of T.
template <class T>
requires(!std::is_const_v<T>) TensorView matrix(T* data, std::int64_t rows, std::int64_t columns,
                                                Device device = {}, std::int64_t row_stride = -1)
noexcept { return matrix(data, kDTypeOf<T>, rows, columns, device, row_stride); }

/// [size], element stride 1.
inline ConstTensorView const_vector(const void* data, DType dtype, std::int64_t size,
                                    Device device = {}) noexcept {
  return {data, dtype, 1, {size, 0, 0, 0}, {1, 0, 0, 0}, device};
}
/// The same with the dtype of T.
template <class T>
ConstTensorView const_vector(const T* data, std::int64_t size, Device device = {}) noexcept {
  return const_vector(data, kDTypeOf<T>, size, device);
}

static_assert(std::is_trivially_copyable_v<TensorView> && std::is_standard_layout_v<TensorView>);

RANKFOLD_NAMESPACE_END
