// Dropout's random numbers: Philox4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as
// easy as 1, 2, 3; SC 2011).
#pragma once

#include <cmath>
#include <cstdint>

#include "rankfold/arguments.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace reference {

/// Counters that are drawn together: what a compiler makes vectors of.
inline constexpr int kPhiloxCounters = 8;

/// values[l][i]: word l of the block whose counter is (c0 + i, c1, c2, c3).
inline void philox4x32_10(std::uint32_t c0, std::uint32_t c1, std::uint32_t c2, std::uint32_t c3,
                          std::uint64_t key, std::uint32_t (&values)[4][kPhiloxCounters]) noexcept {
  constexpr std::uint64_t kMultiplier0 = 0xD2511F53u;
  constexpr std::uint64_t kMultiplier1 = 0xCD9E8D57u;
  constexpr std::uint32_t kWeyl0 = 0x9E3779B9u;
  constexpr std::uint32_t kWeyl1 = 0xBB67AE85u;
  std::uint32_t(&a)[kPhiloxCounters] = values[0];
  std::uint32_t(&b)[kPhiloxCounters] = values[1];
  std::uint32_t(&c)[kPhiloxCounters] = values[2];
  std::uint32_t(&d)[kPhiloxCounters] = values[3];
  for (int i = 0; i < kPhiloxCounters; ++i) {
    a[i] = c0 + static_cast<std::uint32_t>(i);
    b[i] = c1;
    c[i] = c2;
    d[i] = c3;
  }
  auto key0 = static_cast<std::uint32_t>(key);
  auto key1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    for (int i = 0; i < kPhiloxCounters; ++i) {
      const std::uint64_t product0 = kMultiplier0 * a[i];
      const std::uint64_t product1 = kMultiplier1 * c[i];
      a[i] = static_cast<std::uint32_t>(product1 >> 32) ^ b[i] ^ key0;
      b[i] = static_cast<std::uint32_t>(product1);
      c[i] = static_cast<std::uint32_t>(product0 >> 32) ^ d[i] ^ key1;
      d[i] = static_cast<std::uint32_t>(product0);
    }
    key0 += kWeyl0;
    key1 += kWeyl1;
  }
}

/// The mask of one slice: which elements of x are kept.
class DropoutMask {
 public:
  DropoutMask(const Dropout& dropout, std::int64_t slice) noexcept
      : seed_(dropout.seed),
        row_base_(dropout.row_base),
        threshold_(static_cast<std::uint32_t>(std::floor(static_cast<double>(dropout.p) * 0x1p32))),
        slice_(static_cast<std::uint32_t>(slice)),
        scale_(1.0f / (1.0f - dropout.p)) {}

  /// float32 1 / (1 - p).
  float scale() const noexcept { return scale_; }

  /// all[i]: all bits where element (row, column + i) is kept, else none. `column` is a multiple of
  /// four. Row and column enter the counter modulo 2^32.
  void draw(std::int64_t row, std::int64_t column, std::int64_t count,
            std::uint32_t* all) const noexcept {
    std::uint32_t values[4][kPhiloxCounters];
    constexpr std::int64_t kStep = 4 * kPhiloxCounters;
    for (std::int64_t done = 0; done < count; done += kStep) {
      philox4x32_10(static_cast<std::uint32_t>((column + done) / 4),
                    static_cast<std::uint32_t>(row + row_base_), slice_, 0, seed_, values);
      if (count - done >= kStep) {
        for (int i = 0; i < kPhiloxCounters; ++i) {
          for (int l = 0; l < 4; ++l) all[done + 4 * i + l] = kept(values[l][i]);
        }
      } else {
        for (std::int64_t i = 0; i < count - done; ++i) all[done + i] = kept(values[i % 4][i / 4]);
      }
    }
  }

 private:
  std::uint32_t kept(std::uint32_t value) const noexcept {
    return value >= threshold_ ? ~std::uint32_t{0} : 0;
  }

  std::uint64_t seed_;
  std::int64_t row_base_;
  std::uint32_t threshold_;
  std::uint32_t slice_;
  float scale_;
};

/// result[i] = kept x[i] * scale, and 0 where it is dropped, whatever x[i] is.
inline void drop(const float* x, const std::uint32_t* mask, float scale, std::int64_t count,
                 float* result) noexcept {
  for (std::int64_t i = 0; i < count; ++i) result[i] = mask[i] != 0 ? x[i] * scale : 0.0f;
}

}  // namespace reference
RANKFOLD_NAMESPACE_END
