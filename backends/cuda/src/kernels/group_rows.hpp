// What the one launch that groups rows asks of the device.
#pragma once

#include <cstdint>

#include "rankfold/export.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

inline constexpr int kGroupWarps = 32;  // of a block

/// Shared memory of a block, of at most 1024 slots: counters of all warps, and two of the block.
constexpr int group_rows_bytes(std::int32_t num_slots) noexcept {
  return static_cast<int>(sizeof(unsigned long long)) * kGroupWarps +
         static_cast<int>(sizeof(std::int32_t)) * (kGroupWarps * (num_slots | 1) + 2 * num_slots);
}

}  // namespace cuda
RANKFOLD_NAMESPACE_END
