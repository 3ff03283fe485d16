// Random numbers that are the same with every standard library.
#pragma once

#include <cstdint>

namespace train {

/// SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  /// 0 to count - 1.
  std::int64_t below(std::int64_t count) {
    return static_cast<std::int64_t>(next() % static_cast<std::uint64_t>(count));
  }
  float between(float low, float high) {
    return low + (high - low) * (static_cast<float>(next() >> 40) * 0x1p-24f);
  }

 private:
  std::uint64_t state_;
};

}  // namespace train
