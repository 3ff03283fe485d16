// One pass of training through the frozen base: loss, and the gradients of the adapter.
#pragma once

#include <cstdint>
#include <vector>

#include "llama/config.hpp"
#include "llama/matrix.hpp"
#include "llama/weights.hpp"
#include "train/layers.hpp"
#include "train/lora_pass.hpp"

namespace train {

using llama::Matrix;

/// Sequences one after the other, without padding.
struct Batch {
  struct Sequence {
    std::int64_t first_row;
    std::int64_t num_rows;
  };
  std::vector<std::int32_t> tokens;
  std::vector<Sequence> sequences;
  std::vector<std::int64_t> loss_rows;  ///< rows whose next token is to be learnt
  std::vector<std::int32_t> wanted;     ///< that token, for each of loss_rows
};

/// The base as training sees it. Owns nothing of the weights; may be shared by threads.
class Model {
 public:
  /// Both must outlive the object.
  Model(const llama::Config& config, const llama::Weights& weights);

  /// Logits of loss_rows.
  Matrix logits(const Batch& batch, LoraPass& lora) const;
  /// weight * sum of -log p(wanted), and its gradients by the adapter's parameters in `lora`.
  double forward_backward(const Batch& batch, float weight, LoraPass& lora) const;

 private:
  // What a layer keeps of its forward pass.
  struct LayerTape {
    Matrix x;
    Normed<float> attention_norm;
    Matrix qkv;                         // after rope
    std::vector<Matrix> probabilities;  // of each sequence
    Matrix heads;
    Matrix middle;  // x + attention
    Normed<float> mlp_norm;
    Matrix gate_up;
    Matrix inner;
  };
  struct Tape {
    Matrix cos, sin;
    std::vector<LayerTape> layers;
    Matrix last;  // loss_rows after the last layer
    Normed<float> norm;
  };
  Matrix run(const Batch& batch, LoraPass& lora, Tape& tape) const;
  Matrix layer(int index, const Matrix& x, const Batch& batch, LoraPass& lora, Tape& tape) const;
  /// wants_d_x false: the first layer, whose input does not depend on the adapter.
  void layer_backward(int index, Matrix& d_x, bool wants_d_x, const Batch& batch, LoraPass& lora,
                      const Tape& tape) const;
  void make_rope(const Batch& batch, Tape& tape) const;

  const llama::Config& config_;
  const llama::Weights& weights_;
  HeadShape heads_;
};

}  // namespace train
