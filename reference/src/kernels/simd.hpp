// Eight floats at once: AVX2 where the build has it, else a fixed-size Eigen array. Every function
// does the same arithmetic in the same order on each lane, whichever is used.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

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

/// Sixteen elements as two vectors. Floats and halves: the first eight, the last eight. bfloat16:
/// the even ones, the odd ones, which is what splitting 32-bit words gives without a shuffle.
struct Pair {
  F8 first;
  F8 second;
};
inline constexpr int kPairLanes = 2 * kLanes;

template <class T>
inline Pair load_pair(const T* p) noexcept {
  return {load8(p), load8(p + kLanes)};
}
template <class T>
inline void store_pair(T* p, const Pair& value) noexcept {
  store8(p, value.first);
  store8(p + kLanes, value.second);
}

#if RANKFOLD_REFERENCE_AVX2

inline Pair load_pair(const BFloat16* p) noexcept {
  const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  const __m256i upper = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(words, 16)),
          _mm256_castsi256_ps(_mm256_and_si256(words, upper))};
}

// The nearest bfloat16, ties to even, in the upper half of each word. Not for NaN.
inline __m256i round_to_upper_half(F8 value) noexcept {
  const __m256i bits = _mm256_castps_si256(value);
  const __m256i even = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  return _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), even);
}

// Element by element, for pairs that hold a NaN. Away from the fast path.
[[gnu::noinline, gnu::cold]] inline void store_pair_slowly(BFloat16* p, Pair value) noexcept {
  float elements[kPairLanes];
  store8(elements, value.first);
  store8(elements + kLanes, value.second);
  BFloat16 narrow[kPairLanes];
  for (int i = 0; i < kPairLanes; ++i) narrow[i] = to_bfloat16(elements[i / 2 + i % 2 * kLanes]);
  std::memcpy(p, narrow, sizeof(narrow));
}

inline void store_pair(BFloat16* p, const Pair& value) noexcept {
  if (_mm256_movemask_ps(_mm256_cmp_ps(value.first, value.second, _CMP_UNORD_Q)) != 0) {
    return store_pair_slowly(p, value);
  }
  const __m256i low = _mm256_srli_epi32(round_to_upper_half(value.first), 16);
  const __m256i high = round_to_upper_half(value.second);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_blend_epi16(low, high, 0xaa));
}

/// Even and odd elements of sixteen that stand in order.
inline Pair split_even_odd(const Pair& in_order) noexcept {
  const __m256d even = _mm256_castps_pd(_mm256_shuffle_ps(in_order.first, in_order.second, 0x88));
  const __m256d odd = _mm256_castps_pd(_mm256_shuffle_ps(in_order.first, in_order.second, 0xdd));
  return {_mm256_castpd_ps(_mm256_permute4x64_pd(even, 0xd8)),
          _mm256_castpd_ps(_mm256_permute4x64_pd(odd, 0xd8))};
}

#else

inline Pair split_even_odd(const Pair& in_order) noexcept {
  Pair result;
  for (int i = 0; i < kLanes; ++i) {
    const int k = 2 * i;
    result.first[i] = k < kLanes ? in_order.first[k] : in_order.second[k - kLanes];
    result.second[i] = k < kLanes ? in_order.first[k + 1] : in_order.second[k + 1 - kLanes];
  }
  return result;
}

inline Pair load_pair(const BFloat16* p) noexcept {
  return split_even_odd({load8(p), load8(p + kLanes)});
}
inline void store_pair(BFloat16* p, const Pair& value) noexcept {
  BFloat16 narrow[kPairLanes];
  for (int i = 0; i < kPairLanes; ++i) {
    narrow[i] = to_bfloat16(i % 2 == 0 ? value.first[i / 2] : value.second[i / 2]);
  }
  std::memcpy(p, narrow, sizeof(narrow));
}

#endif

/// The first `count` elements, 0 to 16; the other lanes are zero and their memory is not touched.
template <class T>
Pair load_pair(const T* p, std::int64_t count) noexcept {
  T elements[kPairLanes] = {};
  std::memcpy(elements, p, static_cast<std::size_t>(count) * sizeof(T));
  return load_pair(elements);
}
template <class T>
void store_pair(T* p, const Pair& value, std::int64_t count) noexcept {
  T elements[kPairLanes];
  store_pair(elements, value);
  std::memcpy(p, elements, static_cast<std::size_t>(count) * sizeof(T));
}

/// Whether load_pair gives even and odd elements.
template <class T>
inline constexpr bool kEvenOdd = std::is_same_v<T, BFloat16>;

constexpr std::int64_t round_up(std::int64_t value, std::int64_t unit) noexcept {
  return (value + unit - 1) / unit * unit;
}

/// Widens `count` elements, and zeros up to the next multiple of 16, in the order in which
/// load_pair(const Order*) gives them.
template <class Order, class T>
void widen(const T* source, float* destination, std::int64_t count) noexcept {
  const auto ordered = [](const Pair& pair) {
    if constexpr (kEvenOdd<Order> && !kEvenOdd<T>) {
      return split_even_odd(pair);
    } else {
      return pair;
    }
  };
  const auto load = [](const T* p) {
    if constexpr (kEvenOdd<T> && !kEvenOdd<Order>) {
      return Pair{load8(p), load8(p + kLanes)};
    } else {
      return load_pair(p);
    }
  };
  std::int64_t i = 0;
  for (; i + kPairLanes <= count; i += kPairLanes) {
    store_pair(destination + i, ordered(load(source + i)));
  }
  if (i < count) {
    T rest[kPairLanes] = {};
    std::memcpy(rest, source + i, static_cast<std::size_t>(count - i) * sizeof(T));
    store_pair(destination + i, ordered(load(rest)));
  }
}

/// Asks for the lines of [p, p + bytes).
inline void prefetch(const void* p, std::int64_t bytes) noexcept {
  const char* const line = static_cast<const char*>(p);
  for (std::int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(line + i);
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
