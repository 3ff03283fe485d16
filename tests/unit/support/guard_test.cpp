// Guards find every byte that was written where nothing may write.
#include <doctest/doctest.h>

#include <cmath>

#include "guard.hpp"

namespace rankfold::testing {

TEST_CASE("rows lie at their strides with NaN between, and come back") {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    HostTensor tensor(dtype, {3, 4});
    for (std::int64_t i = 0; i < 12; ++i) tensor.set(i, static_cast<double>(i));
    const GuardedImage image = make_image("y", tensor, 6, 1);
    CHECK(image.offset == kGuardBytes + size_of(dtype));
    CHECK(image.stride_bytes == 6 * size_of(dtype));
    const std::byte* const gap = image.bytes.data() + image.offset + 4 * size_of(dtype);
    CHECK(std::isnan(read_number(dtype, gap)));
    CHECK(std::isnan(read_number(dtype, image.bytes.data() + image.bytes.size() - size_of(dtype))));
    CHECK(extract(image, image.bytes, tensor).bytes == tensor.bytes);
  }
}

TEST_CASE("every byte outside the rows of an output is guarded, every byte of an input") {
  HostTensor tensor(DType::f32, {2, 3});
  for (const bool writable : {true, false}) {
    GuardedImage image = make_image("y", tensor, 5);
    image.writable = writable;
    CHECK(find_damage(image, image.bytes).empty());
    std::size_t guarded = 0;
    for (std::size_t i = 0; i < image.bytes.size(); ++i) {
      std::vector<std::byte> after = image.bytes;
      after[i] ^= std::byte{0x10};
      guarded += find_damage(image, after).empty() ? 0 : 1;
    }
    CHECK(guarded == image.bytes.size() - (writable ? 2 * 3 * 4 : 0));
  }
}

TEST_CASE("raw memory is exactly as long as asked and full of NaN") {
  const GuardedImage image = make_raw_image("workspace", 37);
  CHECK(image.payload_bytes() == 37);
  CHECK(image.bytes.size() >= kGuardBytes + 37 + kGuardBytes);
  CHECK(std::isnan(read_number(DType::f32, image.bytes.data() + image.offset)));
  std::vector<std::byte> after = image.bytes;
  after[image.offset + 36] = std::byte{0};
  CHECK(find_damage(image, after).empty());
  after[image.offset + 37] = std::byte{0};
  CHECK(find_damage(image, after).find("0 bytes past its end") != std::string::npos);
}

}  // namespace rankfold::testing
