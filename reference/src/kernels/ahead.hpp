// Asks for memory that is needed next, a little at a time.
#pragma once

#include <algorithm>
#include <cstdint>

#include "rankfold/export.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace reference {

/// The lines of some rows of a matrix. A burst would fill the processor's queue of misses and stop
/// what is being computed, so they are asked for evenly, between tiles.
class Ahead {
 public:
  Ahead() = default;
  /// Rows rows[0], ..., rows[count - 1] of `bytes` bytes each; row r begins at base + r * stride.
  /// They are to be asked for in `steps` steps.
  Ahead(const void* base, std::int64_t stride, const std::int32_t* rows, std::int64_t count,
        std::int64_t bytes, std::int64_t steps) noexcept
      : base_(static_cast<const char*>(base)),
        stride_(stride),
        rows_(rows),
        count_(count),
        bytes_(bytes) {
    const std::int64_t lines = count * ((bytes + 63) / 64);
    each_ = (lines + steps - 1) / std::max<std::int64_t>(steps, 1);
  }

  void step() noexcept {
    for (std::int64_t i = 0; i < each_ && row_ < count_; ++i) {
      __builtin_prefetch(base_ + rows_[row_] * stride_ + at_);
      at_ += 64;
      if (at_ >= bytes_) {
        at_ = 0;
        ++row_;
      }
    }
  }

 private:
  const char* base_ = nullptr;
  std::int64_t stride_ = 0;
  const std::int32_t* rows_ = nullptr;
  std::int64_t count_ = 0;
  std::int64_t bytes_ = 0;
  std::int64_t each_ = 0;
  std::int64_t row_ = 0;
  std::int64_t at_ = 0;
};

}  // namespace reference
RANKFOLD_NAMESPACE_END
