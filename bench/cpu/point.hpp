// One line of the table: a batch over weights that stand, many times over, in a large pool.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "rankfold/rankfold.hpp"
#include "rounds.hpp"

namespace rankfold::bench {

inline constexpr std::int64_t kHidden = 4096;  ///< in and out

struct PointSpec {
  std::string name;
  std::int64_t tokens;
  std::int64_t adapters;  ///< of one step; rows are dealt out in runs of the same length
  std::int32_t rank;
  bool by_bytes;  ///< judged by GB/s (else by GFLOP/s)
};

/// The adapters of a rank in the pool, one after the other: A [rank, hidden], B [hidden, rank]
/// bf16.
struct WeightPool {
  const std::byte* memory = nullptr;
  std::size_t bytes = 0;

  static std::int64_t adapter_bytes(std::int32_t rank) { return 2 * 2 * kHidden * rank; }
  std::int64_t num_adapters(std::int32_t rank) const {
    return static_cast<std::int64_t>(bytes) / adapter_bytes(rank);
  }
  const BFloat16* a(std::int32_t rank, std::int64_t adapter) const {
    return reinterpret_cast<const BFloat16*>(memory + adapter * adapter_bytes(rank));
  }
  const BFloat16* b(std::int32_t rank, std::int64_t adapter) const {
    return a(rank, adapter) + kHidden * rank;
  }
};

struct PointTimes {
  InTurn step;
  double eigen = 0;  ///< seconds a step of the Eigen loop
  double error = 0;  ///< largest error of y in units in the last place, checked rows
  bool correct = false;
};

/// Checks the result, then times the step over rotating weights. `yardstick` measures once what the
/// machine reaches, in the unit of `work` per second.
PointTimes measure(LoraBackend& backend, const PointSpec& spec, const WeightPool& pool, int rounds,
                   double work, const std::function<double()>& yardstick);

/// The same step as two Eigen products an adapter: h = x A^T, y += scaling h B^T.
void eigen_step(const PointSpec& spec, const WeightPool& pool, std::int64_t first_adapter,
                const std::vector<BFloat16>& x, float scaling, std::vector<BFloat16>& y);

}  // namespace rankfold::bench
