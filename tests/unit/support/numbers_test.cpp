// The oracle's number formats: widening, rounding, ulp and ties, against values worked out by hand
// and against the library's own conversions.
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstring>

#include "fill.hpp"
#include "numbers.hpp"

namespace rankfold::testing {

TEST_CASE("all 16-bit patterns widen as the library widens them and come back") {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
      const auto pattern = static_cast<std::uint16_t>(bits);
      const float library =
          dtype == DType::f16 ? to_float(Half{pattern}) : to_float(BFloat16{pattern});
      const double number = read_number(dtype, &pattern);
      if (std::isnan(library)) {
        REQUIRE(std::isnan(number));
        continue;
      }
      REQUIRE(number == static_cast<double>(library));
      std::uint16_t back = 0;
      write_number(dtype, &back, number);
      REQUIRE(back == pattern);
    }
  }
}

TEST_CASE("rounding agrees with the library, and with the hardware in float32") {
  for (std::uint64_t i = 0; i < 200000; ++i) {
    const double value = std::ldexp(random_unit(3, 1, i), static_cast<int>(i % 60) - 40);
    CHECK(round_to(DType::f32, value) == static_cast<double>(static_cast<float>(value)));
    const auto narrow = static_cast<float>(value);
    REQUIRE(round_to(DType::f16, narrow) == static_cast<double>(to_float(to_half(narrow))));
    REQUIRE(round_to(DType::bf16, narrow) == static_cast<double>(to_float(to_bfloat16(narrow))));
    float written = 0;
    write_number(DType::f32, &written, value);
    REQUIRE(std::bit_cast<std::uint32_t>(written) == std::bit_cast<std::uint32_t>(narrow));
  }
}

TEST_CASE("values by hand") {
  CHECK(round_to(DType::bf16, 257) == 256);  // tie to even, down
  CHECK(round_to(DType::bf16, 259) == 260);  // tie to even, up
  CHECK(round_to(DType::bf16, 257.0001) == 258);
  CHECK(round_to(DType::f16, 2049) == 2048);
  CHECK(round_to(DType::f16, 2051) == 2052);
  CHECK(std::isinf(round_to(DType::f16, 65520)));
  CHECK(round_to(DType::f16, 65519) == 65504);
  CHECK(round_to(DType::f16, 0x1p-25) == 0);
  CHECK(round_to(DType::f16, 0x1.8p-25) == 0x1p-24);
  CHECK(is_tie(DType::bf16, 257));
  CHECK(is_tie(DType::bf16, -259));
  CHECK_FALSE(is_tie(DType::bf16, 258));
  CHECK_FALSE(is_tie(DType::bf16, 257.5));
  CHECK(ulp_at(DType::bf16, 1) == 0x1p-7);
  CHECK(ulp_at(DType::bf16, 0.999) == 0x1p-8);
  CHECK(ulp_at(DType::f16, 1) == 0x1p-10);
  CHECK(ulp_at(DType::f16, 0) == 0x1p-24);
  CHECK(ulp_at(DType::f16, -2048) == 2);
}

}  // namespace rankfold::testing
