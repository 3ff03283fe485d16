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
void philox4x32_10(std::uint32_t c0, std::uint32_t c1, std::uint32_t c2, std::uint32_t c3,
                   std::uint64_t key, std::uint32_t (&values)[4][kPhiloxCounters]) noexcept;

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
            std::uint32_t* all) const noexcept;

 private:
  std::uint64_t seed_;
  std::int64_t row_base_;
  std::uint32_t threshold_;
  std::uint32_t slice_;
  float scale_;
};

/// result[i] = kept x[i] * scale, and 0 where it is dropped, whatever x[i] is.
void drop(const float* x, const std::uint32_t* mask, float scale, std::int64_t count,
          float* result) noexcept;

}  // namespace reference
RANKFOLD_NAMESPACE_END
