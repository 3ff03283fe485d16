// The base model's weights, float32 in host memory.
#pragma once

#include <filesystem>
#include <vector>

#include "llama/config.hpp"
#include "llama/matrix.hpp"

namespace llama {

/// Linear weights are [out, in] as in the file. Projections that read the same x are packed by rows
/// into one matrix, as serving engines do: one product, and one rankfold target with several
/// slices.
struct LayerWeights {
  RowVector attention_norm;  ///< input_layernorm
  Matrix qkv;                ///< q_proj, k_proj, v_proj
  Matrix o;
  RowVector mlp_norm;  ///< post_attention_layernorm
  Matrix gate_up;      ///< gate_proj, up_proj
  Matrix down;
};

struct Weights {
  Matrix embed_tokens;  ///< [vocab, hidden]
  std::vector<LayerWeights> layers;
  RowVector norm;
  Matrix lm_head;  ///< [vocab, hidden]; empty when tied to embed_tokens

  const Matrix& head() const { return lm_head.size() == 0 ? embed_tokens : lm_head; }
};

/// Reads folder/model.safetensors (F32, F16 or BF16, widened). Throws ModelError when a tensor is
/// missing, has another shape or dtype, or is not one of this model's: nothing is ignored.
Weights read_weights(const std::filesystem::path& folder, const Config& config);

}  // namespace llama
