// The groups of points. Each prints its table and returns whether all results were right.
#pragma once

#include <cstdio>

#include "machine.hpp"
#include "point.hpp"

namespace rankfold::bench {

struct Machine {
  LoraBackend& backend;
  WeightPool weights;  ///< small random bfloat16, far larger than every cache
  int threads;
  int rounds;

  double read_bandwidth() const {
    return bench::read_bandwidth(weights.memory, weights.bytes, threads);
  }
};

/// apply_linear, hidden 4096: decode, and many rows of an adapter.
bool serve(const Machine& machine);
/// apply_experts, the shape of Qwen3-30B-A3B: decode by gather, prefill grouped.
bool experts(const Machine& machine);
/// forward and backward, 2048 rows, beside plain Eigen products on the same threads.
bool training(const Machine& machine);

}  // namespace rankfold::bench
