// Keys and values of one request. Each request has its own, so it can come and go alone.
#pragma once

#include <cstdint>
#include <vector>

#include "llama/config.hpp"
#include "llama/matrix.hpp"

namespace llama {

class KvCache {
 public:
  /// Room for max_tokens tokens, reserved at once.
  KvCache(const Config& config, std::int64_t max_tokens);

  /// Tokens whose step is over; during a step its new tokens stand behind them.
  std::int64_t size() const { return size_; }
  std::int64_t capacity() const { return capacity_; }

  /// Writes the keys and values of a step's new tokens, [rows, kv_width], behind size().
  void append(std::int64_t layer, const Eigen::Ref<const Matrix>& keys,
              const Eigen::Ref<const Matrix>& values);
  /// Every layer has appended: the new tokens now belong to the past.
  void advance(std::int64_t num_tokens);

  const Matrix& keys(std::int64_t layer) const { return layers_[layer].keys; }
  const Matrix& values(std::int64_t layer) const { return layers_[layer].values; }

 private:
  struct Layer {
    Matrix keys;  ///< [capacity, kv_width], after rope
    Matrix values;
  };
  std::vector<Layer> layers_;
  std::int64_t size_ = 0;
  std::int64_t capacity_ = 0;
};

}  // namespace llama
