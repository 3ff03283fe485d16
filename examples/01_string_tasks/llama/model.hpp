// The forward pass of a Llama in float32: Eigen for the base, Deltas for the adapters.
#pragma once

#include <filesystem>

#include "llama/batch.hpp"
#include "llama/config.hpp"
#include "llama/deltas.hpp"
#include "llama/matrix.hpp"
#include "llama/weights.hpp"

namespace llama {

class Model {
 public:
  /// Reads config.json and model.safetensors. Throws ModelError or rankfold::Error.
  static Model load(const std::filesystem::path& folder);

  const Config& config() const { return config_; }
  const Weights& weights() const { return weights_; }

  /// One step: [logit_rows, vocab]. Appends the step's tokens to the caches.
  Matrix forward(const Batch& batch, Deltas& deltas) const;

 private:
  // Angles of the step's rows, the same in every layer.
  struct Rope {
    Matrix cos;  ///< [rows, head_dim / 2]
    Matrix sin;
  };

  Model(Config config, Weights weights);

  Rope make_rope(const Batch& batch) const;
  void rotate(Eigen::Ref<Matrix> heads, const Rope& rope) const;
  RowVector look_up(std::int32_t token) const;
  Matrix attention(int layer, const Matrix& x, const Rope& rope, const Batch& batch,
                   Deltas& deltas) const;
  Matrix attend(const Eigen::Ref<const Matrix>& queries, const Matrix& keys, const Matrix& values,
                std::int64_t past) const;
  Matrix mlp(int layer, const Matrix& x, Deltas& deltas) const;

  Config config_;
  Weights weights_;
};

}  // namespace llama
