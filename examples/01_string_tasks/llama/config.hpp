// What a LlamaForCausalLM folder says of its model, and the refusal of what this example cannot
// run.
#pragma once

#include <cstdint>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

namespace llama {

/// A folder or a file that this example cannot use. what() names the file, the key and the cure.
struct ModelError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Config {
  std::int64_t vocab_size = 0;
  std::int64_t hidden_size = 0;
  std::int64_t intermediate_size = 0;
  std::int64_t num_layers = 0;
  std::int64_t num_heads = 0;
  std::int64_t num_kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t max_positions = 0;
  float rms_norm_eps = 1e-6f;
  float rope_theta = 10000.0f;
  bool tie_word_embeddings = false;
  std::vector<std::int32_t> stop_tokens;  ///< eos_token_id: none, one or several

  std::int64_t q_width() const { return num_heads * head_dim; }
  std::int64_t kv_width() const { return num_kv_heads * head_dim; }
};

/// Reads folder/config.json. Throws ModelError for another architecture, scaled rope, biases,
/// another activation, quantised weights: whatever would give other logits than the model's own.
Config read_config(const std::filesystem::path& folder);

}  // namespace llama
