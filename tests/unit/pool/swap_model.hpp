// Swapping under load, the model: three linear targets, and adapters of small integers whose rows
// are known to the bit, so that a row says which version computed it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "rankfold/memory.hpp"
#include "rankfold/pool.hpp"

namespace rankfold::testing {

inline constexpr std::int32_t kSwapTargets = 3;
inline constexpr std::int32_t kSwapMaxRank = 8;
/// Different rows of x; row t of a step is row t mod kSwapPatterns of these.
inline constexpr std::size_t kSwapPatterns = 8;

/// "qkv" [12 -> 8, 4, 4], "gate_up" [12 -> 10, 6], "down" [16 -> 12].
std::vector<TargetSpec> swap_targets();
std::size_t swap_in(std::int32_t target);
std::size_t swap_out(std::int32_t target);

/// x of a target, [rows, in], and y before the step, [rows, out]. In bf16, so that a GPU's fast
/// kernels take the steps.
std::vector<BFloat16> swap_x(std::int32_t target, std::size_t rows);
std::vector<float> swap_start(std::int32_t target, std::size_t rows);

/// What the rows of a step must be under one version of an adapter, to the bit. Of the same size
/// for every adapter, so that live memory can be compared.
struct SwapVersion {
  int id = 0;
  AdapterHandle handle;
  std::uint64_t weight_bytes = 0;
  std::uint64_t arena_bytes = 0;
  std::atomic<bool> seen = false;         ///< a step's row was right under it
  std::vector<float> rows[kSwapTargets];  ///< [kSwapPatterns, out]

  bool matches(std::int32_t target, std::size_t row, const float* y) const;
};
using SwapVersionPtr = std::shared_ptr<SwapVersion>;

/// Weights of one load. Rank, scaling, bias and the modules that it has follow from the id, and so
/// does every weight: no two ids give the same rows.
class SwapAdapter {
 public:
  /// rank 0: what the id says.
  explicit SwapAdapter(int id, std::int32_t rank = 0);
  std::span<const AdapterBinding> view() const { return bindings_; }
  const SwapVersionPtr& version() const { return version_; }
  /// Makes every byte of the weights wrong: what must not matter after prepare().
  void scramble();

 private:
  std::vector<std::vector<BFloat16>> storage_;
  std::vector<std::vector<float>> biases_;
  std::vector<AdapterBinding> bindings_;
  SwapVersionPtr version_;
};

/// Bytes of the arena that the largest adapter takes.
std::uint64_t largest_swap_adapter();

}  // namespace rankfold::testing
