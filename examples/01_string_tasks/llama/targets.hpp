// Where deltas are added: the model's places, described to rankfold.
#pragma once

#include <deque>
#include <rankfold/rankfold.hpp>
#include <span>
#include <string>
#include <vector>

#include "llama/config.hpp"
#include "llama/weights.hpp"

namespace llama {

/// Indices into Targets::specs(), and so into the tables of a pool made from them.
constexpr int embed_target() { return 0; }
constexpr int qkv_target(int layer) { return 1 + 4 * layer; }
constexpr int o_target(int layer) { return 2 + 4 * layer; }
constexpr int gate_up_target(int layer) { return 3 + 4 * layer; }
constexpr int down_target(int layer) { return 4 + 4 * layer; }
constexpr int head_target(int num_layers) { return 1 + 4 * num_layers; }

/// Owns the specs and what they point to, except the weights: they are given so that copies of
/// base weights in an adapter's file are compared with them.
class Targets {
 public:
  Targets(const Config& config, const Weights& weights);
  Targets(const Targets&) = delete;
  Targets& operator=(const Targets&) = delete;

  std::span<const rankfold::TargetSpec> specs() const { return specs_; }

 private:
  struct Part {
    const char* module;
    std::int64_t out;
  };
  void add(rankfold::TargetKind kind, const std::string& key, const std::string& path,
           std::vector<Part> parts, const Matrix& weight, const char* fused = nullptr);
  const char* keep(std::string text) { return texts_.emplace_back(std::move(text)).c_str(); }

  std::deque<std::string> texts_;  // deques: what is pointed to never moves
  std::deque<std::vector<rankfold::SliceSpec>> slices_;
  std::vector<rankfold::TargetSpec> specs_;
};

}  // namespace llama
