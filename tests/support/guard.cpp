#include "guard.hpp"

#include <algorithm>
#include <cstring>

namespace rankfold::testing {

namespace {

// NaN with a payload that no arithmetic makes.
std::uint64_t gap_pattern(DType dtype) noexcept {
  switch (dtype) {
    case DType::f16:
      return 0x7ead;
    case DType::bf16:
      return 0x7fad;
    case DType::f32:
      return 0x7fc0deadu;
    case DType::f64:
      return 0x7ff8deaddeaddeadu;
    case DType::i32:
      return 0x7ead7eadu;
    case DType::i64:
      return 0x7ead7ead7ead7eadu;
  }
  return 0;
}

void fill_pattern(std::vector<std::byte>& bytes, DType dtype) {
  const std::uint64_t pattern = gap_pattern(dtype);
  const std::size_t size = size_of(dtype);
  const std::size_t whole = bytes.size() / size * size;
  if (whole == 0) return;
  std::memcpy(bytes.data(), &pattern, size);  // little-endian
  // Doubled each time: a call for each element would be most of what a sanitizer's run takes.
  for (std::size_t done = size; done < whole; done *= 2) {
    std::memcpy(bytes.data() + done, bytes.data(), std::min(done, whole - done));
  }
}

std::size_t round_up(std::size_t value) noexcept {
  return (value + kGuardBytes - 1) / kGuardBytes * kGuardBytes;
}

}  // namespace

GuardedImage make_image(std::string name, const HostTensor& tensor, std::int64_t row_stride,
                        std::int64_t misalignment) {
  GuardedImage image;
  image.name = std::move(name);
  image.dtype = tensor.dtype;
  const std::size_t element = size_of(tensor.dtype);
  const bool is_vector = tensor.sizes.size() < 2;
  image.num_rows = is_vector ? 1 : static_cast<std::size_t>(tensor.rows());
  image.row_bytes =
      element * static_cast<std::size_t>(is_vector ? tensor.count() : tensor.columns());
  image.stride_bytes =
      std::max(image.row_bytes, static_cast<std::size_t>(std::max<std::int64_t>(row_stride, 0)) *
                                    element);  // a stride that is too small is the call's to refuse
  image.offset = kGuardBytes + static_cast<std::size_t>(misalignment) * element;
  image.bytes.resize(round_up(image.offset + image.payload_bytes()) + kGuardBytes);
  fill_pattern(image.bytes, tensor.dtype);
  for (std::size_t row = 0; row < image.num_rows; ++row) {
    if (image.row_bytes == 0) break;
    std::memcpy(image.bytes.data() + image.offset + row * image.stride_bytes,
                tensor.bytes.data() + row * image.row_bytes, image.row_bytes);
  }
  return image;
}

GuardedImage make_raw_image(std::string name, std::size_t size) {
  GuardedImage image;
  image.name = std::move(name);
  image.num_rows = 1;
  image.row_bytes = size;
  image.stride_bytes = size;
  image.offset = kGuardBytes;
  image.bytes.resize(round_up(kGuardBytes + size) + kGuardBytes);
  fill_pattern(image.bytes, DType::f32);
  std::memset(image.bytes.data() + image.offset, 0xff, size);
  image.writable = true;
  return image;
}

std::string find_damage(const GuardedImage& image, std::span<const std::byte> after) {
  std::size_t position = 0;
  const auto check_until = [&](std::size_t end) -> bool {
    // std::mismatch goes byte by byte, so the place is looked for only where there is one.
    if (position == end) return true;
    if (std::memcmp(image.bytes.data() + position, after.data() + position, end - position) == 0) {
      position = end;
      return true;
    }
    const auto first = std::mismatch(image.bytes.begin() + static_cast<std::ptrdiff_t>(position),
                                     image.bytes.begin() + static_cast<std::ptrdiff_t>(end),
                                     after.begin() + static_cast<std::ptrdiff_t>(position));
    position = static_cast<std::size_t>(first.first - image.bytes.begin());
    return position == end;
  };
  bool intact = true;
  if (image.writable) {
    for (std::size_t row = 0; row < image.num_rows && intact; ++row) {
      intact = check_until(image.offset + row * image.stride_bytes);
      if (intact) position += image.row_bytes;
    }
  }
  if (intact) intact = check_until(image.bytes.size());
  if (intact) return {};
  const auto relative =
      static_cast<std::ptrdiff_t>(position) - static_cast<std::ptrdiff_t>(image.offset);
  const auto size = static_cast<std::ptrdiff_t>(image.payload_bytes());
  const std::string where =
      relative < 0       ? std::to_string(-relative) + " bytes before its start"
      : relative >= size ? std::to_string(relative - size) + " bytes past its end"
                         : "byte " + std::to_string(relative) +
                               (image.writable ? ", in the gap between two rows" : " of an input");
  return image.name + " was written where nothing may write: " + where;
}

HostTensor extract(const GuardedImage& image, std::span<const std::byte> after,
                   const HostTensor& like) {
  HostTensor tensor(like.dtype, like.sizes);
  for (std::size_t row = 0; row < image.num_rows && image.row_bytes > 0; ++row) {
    std::memcpy(tensor.bytes.data() + row * image.row_bytes,
                after.data() + image.offset + row * image.stride_bytes, image.row_bytes);
  }
  return tensor;
}

}  // namespace rankfold::testing
