// The model's targets, and made-up adapters whose effect on a row is known to the bit.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <rankfold/rankfold.hpp>

namespace swap_under_load {

inline constexpr std::int32_t kNumTargets = 2;
inline constexpr std::int32_t kMaxRank = 32;
/// Different rows of x; row t of a step is row t mod kNumPatterns of these.
inline constexpr std::int64_t kNumPatterns = 4;

/// "qkv" [256 -> 256, 64, 64] and "down" [512 -> 256].
std::span<const rankfold::TargetSpec> targets();
std::int64_t in_of(std::int32_t target);
std::int64_t out_of(std::int32_t target);
std::vector<float> make_x(std::int32_t target, std::int64_t rows);
/// Arena bytes of an adapter of kMaxRank.
std::uint64_t largest_adapter();

/// What a training engine would hand over again and again: one adapter at one moment. Each has
/// weights of its own, small integers, with a scaling that is a power of two: all sums are exact in
/// float32 in any order, so a row says which revision computed it.
class Revision {
 public:
  /// `key` decides rank, scaling, which targets it has, and every weight.
  Revision(std::int32_t adapter, std::uint32_t key);
  Revision(const Revision&) = delete;
  Revision& operator=(const Revision&) = delete;

  std::int32_t adapter() const { return adapter_; }
  /// Views of the weights, until drop_weights().
  std::span<const rankfold::AdapterBinding> bindings() const { return bindings_; }
  /// The pool has its own copy once prepare() has returned.
  void drop_weights();
  /// The delta of a row, [out_of(target)].
  const float* delta(std::int32_t target, std::int64_t row) const;

 private:
  std::int32_t adapter_;
  std::vector<std::vector<rankfold::BFloat16>> weights_;
  std::vector<rankfold::AdapterBinding> bindings_;
  std::vector<float> deltas_[kNumTargets];  // [kNumPatterns, out]
};

}  // namespace swap_under_load
