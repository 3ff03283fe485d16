#include "llama/model.hpp"

#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

#include "llama/targets.hpp"

namespace llama {
namespace {

// x / rms(x) * weight, row by row.
Matrix rms_norm(const Matrix& x, const RowVector& weight, float eps) {
  const auto columns = static_cast<float>(x.cols());
  const Eigen::VectorXf scale =
      (x.rowwise().squaredNorm().array() / columns + eps).sqrt().inverse();
  return (scale.asDiagonal() * x) * weight.asDiagonal();
}

// Weights are [out, in], as Llama stores them.
Matrix product(const Matrix& x, const Matrix& weight) { return x * weight.transpose(); }

}  // namespace

Model Model::load(const std::filesystem::path& folder) {
  Config config = read_config(folder);
  Weights weights = read_weights(folder, config);
  return Model(std::move(config), std::move(weights));
}

Model::Model(Config config, Weights weights)
    : config_(std::move(config)), weights_(std::move(weights)) {}

Matrix Model::forward(const Batch& batch, Deltas& deltas) const {
  deltas.begin_step(batch.slots, batch.logit_rows);
  const Rope rope = make_rope(batch);

  Matrix x(batch.num_rows(), config_.hidden_size);
  for (std::int64_t row = 0; row < x.rows(); ++row) x.row(row) = look_up(batch.tokens[row]);
  deltas.apply_embedding(embed_target(), batch.tokens, x);

  for (int layer = 0; layer < config_.num_layers; ++layer) {
    x += attention(layer, x, rope, batch, deltas);
    x += mlp(layer, x, deltas);
  }
  for (const Batch::Sequence& sequence : batch.sequences)
    sequence.cache->advance(sequence.num_rows);

  // Logits are wanted of few rows (the last of each request), and the head is the widest product.
  const Matrix wanted = x(batch.logit_rows, Eigen::all);
  const Matrix last = rms_norm(wanted, weights_.norm, config_.rms_norm_eps);
  Matrix logits = product(last, weights_.head());
  deltas.apply_linear(head_target(static_cast<int>(config_.num_layers)), last, logits,
                      Rows::logits);
  return logits;
}

RowVector Model::look_up(std::int32_t token) const {
  if (token < 0 || token >= config_.vocab_size)
    throw std::out_of_range("token " + std::to_string(token) + " is outside the vocabulary of " +
                            std::to_string(config_.vocab_size));
  return weights_.embed_tokens.row(token);
}

Matrix Model::attention(int layer, const Matrix& x, const Rope& rope, const Batch& batch,
                        Deltas& deltas) const {
  const LayerWeights& weights = weights_.layers[layer];
  const Matrix normed = rms_norm(x, weights.attention_norm, config_.rms_norm_eps);
  Matrix qkv = product(normed, weights.qkv);
  deltas.apply_linear(qkv_target(layer), normed, qkv);

  const std::int64_t q = config_.q_width();
  const std::int64_t kv = config_.kv_width();
  rotate(qkv.leftCols(q + kv), rope);  // queries and keys

  // Rows of different requests meet in the products only; here each looks at its own past.
  Matrix heads(x.rows(), q);
  for (const Batch::Sequence& sequence : batch.sequences) {
    const auto own = qkv.middleRows(sequence.first_row, sequence.num_rows);
    KvCache& cache = *sequence.cache;
    cache.append(layer, own.middleCols(q, kv), own.rightCols(kv));
    heads.middleRows(sequence.first_row, sequence.num_rows) =
        attend(own.leftCols(q), cache.keys(layer), cache.values(layer), cache.size());
  }

  Matrix out = product(heads, weights.o);
  deltas.apply_linear(o_target(layer), heads, out);
  return out;
}

// Softmax attention of one request's new rows over its past and themselves. Grouped queries:
// several heads of queries share one of keys and values.
Matrix Model::attend(const Eigen::Ref<const Matrix>& queries, const Matrix& keys,
                     const Matrix& values, std::int64_t past) const {
  const std::int64_t dim = config_.head_dim;
  const std::int64_t sharing = config_.num_heads / config_.num_kv_heads;
  const std::int64_t length = past + queries.rows();
  const float scale = 1.0f / std::sqrt(static_cast<float>(dim));

  Matrix out(queries.rows(), queries.cols());
  for (std::int64_t head = 0; head < config_.num_heads; ++head) {
    const std::int64_t shared = head / sharing * dim;
    const auto k = keys.block(0, shared, length, dim);
    const auto v = values.block(0, shared, length, dim);
    Matrix scores = queries.middleCols(head * dim, dim) * k.transpose() * scale;
    for (std::int64_t row = 0; row < scores.rows(); ++row) {
      const std::int64_t seen = past + row + 1;  // nobody looks ahead
      scores.row(row).tail(length - seen).setZero();
      auto visible = scores.row(row).head(seen);
      visible = (visible.array() - visible.maxCoeff()).exp();
      visible /= visible.sum();
    }
    out.middleCols(head * dim, dim) = scores * v;
  }
  return out;
}

Matrix Model::mlp(int layer, const Matrix& x, Deltas& deltas) const {
  const LayerWeights& weights = weights_.layers[layer];
  const Matrix normed = rms_norm(x, weights.mlp_norm, config_.rms_norm_eps);
  Matrix gate_up = product(normed, weights.gate_up);
  deltas.apply_linear(gate_up_target(layer), normed, gate_up);

  const auto gate = gate_up.leftCols(config_.intermediate_size).array();
  const auto up = gate_up.rightCols(config_.intermediate_size).array();
  const Matrix inner = gate / (1.0f + (-gate).exp()) * up;  // silu(gate) * up

  Matrix out = product(inner, weights.down);
  deltas.apply_linear(down_target(layer), inner, out);
  return out;
}

Model::Rope Model::make_rope(const Batch& batch) const {
  const std::int64_t half = config_.head_dim / 2;
  RowVector frequencies(half);
  for (std::int64_t i = 0; i < half; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(config_.head_dim);
    frequencies[i] = 1.0f / std::pow(config_.rope_theta, exponent);
  }
  Rope rope{Matrix(batch.num_rows(), half), Matrix(batch.num_rows(), half)};
  for (const Batch::Sequence& sequence : batch.sequences) {
    for (std::int64_t i = 0; i < sequence.num_rows; ++i) {
      const auto position = static_cast<float>(sequence.cache->size() + i);
      const RowVector angles = frequencies * position;
      rope.cos.row(sequence.first_row + i) = angles.array().cos();
      rope.sin.row(sequence.first_row + i) = angles.array().sin();
    }
  }
  return rope;
}

// Turns the pairs (i, i + head_dim / 2) of every head by the row's angles.
void Model::rotate(Eigen::Ref<Matrix> heads, const Rope& rope) const {
  const std::int64_t half = config_.head_dim / 2;
  for (std::int64_t column = 0; column < heads.cols(); column += config_.head_dim) {
    auto low = heads.middleCols(column, half).array();
    auto high = heads.middleCols(column + half, half).array();
    const Matrix turned = low * rope.cos.array() - high * rope.sin.array();
    high = high * rope.cos.array() + low * rope.sin.array();
    low = turned.array();
  }
}

}  // namespace llama
