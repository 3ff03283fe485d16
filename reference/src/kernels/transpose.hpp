// Packs B for the expand: eight columns of y side by side, one vector per j.
#pragma once

#include <cstdint>

#include "simd.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace reference {

/// destination[j * stride + c] = b[c * b_stride + j] for c < columns (0 to 8) and j < rank, zero
/// for the other c below 8.
template <class TB>
void pack_any(const TB* b, std::int64_t b_stride, std::int64_t columns, std::int64_t rank,
              float* destination, std::int64_t stride) noexcept {
  for (std::int64_t j = 0; j < rank; ++j) {
    for (std::int64_t c = 0; c < kLanes; ++c) {
      TB element{};
      if (c < columns) std::memcpy(&element, b + c * b_stride + j, sizeof(TB));
      destination[j * stride + c] = to_float(element);
    }
  }
}

#if RANKFOLD_REFERENCE_AVX2

inline void transpose_8x8(F8 (&r)[8]) noexcept {
  F8 t[8];
  for (int i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
  }
  F8 u[8];
  for (int i = 0; i < 8; i += 4) {
    for (int s = 0; s < 2; ++s) {
      const __m256d low = _mm256_castps_pd(t[i + s]);
      const __m256d high = _mm256_castps_pd(t[i + s + 2]);
      u[i + 2 * s] = _mm256_castpd_ps(_mm256_unpacklo_pd(low, high));
      u[i + 2 * s + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(low, high));
    }
  }
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x20);
    r[i + 4] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x31);
  }
}

/// out[j] = b[c * b_stride + j] of eight columns c, for eight j.
template <class TB>
inline void load_8x8(const TB* b, std::int64_t b_stride, F8 (&out)[8]) noexcept {
  for (int c = 0; c < 8; ++c) out[c] = load8(b + c * b_stride);
  transpose_8x8(out);
}

// Pairs of bfloat16 are moved as 32-bit words, and split into two vectors of floats at the end: a
// quarter of the shuffles.
inline void load_8x8(const BFloat16* b, std::int64_t b_stride, F8 (&out)[8]) noexcept {
  __m256i r[4];
  for (int c = 0; c < 4; ++c) {
    const auto* const low = reinterpret_cast<const __m128i*>(b + c * b_stride);
    const auto* const high = reinterpret_cast<const __m128i*>(b + (c + 4) * b_stride);
    r[c] = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(low)),
                                   _mm_loadu_si128(high), 1);
  }
  const __m256i t0 = _mm256_unpacklo_epi32(r[0], r[1]);
  const __m256i t1 = _mm256_unpackhi_epi32(r[0], r[1]);
  const __m256i t2 = _mm256_unpacklo_epi32(r[2], r[3]);
  const __m256i t3 = _mm256_unpackhi_epi32(r[2], r[3]);
  const __m256i pairs[4] = {_mm256_unpacklo_epi64(t0, t2), _mm256_unpackhi_epi64(t0, t2),
                            _mm256_unpacklo_epi64(t1, t3), _mm256_unpackhi_epi64(t1, t3)};
  const __m256i upper = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  for (int p = 0; p < 4; ++p) {
    out[2 * p] = _mm256_castsi256_ps(_mm256_slli_epi32(pairs[p], 16));
    out[2 * p + 1] = _mm256_castsi256_ps(_mm256_and_si256(pairs[p], upper));
  }
}

#else

template <class TB>
inline void load_8x8(const TB* b, std::int64_t b_stride, F8 (&out)[8]) noexcept {
  float packed[8 * kLanes];
  pack_any(b, b_stride, kLanes, 8, packed, kLanes);
  for (int j = 0; j < 8; ++j) out[j] = load8(packed + j * kLanes);
}

#endif

/// pack_any, fast where there are eight columns.
template <class TB>
void pack_columns(const TB* b, std::int64_t b_stride, std::int64_t columns, std::int64_t rank,
                  float* destination, std::int64_t stride) noexcept {
  std::int64_t j = 0;
  if (columns == kLanes) {
    for (; j + kLanes <= rank; j += kLanes) {
      F8 rows[8];
      load_8x8(b + j, b_stride, rows);
      for (int i = 0; i < 8; ++i) store8(destination + (j + i) * stride, rows[i]);
    }
  }
  pack_any(b + j, b_stride, columns, rank - j, destination + j * stride, stride);
}

}  // namespace reference
RANKFOLD_NAMESPACE_END
