#include "pool/convert.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

using namespace rankfold;
using namespace rankfold::detail;

namespace {

template <class T>
std::vector<T> converted(const HostMatrix& source, DType dtype, std::int64_t first,
                         std::int64_t count, bool* finite = nullptr) {
  std::vector<T> out(static_cast<std::size_t>(count));
  const bool ok = convert(source, first, count, dtype, reinterpret_cast<std::byte*>(out.data()));
  if (finite != nullptr) *finite = ok;
  return out;
}

}  // namespace

TEST_CASE("convert: any part of a strided, unaligned matrix, in its own dtype") {
  // [3, 4] with rows 20 and columns 3 elements apart, one byte off.
  std::vector<std::byte> memory(1 + 64 * 4);
  const HostMatrix source{memory.data() + 1, DType::f32, 3, 4, 20, 3};
  for (int row = 0; row < 3; ++row) {
    for (int column = 0; column < 4; ++column) {
      const float value = static_cast<float>(10 * row + column);
      std::memcpy(memory.data() + 1 + 4 * (20 * row + 3 * column), &value, 4);
    }
  }
  CHECK(converted<float>(source, DType::f32, 0, 12) ==
        std::vector<float>{0, 1, 2, 3, 10, 11, 12, 13, 20, 21, 22, 23});
  CHECK(converted<float>(source, DType::f32, 3, 6) == std::vector<float>{3, 10, 11, 12, 13, 20});
}

TEST_CASE("convert: negative and zero strides") {
  const float values[] = {1, 2, 3};
  const HostMatrix reversed{values + 2, DType::f32, 1, 3, 0, -1};
  CHECK(converted<float>(reversed, DType::f32, 0, 3) == std::vector<float>{3, 2, 1});
  const HostMatrix repeated{values, DType::f32, 2, 3, 0, 1};
  CHECK(converted<float>(repeated, DType::f32, 0, 6) == std::vector<float>{1, 2, 3, 1, 2, 3});
}

TEST_CASE("convert: the same dtype keeps every bit, NaN payloads included") {
  std::vector<std::uint16_t> bits(65536);
  for (std::size_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<std::uint16_t>(i);
  for (const DType dtype : {DType::f16, DType::bf16}) {
    const HostMatrix source{bits.data(), dtype, 256, 256, 256, 1};
    CHECK(converted<std::uint16_t>(source, dtype, 0, 65536) == bits);
  }
}

TEST_CASE("convert: widening is exact") {
  std::vector<std::uint16_t> bits(65536);
  for (std::size_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<std::uint16_t>(i);
  const auto check = [&](DType dtype, auto widen) {
    bool finite = false;
    const auto wide =
        converted<float>({bits.data(), dtype, 1, 65536, 0, 1}, DType::f32, 0, 65536, &finite);
    CHECK(finite);
    int wrong = 0;
    for (std::size_t i = 0; i < bits.size(); ++i) {
      const float want = widen(bits[i]);
      wrong += std::isnan(want) ? !std::isnan(wide[i]) : wide[i] != want;
    }
    CHECK(wrong == 0);
  };
  check(DType::f16, [](std::uint16_t b) { return to_float(Half{b}); });
  check(DType::bf16, [](std::uint16_t b) { return to_float(BFloat16{b}); });
}

TEST_CASE("convert: narrowing rounds once, and tells when a finite value overflows") {
  const float values[] = {1.0f / 3.0f, 65504.0f, 1e-8f, std::numeric_limits<float>::infinity()};
  bool finite = false;
  const HostMatrix source{values, DType::f32, 1, 4, 0, 1};
  const auto halves = converted<std::uint16_t>(source, DType::f16, 0, 4, &finite);
  CHECK(finite);  // what was infinite stays so
  for (int i = 0; i < 4; ++i) CHECK(halves[i] == to_half(values[i]).bits);
  const auto narrow = converted<std::uint16_t>(source, DType::bf16, 0, 4, &finite);
  for (int i = 0; i < 4; ++i) CHECK(narrow[i] == to_bfloat16(values[i]).bits);
  const float large[] = {1.0f, 65520.0f};
  converted<std::uint16_t>({large, DType::f32, 1, 2, 0, 1}, DType::f16, 0, 2, &finite);
  CHECK_FALSE(finite);
  const std::uint16_t wide_bf16[] = {to_bfloat16(1e30f).bits};
  converted<std::uint16_t>({wide_bf16, DType::bf16, 1, 1, 0, 1}, DType::f16, 0, 1, &finite);
  CHECK_FALSE(finite);
}
