// Element types, and the exact conversions between float and the two 16-bit formats.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "rankfold/export.hpp"

RANKFOLD_NAMESPACE_BEGIN

/// Element type of a tensor. The numbers are part of the ABI; the names are those of safetensors
/// in lower case.
enum class DType : std::int32_t { f32 = 0, f16 = 1, bf16 = 2, f64 = 3, i32 = 4, i64 = 5 };

/// IEEE 754 binary16, by its bits.
struct Half {
  std::uint16_t bits;
};

/// The upper half of an IEEE 754 binary32, by its bits.
struct BFloat16 {
  std::uint16_t bits;
};

/// Size of one element in bytes.
constexpr std::size_t size_of(DType dtype) noexcept {
  switch (dtype) {
    case DType::f32:
    case DType::i32:
      return 4;
    case DType::f16:
    case DType::bf16:
      return 2;
    case DType::f64:
    case DType::i64:
      return 8;
  }
  return 0;
}

/// f32, f16 or bf16: what x, y, A and B may be.
constexpr bool is_activation(DType dtype) noexcept {
  return dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16;
}

/// "f32", "f16", ...; a static string. "?" for a value outside the enumeration.
RANKFOLD_EXPORT const char* to_string(DType dtype) noexcept;

/// The dtype of a name in either case ("BF16", "bf16"); nothing for any other text.
RANKFOLD_EXPORT std::optional<DType> parse_dtype(std::string_view name) noexcept;

/// The dtype of a C++ element type; not defined for others.
template <class T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::f32;
};
template <>
struct DTypeOf<Half> {
  static constexpr DType value = DType::f16;
};
template <>
struct DTypeOf<BFloat16> {
  static constexpr DType value = DType::bf16;
};
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::f64;
};
template <>
struct DTypeOf<std::int32_t> {
  static constexpr DType value = DType::i32;
};
template <>
struct DTypeOf<std::int64_t> {
  static constexpr DType value = DType::i64;
};
template <class T>
inline constexpr DType kDTypeOf = DTypeOf<T>::value;

/// Exact: every bfloat16 is a float, NaN payloads included.
constexpr float to_float(BFloat16 value) noexcept {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16);
}

/// Exact: every half is a float, subnormals included; NaN stays NaN with its payload, made quiet.
constexpr float to_float(Half value) noexcept {
  const std::uint32_t sign = static_cast<std::uint32_t>(value.bits & 0x8000u) << 16;
  const std::uint32_t exponent = (value.bits >> 10) & 0x1fu;
  std::uint32_t mantissa = value.bits & 0x3ffu;
  if (exponent == 0x1f) {
    const std::uint32_t quiet = mantissa != 0 ? 0x400000u : 0u;
    return std::bit_cast<float>(sign | 0x7f800000u | quiet | (mantissa << 13));
  }
  if (exponent != 0)
    return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  if (mantissa == 0) return std::bit_cast<float>(sign);
  const int shift = std::countl_zero(mantissa) - 21;  // brings the leading one to bit 10
  mantissa = (mantissa << shift) & 0x3ffu;
  return std::bit_cast<float>(sign | (static_cast<std::uint32_t>(113 - shift) << 23) |
                              (mantissa << 13));
}

constexpr float to_float(float value) noexcept { return value; }

/// Nearest bfloat16, ties to even; overflow gives infinity, NaN stays a quiet NaN.
constexpr BFloat16 to_bfloat16(float value) noexcept {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) {
    return {static_cast<std::uint16_t>((bits >> 16) | 0x40u)};
  }
  const std::uint32_t even = (bits >> 16) & 1u;
  return {static_cast<std::uint16_t>((bits + 0x7fffu + even) >> 16)};
}

/// Nearest half, ties to even; overflow gives infinity, NaN stays a quiet NaN, subnormals are kept.
constexpr Half to_half(float value) noexcept {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {
    return {static_cast<std::uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu))};
  }
  if (magnitude >= 0x477ff000u) return {static_cast<std::uint16_t>(sign | 0x7c00u)};
  if (magnitude >= 0x38800000u) {  // a normal half
    const std::uint32_t odd = (magnitude >> 13) & 1u;
    return {static_cast<std::uint16_t>(sign | ((magnitude - 0x38000000u + 0xfffu + odd) >> 13))};
  }
  if (magnitude <= 0x33000000u) return {static_cast<std::uint16_t>(sign)};  // at most 2^-25
  const std::uint32_t exponent = magnitude >> 23;
  const std::uint32_t mantissa = (magnitude & 0x7fffffu) | 0x800000u;
  const std::uint32_t shift = 126 - exponent;  // 14 to 24
  const std::uint32_t kept = mantissa >> shift;
  const std::uint32_t rest = mantissa & ((1u << shift) - 1);
  const std::uint32_t half_way = 1u << (shift - 1);
  const std::uint32_t up = rest > half_way || (rest == half_way && (kept & 1u) != 0) ? 1u : 0u;
  return {static_cast<std::uint16_t>(sign | (kept + up))};
}

/// One rounding from float to T (float, Half or BFloat16).
template <class T>
constexpr T from_float(float value) noexcept;
template <>
constexpr float from_float<float>(float value) noexcept {
  return value;
}
template <>
constexpr Half from_float<Half>(float value) noexcept {
  return to_half(value);
}
template <>
constexpr BFloat16 from_float<BFloat16>(float value) noexcept {
  return to_bfloat16(value);
}

RANKFOLD_NAMESPACE_END
