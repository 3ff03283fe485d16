#include "pool/convert.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

RANKFOLD_NAMESPACE_BEGIN
namespace detail {

namespace {

// Elements of one row, `stride` apart: files leave tensors unaligned, so no typed pointers.
template <class From, class To>
bool convert_run(const std::byte* source, std::int64_t stride, std::int64_t count,
                 std::byte* destination) noexcept {
  const std::int64_t step = stride * static_cast<std::int64_t>(sizeof(From));
  bool finite = true;
  for (std::int64_t i = 0; i < count; ++i) {
    From value;
    std::memcpy(&value, source + i * step, sizeof(value));
    const float wide = to_float(value);
    const To rounded = from_float<To>(wide);
    if constexpr (sizeof(To) < sizeof(float)) {
      finite = finite && (std::isfinite(to_float(rounded)) || !std::isfinite(wide));
    }
    std::memcpy(destination + i * static_cast<std::int64_t>(sizeof(To)), &rounded, sizeof(To));
  }
  return finite;
}

// Same dtype: bits are moved, NaN payloads included.
template <class Bits>
bool move_run(const std::byte* source, std::int64_t stride, std::int64_t count,
              std::byte* destination) noexcept {
  constexpr std::int64_t kSize = sizeof(Bits);
  if (stride == 1) {
    std::memcpy(destination, source, static_cast<std::size_t>(count * kSize));
    return true;
  }
  for (std::int64_t i = 0; i < count; ++i) {
    std::memcpy(destination + i * kSize, source + i * stride * kSize, sizeof(Bits));
  }
  return true;
}

using Run = bool (*)(const std::byte*, std::int64_t, std::int64_t, std::byte*) noexcept;

template <class From>
Run run_from(DType to) noexcept {
  switch (to) {
    case DType::f16:
      return convert_run<From, Half>;
    case DType::bf16:
      return convert_run<From, BFloat16>;
    default:
      return convert_run<From, float>;
  }
}

Run run_of(DType from, DType to) noexcept {
  if (from == to) return from == DType::f32 ? move_run<std::uint32_t> : move_run<std::uint16_t>;
  switch (from) {
    case DType::f16:
      return run_from<Half>(to);
    case DType::bf16:
      return run_from<BFloat16>(to);
    default:
      return run_from<float>(to);
  }
}

}  // namespace

HostMatrix host_matrix(const ConstTensorView& view) noexcept {
  if (view.num_dims == 1) {
    return {view.data, view.dtype, 1, view.sizes[0], 0, view.strides[0]};
  }
  return {view.data, view.dtype, view.sizes[0], view.sizes[1], view.strides[0], view.strides[1]};
}

bool convert(const HostMatrix& source, std::int64_t first, std::int64_t count, DType dtype,
             std::byte* destination) noexcept {
  const Run run = run_of(source.dtype, dtype);
  const auto* const data = static_cast<const std::byte*>(source.data);
  const auto source_size = static_cast<std::int64_t>(size_of(source.dtype));
  bool finite = true;
  std::int64_t row = first / source.columns;
  std::int64_t column = first % source.columns;
  while (count > 0) {
    const std::int64_t length = std::min(count, source.columns - column);
    const std::int64_t offset = row * source.row_stride + column * source.column_stride;
    finite = run(data + offset * source_size, source.column_stride, length, destination) && finite;
    destination += length * static_cast<std::int64_t>(size_of(dtype));
    count -= length;
    column = 0;
    ++row;
  }
  return finite;
}

}  // namespace detail
RANKFOLD_NAMESPACE_END
