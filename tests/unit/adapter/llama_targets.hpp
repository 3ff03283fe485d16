// The targets of a small Llama, as a host would describe them.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "rankfold/safetensors.hpp"
#include "rankfold/target_spec.hpp"

namespace adapter_tests {

struct LlamaShape {
  int num_layers;
  std::int64_t hidden, intermediate, queries, keys, vocab;
};
inline constexpr LlamaShape kGoldenLlama{2, 64, 176, 64, 32, 160};
inline constexpr LlamaShape kTaskLlama{4, 192, 512, 192, 64, 128};

/// Per layer qkv (three slices), o, gate_up (two slices), down; embed_tokens and lm_head.
class LlamaTargets {
 public:
  /// `base`: host weights to compare base copies with, or null.
  explicit LlamaTargets(const LlamaShape& shape, const rankfold::Safetensors* base = nullptr);
  LlamaTargets(const LlamaTargets&) = delete;
  LlamaTargets& operator=(const LlamaTargets&) = delete;

  const std::vector<rankfold::TargetSpec>& targets() const { return targets_; }
  std::int32_t index(const std::string& key) const;

 private:
  struct Slice {
    std::string module;
    std::int64_t out;
  };
  void add(const std::string& key, rankfold::TargetKind kind, std::int64_t in,
           const std::vector<Slice>& slices, const std::string& fused = "");

  const rankfold::Safetensors* base_;
  std::deque<std::string> strings_;
  std::deque<std::vector<rankfold::SliceSpec>> slices_;
  std::vector<rankfold::TargetSpec> targets_;
};

}  // namespace adapter_tests
