#include "llama/kv_cache.hpp"

#include <stdexcept>

namespace llama {

KvCache::KvCache(const Config& config, std::int64_t max_tokens) : capacity_(max_tokens) {
  layers_.resize(config.num_layers);
  for (Layer& layer : layers_) {
    layer.keys.resize(max_tokens, config.kv_width());
    layer.values.resize(max_tokens, config.kv_width());
  }
}

void KvCache::append(std::int64_t layer, const Eigen::Ref<const Matrix>& keys,
                     const Eigen::Ref<const Matrix>& values) {
  if (keys.rows() > capacity_ - size_) throw std::length_error("the request's KV cache is full");
  layers_[layer].keys.middleRows(size_, keys.rows()) = keys;
  layers_[layer].values.middleRows(size_, values.rows()) = values;
}

void KvCache::advance(std::int64_t num_tokens) { size_ += num_tokens; }

}  // namespace llama
