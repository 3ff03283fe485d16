// What decides when memory is cold: the size of the last cache, and how much memory there is.
#pragma once

#include <cstdint>

#include "rankfold/backend.hpp"

namespace rankfold::tools {

struct MachineLimits {
  std::int64_t cache_bytes = 0;   ///< the last level of cache
  std::int64_t memory_bytes = 0;  ///< what one point may allocate
  std::int64_t cold_bytes = 0;    ///< what the copies of a point together should touch
};

/// Of the backend's device. On a CPU by what the system says; elsewhere memory by the registry's
/// description, and `device_cache_bytes` (0: not known). At least 192 MiB are cold.
MachineLimits machine_limits(const LoraBackend& backend, std::int64_t device_cache_bytes);

}  // namespace rankfold::tools
