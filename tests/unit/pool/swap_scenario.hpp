// Swapping under load, put together: one thread steps, one loads, on any backend.
#pragma once

#include <string>

#include "swap_loads.hpp"
#include "swap_steps.hpp"

namespace rankfold::testing {

struct SwapReport {
  SwapStepCounts steps;
  SwapLoadCounts loads;
  std::int64_t num_failures = 0;
  std::string failures;  ///< the first of them in words
  std::string summary;
};

/// Runs it; the pool has five slots and memory for three of the largest adapters.
/// `heap_bytes`: see SwapLoads.
SwapReport run_swap(LoraBackend& backend, std::int64_t num_publishes, unsigned seed,
                    std::int64_t (*heap_bytes)() noexcept);

/// What must be true of every run, as doctest checks.
void check_swap(const SwapReport& report, std::int64_t num_publishes);

}  // namespace rankfold::testing
