// What the tests of save_adapter() share: a folder, and a small model with weights.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "rankfold/save_adapter.hpp"

namespace adapter_tests {

using rankfold::AdapterWeights;
using rankfold::SliceSpec;
using rankfold::TargetKind;
using rankfold::TargetSpec;
namespace fs = std::filesystem;

/// A folder of a test's own, removed with the object.
struct Folder {
  fs::path path =
      fs::temp_directory_path() / ("rankfold_save_" + std::to_string(::getpid()) + "_" +
                                   std::to_string(reinterpret_cast<std::uintptr_t>(this)));
  Folder() { fs::create_directories(path); }
  ~Folder() { fs::remove_all(path); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string operator/(const char* name) const { return (path / name).string(); }
  std::set<std::string> names() const {
    std::set<std::string> found;
    for (const auto& entry : fs::directory_iterator(path)) {
      found.insert(entry.path().filename().string());
    }
    return found;
  }
};

inline std::string text_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// A small model: q, k, v fused; one plain linear layer; an embedding.
struct Model {
  SliceSpec qkv[3] = {{.module = "layers.0.q_proj", .out = 6},
                      {.module = "layers.0.k_proj", .out = 2},
                      {.module = "layers.0.v_proj", .out = 2}};
  SliceSpec down{.module = "layers.0.down_proj", .out = 4};
  SliceSpec embed{.module = "embed_tokens", .out = 4};
  std::vector<TargetSpec> targets = {
      {.key = "qkv", .num_slices = 3, .slices = qkv, .in = 4},
      {.key = "down", .num_slices = 1, .slices = &down, .in = 8},
      {.key = "embed", .kind = TargetKind::embedding, .num_slices = 1, .slices = &embed, .in = 9}};
  std::vector<float> numbers = std::vector<float>(400);
  Model() {
    for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<float>(i) + 0.25f;
  }
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  AdapterWeights weights(std::int32_t target, std::int32_t slice, std::int64_t rank,
                         double alpha) const {
    const TargetSpec& spec = targets[static_cast<std::size_t>(target)];
    return {.target = target,
            .slice = slice,
            .alpha = alpha,
            .a = rankfold::const_matrix(numbers.data() + slice, rank, spec.in),
            .b = rankfold::const_matrix(numbers.data() + 7 + slice, spec.slices[slice].out, rank)};
  }
};

}  // namespace adapter_tests
