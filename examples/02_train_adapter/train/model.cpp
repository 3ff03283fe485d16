#include "train/model.hpp"

#include <cmath>

#include "llama/targets.hpp"

namespace train {

using llama::LayerWeights;

Model::Model(const llama::Config& config, const llama::Weights& weights)
    : config_(config),
      weights_(weights),
      heads_{config.num_heads, config.num_kv_heads, config.head_dim} {}

Matrix Model::logits(const Batch& batch, LoraPass& lora) const {
  Tape tape;
  return run(batch, lora, tape);
}

Matrix Model::run(const Batch& batch, LoraPass& lora, Tape& tape) const {
  make_rope(batch, tape);
  tape.layers.resize(weights_.layers.size());
  Matrix x(static_cast<Eigen::Index>(batch.tokens.size()), config_.hidden_size);
  for (Eigen::Index row = 0; row < x.rows(); ++row)
    x.row(row) = weights_.embed_tokens.row(batch.tokens[static_cast<std::size_t>(row)]);
  for (int i = 0; i < config_.num_layers; ++i) x = layer(i, x, batch, lora, tape);

  tape.last = x(batch.loss_rows, Eigen::all);
  tape.norm = rms_norm(tape.last, weights_.norm, config_.rms_norm_eps);
  Matrix logits = tape.norm.y * weights_.head().transpose();
  lora.forward(llama::head_target(static_cast<int>(config_.num_layers)), tape.norm.y, logits);
  return logits;
}

// Every product with a weight is followed by its delta, as in serving; only more is kept.
Matrix Model::layer(int index, const Matrix& x, const Batch& batch, LoraPass& lora,
                    Tape& tape) const {
  const LayerWeights& weights = weights_.layers[static_cast<std::size_t>(index)];
  LayerTape& kept = tape.layers[static_cast<std::size_t>(index)];
  const std::int64_t q = config_.q_width();
  const std::int64_t kv = config_.kv_width();

  kept.x = x;
  kept.attention_norm = rms_norm(x, weights.attention_norm, config_.rms_norm_eps);
  kept.qkv.noalias() = kept.attention_norm.y * weights.qkv.transpose();
  lora.forward(llama::qkv_target(index), kept.attention_norm.y, kept.qkv);
  rotate<float>(kept.qkv.leftCols(q + kv), tape.cos, tape.sin);
  kept.heads.resize(x.rows(), q);
  kept.probabilities.resize(batch.sequences.size());
  for (std::size_t s = 0; s < batch.sequences.size(); ++s) {
    const auto& [first, count] = batch.sequences[s];
    const auto own = kept.qkv.middleRows(first, count);
    attend<float>(own.leftCols(q), own.middleCols(q, kv), own.rightCols(kv), heads_,
                  kept.heads.middleRows(first, count), kept.probabilities[s]);
  }
  Matrix out = kept.heads * weights.o.transpose();
  lora.forward(llama::o_target(index), kept.heads, out);
  kept.middle = x + out;

  kept.mlp_norm = rms_norm(kept.middle, weights.mlp_norm, config_.rms_norm_eps);
  kept.gate_up.noalias() = kept.mlp_norm.y * weights.gate_up.transpose();
  lora.forward(llama::gate_up_target(index), kept.mlp_norm.y, kept.gate_up);
  kept.inner = swiglu(kept.gate_up);
  out.noalias() = kept.inner * weights.down.transpose();
  lora.forward(llama::down_target(index), kept.inner, out);
  return kept.middle + out;
}

double Model::forward_backward(const Batch& batch, float weight, LoraPass& lora) const {
  Tape tape;
  Matrix d_logits = run(batch, lora, tape);
  const double loss = cross_entropy<float>(d_logits, batch.wanted, weight);

  Matrix d_normed = d_logits * weights_.head();
  lora.backward(llama::head_target(static_cast<int>(config_.num_layers)), d_logits, tape.norm.y,
                &d_normed);
  const Matrix d_last = rms_norm_backward(d_normed, tape.last, weights_.norm, tape.norm.scale);
  Matrix d_x = Matrix::Zero(static_cast<Eigen::Index>(batch.tokens.size()), config_.hidden_size);
  for (std::size_t i = 0; i < batch.loss_rows.size(); ++i)
    d_x.row(batch.loss_rows[i]) += d_last.row(static_cast<Eigen::Index>(i));
  for (int i = static_cast<int>(config_.num_layers) - 1; i >= 0; --i)
    layer_backward(i, d_x, i > 0, batch, lora, tape);
  return loss;
}

// d_x: by the layer's output on entry, by its input on return. Weights of the base are frozen, so
// nothing is computed for them.
void Model::layer_backward(int index, Matrix& d_x, bool wants_d_x, const Batch& batch,
                           LoraPass& lora, const Tape& tape) const {
  const LayerWeights& weights = weights_.layers[static_cast<std::size_t>(index)];
  const LayerTape& kept = tape.layers[static_cast<std::size_t>(index)];
  const std::int64_t q = config_.q_width();
  const std::int64_t kv = config_.kv_width();

  Matrix d_inner = d_x * weights.down;
  lora.backward(llama::down_target(index), d_x, kept.inner, &d_inner);
  const Matrix d_gate_up = swiglu_backward(d_inner, kept.gate_up);
  Matrix d_normed = d_gate_up * weights.gate_up;
  lora.backward(llama::gate_up_target(index), d_gate_up, kept.mlp_norm.y, &d_normed);
  d_x += rms_norm_backward(d_normed, kept.middle, weights.mlp_norm, kept.mlp_norm.scale);

  Matrix d_heads = d_x * weights.o;
  lora.backward(llama::o_target(index), d_x, kept.heads, &d_heads);
  Matrix d_qkv = Matrix::Zero(kept.qkv.rows(), kept.qkv.cols());
  for (std::size_t s = 0; s < batch.sequences.size(); ++s) {
    const auto& [first, count] = batch.sequences[s];
    const auto own = kept.qkv.middleRows(first, count);
    auto d_own = d_qkv.middleRows(first, count);
    attend_backward<float>(d_heads.middleRows(first, count), own.leftCols(q), own.middleCols(q, kv),
                           own.rightCols(kv), heads_, kept.probabilities[s], d_own.leftCols(q),
                           d_own.middleCols(q, kv), d_own.rightCols(kv));
  }
  rotate<float>(d_qkv.leftCols(q + kv), tape.cos, -tape.sin);
  if (!wants_d_x) {
    lora.backward(llama::qkv_target(index), d_qkv, kept.attention_norm.y, nullptr);
    return;
  }
  d_normed.noalias() = d_qkv * weights.qkv;
  lora.backward(llama::qkv_target(index), d_qkv, kept.attention_norm.y, &d_normed);
  d_x += rms_norm_backward(d_normed, kept.x, weights.attention_norm, kept.attention_norm.scale);
}

void Model::make_rope(const Batch& batch, Tape& tape) const {
  const std::int64_t half = config_.head_dim / 2;
  const auto rows = static_cast<Eigen::Index>(batch.tokens.size());
  tape.cos.resize(rows, half);
  tape.sin.resize(rows, half);
  for (const Batch::Sequence& sequence : batch.sequences) {
    for (std::int64_t i = 0; i < half; ++i) {
      const float exponent = static_cast<float>(2 * i) / static_cast<float>(config_.head_dim);
      const float frequency = 1.0f / std::pow(config_.rope_theta, exponent);
      for (std::int64_t position = 0; position < sequence.num_rows; ++position) {
        const float angle = frequency * static_cast<float>(position);
        tape.cos(sequence.first_row + position, i) = std::cos(angle);
        tape.sin(sequence.first_row + position, i) = std::sin(angle);
      }
    }
  }
}

}  // namespace train
