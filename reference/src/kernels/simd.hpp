// Eight floats at once: AVX2 where the build has it, else a fixed-size Eigen array. Every function
// does the same arithmetic in the same order on each lane, whichever is used.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "rankfold/dtype.hpp"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define RANKFOLD_REFERENCE_AVX2 1
#include <immintrin.h>
#else
#define RANKFOLD_REFERENCE_AVX2 0
#include <Eigen/Core>
#endif

RANKFOLD_NAMESPACE_BEGIN
namespace reference {

inline constexpr int kLanes = 8;

#if RANKFOLD_REFERENCE_AVX2

using F8 = __m256;

inline F8 zero8() noexcept { return _mm256_setzero_ps(); }
inline F8 broadcast8(float value) noexcept { return _mm256_set1_ps(value); }
inline F8 add(F8 a, F8 b) noexcept { return _mm256_add_ps(a, b); }
inline F8 mul(F8 a, F8 b) noexcept { return _mm256_mul_ps(a, b); }
/// a * b + c
inline F8 fma(F8 a, F8 b, F8 c) noexcept { return _mm256_fmadd_ps(a, b, c); }

inline F8 load8(const float* p) noexcept { return _mm256_loadu_ps(p); }
inline F8 load8(const BFloat16* p) noexcept {
  const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
inline F8 load8(const Half* p) noexcept {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

inline void store8(float* p, F8 value) noexcept { _mm256_storeu_ps(p, value); }
inline void store8(Half* p, F8 value) noexcept {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                   _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
inline void store8(BFloat16* p, F8 value) noexcept {
  const __m256i bits = _mm256_castps_si256(value);
  const __m256i high = _mm256_srli_epi32(bits, 16);
  const __m256i even = _mm256_and_si256(high, _mm256_set1_epi32(1));
  const __m256i sum = _mm256_add_epi32(bits, _mm256_add_epi32(even, _mm256_set1_epi32(0x7fff)));
  const __m256i quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
  const __m256i rounded = _mm256_blendv_epi8(_mm256_srli_epi32(sum, 16), quiet, nan);
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(rounded, rounded), 0x08);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(packed));
}

/// ((v0 + v4) + (v2 + v6)) + ((v1 + v5) + (v3 + v7))
inline float sum(F8 v) noexcept {
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

#else

using F8 = Eigen::Array<float, kLanes, 1>;

inline float fma_scalar(float a, float b, float c) noexcept {
#ifdef FP_FAST_FMAF
  return std::fma(a, b, c);
#else
  return a * b + c;
#endif
}

inline F8 zero8() noexcept { return F8::Zero(); }
inline F8 broadcast8(float value) noexcept { return F8::Constant(value); }
inline F8 add(const F8& a, const F8& b) noexcept { return a + b; }
inline F8 mul(const F8& a, const F8& b) noexcept { return a * b; }
/// a * b + c
inline F8 fma(const F8& a, const F8& b, const F8& c) noexcept {
  F8 result;
  for (int i = 0; i < kLanes; ++i) result[i] = fma_scalar(a[i], b[i], c[i]);
  return result;
}

template <class T>
F8 load8(const T* p) noexcept {
  T elements[kLanes];
  std::memcpy(elements, p, sizeof(elements));
  F8 result;
  for (int i = 0; i < kLanes; ++i) result[i] = to_float(elements[i]);
  return result;
}
template <class T>
void store8(T* p, const F8& value) noexcept {
  T elements[kLanes];
  for (int i = 0; i < kLanes; ++i) elements[i] = from_float<T>(value[i]);
  std::memcpy(p, elements, sizeof(elements));
}

/// ((v0 + v4) + (v2 + v6)) + ((v1 + v5) + (v3 + v7))
inline float sum(const F8& v) noexcept {
  const float even = (v[0] + v[4]) + (v[2] + v[6]);
  const float odd = (v[1] + v[5]) + (v[3] + v[7]);
  return even + odd;
}

#endif

/// The first `count` elements, 0 to 8; the other lanes are zero and their memory is not touched.
template <class T>
F8 load8(const T* p, std::int64_t count) noexcept {
  T elements[kLanes] = {};
  std::memcpy(elements, p, static_cast<std::size_t>(count) * sizeof(T));
  return load8(elements);
}
template <class T>
void store8(T* p, const F8& value, std::int64_t count) noexcept {
  T elements[kLanes];
  store8(elements, value);
  std::memcpy(p, elements, static_cast<std::size_t>(count) * sizeof(T));
}

constexpr std::int64_t round_up(std::int64_t value, std::int64_t unit) noexcept {
  return (value + unit - 1) / unit * unit;
}

/// Widens `count` elements and fills with zeros up to the next multiple of 8.
template <class T>
void widen(const T* source, float* destination, std::int64_t count) noexcept {
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store8(destination + i, load8(source + i));
  if (i < count) store8(destination + i, load8(source + i, count - i));
}

/// Calls with a null pointer of the dtype's element type: f32, f16 or bf16.
template <class Call>
decltype(auto) with_element(DType dtype, Call&& call) {
  switch (dtype) {
    case DType::f16:
      return call(static_cast<const Half*>(nullptr));
    case DType::bf16:
      return call(static_cast<const BFloat16*>(nullptr));
    default:
      return call(static_cast<const float*>(nullptr));
  }
}

}  // namespace reference
RANKFOLD_NAMESPACE_END
