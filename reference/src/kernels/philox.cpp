#include "philox.hpp"

#include "simd.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace reference {

namespace {

constexpr std::uint32_t kMultiplier0 = 0xD2511F53u;
constexpr std::uint32_t kMultiplier1 = 0xCD9E8D57u;
constexpr std::uint32_t kWeyl0 = 0x9E3779B9u;
constexpr std::uint32_t kWeyl1 = 0xBB67AE85u;

#if RANKFOLD_REFERENCE_AVX2

// Upper and lower halves of eight products.
struct Wide {
  __m256i high;
  __m256i low;
};
inline Wide multiply(__m256i values, __m256i multiplier) noexcept {
  const __m256i even = _mm256_mul_epu32(values, multiplier);
  const __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(values, 32), multiplier);
  return {_mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa),
          _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa)};
}

struct Words {
  __m256i a, b, c, d;
};
inline Words draw_words(std::uint32_t c0, std::uint32_t c1, std::uint32_t c2, std::uint32_t c3,
                        std::uint64_t key) noexcept {
  const auto all = [](std::uint32_t value) { return _mm256_set1_epi32(static_cast<int>(value)); };
  Words w{_mm256_add_epi32(all(c0), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)), all(c1), all(c2),
          all(c3)};
  const __m256i multiplier0 = all(kMultiplier0);
  const __m256i multiplier1 = all(kMultiplier1);
  auto key0 = static_cast<std::uint32_t>(key);
  auto key1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const Wide of_a = multiply(w.a, multiplier0);
    const Wide of_c = multiply(w.c, multiplier1);
    w = {_mm256_xor_si256(_mm256_xor_si256(of_c.high, w.b), all(key0)), of_c.low,
         _mm256_xor_si256(_mm256_xor_si256(of_a.high, w.d), all(key1)), of_a.low};
    key0 += kWeyl0;
    key1 += kWeyl1;
  }
  return w;
}

// All bits where value >= threshold, both unsigned.
inline __m256i kept(__m256i value, __m256i threshold) noexcept {
  return _mm256_cmpeq_epi32(_mm256_max_epu32(value, threshold), value);
}

// The masks of 32 elements in order: words a, b, c, d of a counter stand next to each other.
inline void draw_32(std::uint32_t c0, std::uint32_t row, std::uint32_t slice, std::uint64_t seed,
                    std::uint32_t threshold, std::uint32_t* all) noexcept {
  const Words w = draw_words(c0, row, slice, 0, seed);
  const __m256i least = _mm256_set1_epi32(static_cast<int>(threshold));
  const __m256i a = kept(w.a, least), b = kept(w.b, least);
  const __m256i c = kept(w.c, least), d = kept(w.d, least);
  const __m256i ab_low = _mm256_unpacklo_epi32(a, b), ab_high = _mm256_unpackhi_epi32(a, b);
  const __m256i cd_low = _mm256_unpacklo_epi32(c, d), cd_high = _mm256_unpackhi_epi32(c, d);
  const __m256i of_04 = _mm256_unpacklo_epi64(ab_low, cd_low);
  const __m256i of_15 = _mm256_unpackhi_epi64(ab_low, cd_low);
  const __m256i of_26 = _mm256_unpacklo_epi64(ab_high, cd_high);
  const __m256i of_37 = _mm256_unpackhi_epi64(ab_high, cd_high);
  auto* const to = reinterpret_cast<__m256i*>(all);
  _mm256_storeu_si256(to, _mm256_permute2x128_si256(of_04, of_15, 0x20));
  _mm256_storeu_si256(to + 1, _mm256_permute2x128_si256(of_26, of_37, 0x20));
  _mm256_storeu_si256(to + 2, _mm256_permute2x128_si256(of_04, of_15, 0x31));
  _mm256_storeu_si256(to + 3, _mm256_permute2x128_si256(of_26, of_37, 0x31));
}

#else

inline void draw_32(std::uint32_t c0, std::uint32_t row, std::uint32_t slice, std::uint64_t seed,
                    std::uint32_t threshold, std::uint32_t* all) noexcept {
  std::uint32_t values[4][kPhiloxCounters];
  philox4x32_10(c0, row, slice, 0, seed, values);
  for (int i = 0; i < kPhiloxCounters; ++i) {
    for (int l = 0; l < 4; ++l) all[4 * i + l] = values[l][i] >= threshold ? ~std::uint32_t{0} : 0;
  }
}

#endif

}  // namespace

void philox4x32_10(std::uint32_t c0, std::uint32_t c1, std::uint32_t c2, std::uint32_t c3,
                   std::uint64_t key, std::uint32_t (&values)[4][kPhiloxCounters]) noexcept {
#if RANKFOLD_REFERENCE_AVX2
  const Words w = draw_words(c0, c1, c2, c3, key);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(values[0]), w.a);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(values[1]), w.b);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(values[2]), w.c);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(values[3]), w.d);
#else
  for (int i = 0; i < kPhiloxCounters; ++i) {
    std::uint32_t a = c0 + static_cast<std::uint32_t>(i), b = c1, c = c2, d = c3;
    auto key0 = static_cast<std::uint32_t>(key);
    auto key1 = static_cast<std::uint32_t>(key >> 32);
    for (int round = 0; round < 10; ++round) {
      const std::uint64_t of_a = std::uint64_t{kMultiplier0} * a;
      const std::uint64_t of_c = std::uint64_t{kMultiplier1} * c;
      a = static_cast<std::uint32_t>(of_c >> 32) ^ b ^ key0;
      b = static_cast<std::uint32_t>(of_c);
      c = static_cast<std::uint32_t>(of_a >> 32) ^ d ^ key1;
      d = static_cast<std::uint32_t>(of_a);
      key0 += kWeyl0;
      key1 += kWeyl1;
    }
    values[0][i] = a;
    values[1][i] = b;
    values[2][i] = c;
    values[3][i] = d;
  }
#endif
}

void DropoutMask::draw(std::int64_t row, std::int64_t column, std::int64_t count,
                       std::uint32_t* all) const noexcept {
  constexpr std::int64_t kStep = 4 * kPhiloxCounters;
  const auto counter_row = static_cast<std::uint32_t>(row + row_base_);
  std::int64_t done = 0;
  for (; done + kStep <= count; done += kStep) {
    draw_32(static_cast<std::uint32_t>((column + done) / 4), counter_row, slice_, seed_, threshold_,
            all + done);
  }
  if (done < count) {
    std::uint32_t rest[kStep];
    draw_32(static_cast<std::uint32_t>((column + done) / 4), counter_row, slice_, seed_, threshold_,
            rest);
    std::memcpy(all + done, rest, static_cast<std::size_t>(count - done) * sizeof(rest[0]));
  }
}

void drop(const float* x, const std::uint32_t* mask, float scale, std::int64_t count,
          float* result) noexcept {
  std::int64_t i = 0;
#if RANKFOLD_REFERENCE_AVX2
  for (; i + kLanes <= count; i += kLanes) {
    const __m256 all =
        _mm256_castsi256_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(mask + i)));
    store8(result + i, _mm256_and_ps(all, mul(load8(x + i), broadcast8(scale))));
  }
#endif
  for (; i < count; ++i) result[i] = mask[i] != 0 ? x[i] * scale : 0.0f;
}

}  // namespace reference
RANKFOLD_NAMESPACE_END
