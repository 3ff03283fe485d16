// Conversions between float and the 16-bit formats, against values computed by ldexp.
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "rankfold/dtype.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

using namespace rankfold;

namespace {

// A binary format by its parameters, computed apart from the library's bit tricks.
struct Format {
  int mantissa_bits;
  int bias;
  std::uint32_t exponents;  // values of the exponent field

  double value(std::uint32_t magnitude) const {
    const std::uint32_t exponent = magnitude >> mantissa_bits;
    const std::uint32_t mantissa = magnitude & ((1u << mantissa_bits) - 1);
    if (exponent == 0) return std::ldexp(mantissa, 1 - bias - mantissa_bits);
    return std::ldexp(mantissa + (1u << mantissa_bits),
                      static_cast<int>(exponent) - bias - mantissa_bits);
  }
  std::uint32_t infinity() const { return (exponents - 1) << mantissa_bits; }
};

constexpr Format kHalf{10, 15, 32};
constexpr Format kBFloat16{7, 127, 256};

template <class T>
void check_widening(const Format& format) {
  int failures = 0;
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const float got = to_float(T{static_cast<std::uint16_t>(bits)});
    const std::uint32_t magnitude = bits & 0x7fffu;
    const bool negative = bits >= 0x8000u;
    bool good = std::signbit(got) == negative;
    if (magnitude > format.infinity()) {
      // The payload stays, at the top of the mantissa.
      const std::uint32_t payload = magnitude & ((1u << format.mantissa_bits) - 1);
      const std::uint32_t wide = std::bit_cast<std::uint32_t>(got) & 0x7fffffu;
      const std::uint32_t expected = payload << (23 - format.mantissa_bits);
      good = good && std::isnan(got) && (wide | 0x400000u) == (expected | 0x400000u);
    } else if (magnitude == format.infinity()) {
      good = good && std::isinf(got);
    } else {
      const double expected = format.value(magnitude);
      good = good && static_cast<double>(got) == (negative ? -expected : expected);
    }
    if (!good && ++failures < 5) FAIL_CHECK("pattern " << bits << " gave " << got);
  }
  CHECK(failures == 0);
}

template <class T>
std::uint32_t narrow(double value) {
  const auto single = static_cast<float>(value);
  REQUIRE(static_cast<double>(single) == value);  // the midpoints are exact in float
  return from_float<T>(single).bits;
}

template <class T>
std::uint32_t narrow_next(double value, float towards) {
  return from_float<T>(std::nextafter(static_cast<float>(value), towards)).bits;
}

template <class T>
void check_narrowing(const Format& format) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  int failures = 0;
  const auto expect = [&](std::uint32_t got, std::uint32_t expected, std::uint32_t low,
                          const char* where) {
    if (got != expected && ++failures < 5) {
      FAIL_CHECK(where << " " << low << ": got " << got << ", not " << expected);
    }
  };
  // The last pair is the largest finite number and infinity, as if it were the next number.
  for (std::uint32_t low = 0; low < format.infinity(); ++low) {
    const std::uint32_t high = low + 1;
    const double below = format.value(low);
    const double middle = below + (format.value(high) - below) / 2;
    const std::uint32_t even = (low & 1u) == 0 ? low : high;
    for (const std::uint32_t sign : {0u, 0x8000u}) {
      const double s = sign == 0 ? 1 : -1;
      const float away = sign == 0 ? kInf : -kInf;
      expect(narrow<T>(s * below), low | sign, low, "itself");
      expect(narrow<T>(s * middle), even | sign, low, "the midpoint after");
      expect(narrow_next<T>(s * middle, 0.0f), low | sign, low, "below the midpoint after");
      expect(narrow_next<T>(s * middle, away), high | sign, low, "above the midpoint after");
    }
  }
  CHECK(failures == 0);
  CHECK(from_float<T>(kInf).bits == format.infinity());
  CHECK(from_float<T>(-kInf).bits == (format.infinity() | 0x8000u));
  CHECK(from_float<T>(std::numeric_limits<float>::max()).bits == format.infinity());
  CHECK(from_float<T>(std::numeric_limits<float>::denorm_min()).bits == 0);
  CHECK(from_float<T>(-0.0f).bits == 0x8000u);
}

template <class T>
void check_nan(const Format& format) {
  const std::uint32_t quiet = 1u << (format.mantissa_bits - 1);
  for (const std::uint32_t sign : {0u, 0x80000000u}) {
    for (std::uint32_t payload = 1; payload < 0x800000u; payload += 1021) {
      const auto value = std::bit_cast<float>(sign | 0x7f800000u | payload);
      const std::uint32_t bits = from_float<T>(value).bits;
      REQUIRE((bits & 0x7fffu) > format.infinity());
      REQUIRE((bits & quiet) != 0);
      REQUIRE((bits >> 15) == (sign >> 31));
    }
  }
}

}  // namespace

TEST_CASE("widening of all 65,536 patterns is exact") {
  check_widening<Half>(kHalf);
  check_widening<BFloat16>(kBFloat16);
}

TEST_CASE("narrowing at every number, at every midpoint of neighbours and beside it") {
  check_narrowing<Half>(kHalf);
  check_narrowing<BFloat16>(kBFloat16);
}

TEST_CASE("narrowing a NaN gives a quiet NaN of the same sign") {
  check_nan<Half>(kHalf);
  check_nan<BFloat16>(kBFloat16);
}

TEST_CASE("widening, then narrowing gives the same pattern") {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const auto pattern = static_cast<std::uint16_t>(bits);
    if ((bits & 0x7fffu) <= kHalf.infinity()) {
      REQUIRE(to_half(to_float(Half{pattern})).bits == bits);
    }
    if ((bits & 0x7fffu) <= kBFloat16.infinity()) {
      REQUIRE(to_bfloat16(to_float(BFloat16{pattern})).bits == bits);
    }
  }
}

TEST_CASE("the conversions are usable at compile time") {
  static_assert(to_float(Half{0x3c00}) == 1.0f && to_half(65504.0f).bits == 0x7bff);
  static_assert(to_float(BFloat16{0x3f80}) == 1.0f && to_bfloat16(-2.0f).bits == 0xc000);
  static_assert(size_of(DType::bf16) == 2 && size_of(DType::i64) == 8);
  static_assert(size_of(static_cast<DType>(77)) == 0);
}

#if defined(__x86_64__)
namespace {
__attribute__((target("f16c"))) std::uint16_t hardware_half(float value) {
  return static_cast<std::uint16_t>(
      _mm_extract_epi16(_mm_cvtps_ph(_mm_set_ss(value), _MM_FROUND_TO_NEAREST_INT), 0));
}
}  // namespace

TEST_CASE("narrowing to half agrees with the processor") {
  if (!__builtin_cpu_supports("avx2")) {  // clang 14 has no name for F16C, which comes with it
    MESSAGE("skipped: this processor has no AVX2");
    return;
  }
  for (std::uint64_t bits = 0; bits < (1ull << 32); bits += 997) {
    const auto value = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    REQUIRE(to_half(value).bits == hardware_half(value));
  }
}
#endif
