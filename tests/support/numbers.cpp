#include "numbers.hpp"

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

namespace rankfold::testing {

namespace {

// A binary format: precision with the leading one, exponent of the smallest normal and the largest.
struct Format {
  int precision;
  int min_exponent;
  int max_exponent;
};

Format format_of(DType dtype) noexcept {
  switch (dtype) {
    case DType::f16:
      return {11, -14, 15};
    case DType::bf16:
      return {8, -126, 127};
    default:
      return {24, -126, 127};
  }
}

// Exponent k of |value| in [2^k, 2^(k+1)), not below the subnormals' binade.
int binade(const Format& format, double value) noexcept {
  if (value == 0) return format.min_exponent;
  return std::max(std::ilogb(value), format.min_exponent);
}

double pow2(int exponent) noexcept {
  // Called for every number that is judged, and std::ldexp is slow.
  if (exponent < -1022 || exponent > 1023) return std::ldexp(1.0, exponent);
  return std::bit_cast<double>(static_cast<std::uint64_t>(exponent + 1023) << 52);
}

// Bits of a value that the format holds exactly (or NaN, infinity).
std::uint32_t encode(const Format& format, int exponent_bits, double value) noexcept {
  const int fraction_bits = format.precision - 1;
  const std::uint32_t sign = std::signbit(value) ? 1u << (fraction_bits + exponent_bits) : 0u;
  const std::uint32_t all_ones = ((1u << exponent_bits) - 1) << fraction_bits;
  if (std::isnan(value)) return sign | all_ones | (1u << (fraction_bits - 1));
  if (std::isinf(value)) return sign | all_ones;
  const double magnitude = std::fabs(value);
  if (magnitude < pow2(format.min_exponent)) {
    const double units = magnitude / pow2(format.min_exponent - fraction_bits);
    return sign | static_cast<std::uint32_t>(units);
  }
  const int exponent = std::ilogb(magnitude);
  const double units = (magnitude / pow2(exponent) - 1.0) * pow2(fraction_bits);
  const auto biased = static_cast<std::uint32_t>(exponent - format.min_exponent + 1);
  return sign | (biased << fraction_bits) | static_cast<std::uint32_t>(units);
}

double decode(const Format& format, int exponent_bits, std::uint32_t bits) noexcept {
  const int fraction_bits = format.precision - 1;
  const double sign = (bits >> (fraction_bits + exponent_bits)) & 1u ? -1.0 : 1.0;
  const std::uint32_t biased = (bits >> fraction_bits) & ((1u << exponent_bits) - 1);
  const std::uint32_t fraction = bits & ((1u << fraction_bits) - 1);
  if (biased == (1u << exponent_bits) - 1) {
    return fraction != 0 ? std::numeric_limits<double>::quiet_NaN()
                         : sign * std::numeric_limits<double>::infinity();
  }
  if (biased == 0) return sign * fraction * pow2(format.min_exponent - fraction_bits);
  const int exponent = static_cast<int>(biased) + format.min_exponent - 1;
  return sign * (1.0 + fraction * pow2(-fraction_bits)) * pow2(exponent);
}

template <class T>
T load(const void* element) noexcept {
  T value;
  std::memcpy(&value, element, sizeof(T));
  return value;
}

template <class T>
void store(void* element, T value) noexcept {
  std::memcpy(element, &value, sizeof(T));
}

}  // namespace

double read_number(DType dtype, const void* element) noexcept {
  switch (dtype) {
    case DType::f32:
      return static_cast<double>(load<float>(element));
    case DType::f16:
      return decode(format_of(dtype), 5, load<std::uint16_t>(element));
    case DType::bf16:
      return decode(format_of(dtype), 8, load<std::uint16_t>(element));
    case DType::f64:
      return load<double>(element);
    case DType::i32:
      return load<std::int32_t>(element);
    case DType::i64:
      return static_cast<double>(load<std::int64_t>(element));
  }
  return 0;
}

double round_to(DType dtype, double value) noexcept {
  if (dtype == DType::f64 || !std::isfinite(value) || value == 0) return value;
  const Format format = format_of(dtype);
  const double unit = pow2(binade(format, value) - format.precision + 1);
  const double rounded = std::nearbyint(value / unit) * unit;  // default mode: ties to even
  if (std::fabs(rounded) >= pow2(format.max_exponent + 1)) {
    return std::copysign(std::numeric_limits<double>::infinity(), value);
  }
  return rounded == 0 ? std::copysign(0.0, value) : rounded;
}

void write_number(DType dtype, void* element, double value) noexcept {
  switch (dtype) {
    case DType::f32:
      store(element, encode(format_of(dtype), 8, round_to(dtype, value)));
      break;
    case DType::f16:
      store(element,
            static_cast<std::uint16_t>(encode(format_of(dtype), 5, round_to(dtype, value))));
      break;
    case DType::bf16:
      store(element,
            static_cast<std::uint16_t>(encode(format_of(dtype), 8, round_to(dtype, value))));
      break;
    case DType::f64:
      store(element, value);
      break;
    case DType::i32:
      store(element, static_cast<std::int32_t>(value));
      break;
    case DType::i64:
      store(element, static_cast<std::int64_t>(value));
      break;
  }
}

double ulp_at(DType dtype, double value) noexcept {
  const Format format = format_of(dtype);
  if (!std::isfinite(value)) return pow2(format.max_exponent - format.precision + 1);
  return pow2(binade(format, value) - format.precision + 1);
}

bool is_tie(DType dtype, double value) noexcept {
  if (!std::isfinite(value) || value == 0) return false;
  const double units = value / ulp_at(dtype, value);
  return units - std::floor(units) == 0.5;
}

}  // namespace rankfold::testing
