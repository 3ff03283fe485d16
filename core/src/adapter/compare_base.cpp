#include <cstring>
#include <vector>

#include "adapter/parsed_adapter.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace detail {

namespace {

template <class T>
void widen(const std::byte* from, std::int64_t stride_bytes, std::vector<double>& to) {
  for (std::size_t i = 0; i < to.size(); ++i) {
    T value;
    std::memcpy(&value, from + static_cast<std::int64_t>(i) * stride_bytes, sizeof(T));
    if constexpr (std::is_same_v<T, double>) {
      to[i] = value;
    } else {
      to[i] = static_cast<double>(to_float(value));
    }
  }
}

void widen_row(DType dtype, const std::byte* from, std::int64_t stride, std::vector<double>& to) {
  const std::int64_t bytes = stride * static_cast<std::int64_t>(size_of(dtype));
  switch (dtype) {
    case DType::f16:
      return widen<Half>(from, bytes, to);
    case DType::bf16:
      return widen<BFloat16>(from, bytes, to);
    case DType::f64:
      return widen<double>(from, bytes, to);
    default:
      return widen<float>(from, bytes, to);
  }
}

}  // namespace

Status compare_base(const SafetensorsEntry& copy, std::int64_t row_begin,
                    const ConstTensorView& base) {
  const std::string name = "tensor " + quote(copy.name);
  const std::int64_t rows = base.sizes[0];
  const std::int64_t columns = base.sizes[1];
  if (copy.num_dims != 2 || copy.sizes[1] != columns || row_begin > copy.sizes[0] - rows) {
    return Status(StatusCode::invalid_argument, name + " has shape " + shape_text(copy) +
                                                    ", the base weight of the model has " +
                                                    shape_text(base.sizes, 2));
  }
  const auto element = static_cast<std::int64_t>(size_of(base.dtype));
  const auto* theirs = static_cast<const std::byte*>(copy.data) +
                       row_begin * columns * static_cast<std::int64_t>(size_of(copy.dtype));
  const auto* ours = static_cast<const std::byte*>(base.data);
  std::vector<double> their_row(static_cast<std::size_t>(columns));
  std::vector<double> our_row(static_cast<std::size_t>(columns));
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::byte* our_data = ours + row * base.strides[0] * element;
    const std::byte* their_data =
        theirs + row * columns * static_cast<std::int64_t>(size_of(copy.dtype));
    if (copy.dtype == base.dtype && base.strides[1] == 1 &&
        std::memcmp(their_data, our_data, static_cast<std::size_t>(columns * element)) == 0) {
      continue;
    }
    widen_row(copy.dtype, their_data, 1, their_row);
    widen_row(base.dtype, our_data, base.strides[1], our_row);
    for (std::size_t i = 0; i < our_row.size(); ++i) {
      const bool both_nan = their_row[i] != their_row[i] && our_row[i] != our_row[i];
      if (their_row[i] == our_row[i] || both_nan) continue;
      return Status::format(StatusCode::invalid_argument,
                            "%s differs from the base weight of the model, first at [%lld, %zu]: "
                            "%.9g in the file, %.9g in the model",
                            name.c_str(), static_cast<long long>(row + row_begin), i, their_row[i],
                            our_row[i]);
    }
  }
  return {};
}

}  // namespace detail
RANKFOLD_NAMESPACE_END
