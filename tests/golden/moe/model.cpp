#include "model.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <stdexcept>

namespace moe {

namespace {

Matrix read_matrix(const rankfold::Safetensors& file, const std::string& name) {
  const rankfold::SafetensorsEntry* const entry = file.find(name);
  if (entry == nullptr || entry->dtype != rankfold::DType::f32 || entry->num_dims > 2)
    throw std::runtime_error("no F32 vector or matrix " + name);
  const std::int64_t rows = entry->num_dims == 2 ? entry->sizes[0] : 1;
  Matrix out(rows, entry->sizes[entry->num_dims - 1]);
  std::memcpy(out.data(), entry->data, entry->bytes);
  return out;
}

Matrix rms_norm(const Matrix& x, const RowVector& weight, float eps) {
  Matrix out(x.rows(), x.cols());
  for (std::int64_t row = 0; row < x.rows(); ++row) {
    const float mean = x.row(row).squaredNorm() / static_cast<float>(x.cols());
    out.row(row) = (x.row(row) / std::sqrt(mean + eps)).cwiseProduct(weight);
  }
  return out;
}

// Heads of one sequence: normalised one by one, then turned by their position.
void norm_and_rotate(Eigen::Ref<Matrix> heads, const RowVector& weight, float eps, float theta,
                     std::int64_t dim) {
  const std::int64_t half = dim / 2;
  for (std::int64_t row = 0; row < heads.rows(); ++row) {
    for (std::int64_t first = 0; first < heads.cols(); first += dim) {
      const Matrix head = rms_norm(heads.block(row, first, 1, dim), weight, eps);
      for (std::int64_t i = 0; i < half; ++i) {
        const float frequency =
            1.0f / std::pow(theta, static_cast<float>(2 * i) / static_cast<float>(dim));
        const float angle = frequency * static_cast<float>(row);
        const float low = head(0, i);
        const float high = head(0, i + half);
        heads(row, first + i) = low * std::cos(angle) - high * std::sin(angle);
        heads(row, first + i + half) = high * std::cos(angle) + low * std::sin(angle);
      }
    }
  }
}

}  // namespace

Model Model::load(const std::filesystem::path& folder) {
  Model model;
  Config& config = model.config_;
  const auto json = nlohmann::json::parse(std::ifstream(folder / "config.json"));
  config.hidden = json.at("hidden_size");
  config.inner = json.at("moe_intermediate_size");
  config.num_layers = json.at("num_hidden_layers");
  config.num_heads = json.at("num_attention_heads");
  config.num_kv_heads = json.at("num_key_value_heads");
  config.head_dim = json.at("head_dim");
  config.num_experts = json.at("num_local_experts");
  config.top_k = json.at("num_experts_per_tok");
  config.eps = json.at("rms_norm_eps");
  config.rope_theta = json.at("rope_parameters").at("rope_theta");
  if (!json.at("norm_topk_prob").get<bool>())
    throw std::runtime_error("this model normalises the weights of the chosen experts");

  const auto file = rankfold::Safetensors::read((folder / "model.safetensors").string()).value();
  const auto matrix = [&](const std::string& name) { return read_matrix(file, name + ".weight"); };
  model.embed_ = matrix("model.embed_tokens");
  model.head_ = matrix("lm_head");
  model.norm_ = matrix("model.norm");
  for (std::int64_t i = 0; i < config.num_layers; ++i) {
    const std::string path = "model.layers." + std::to_string(i) + ".";
    Layer& layer = model.layers_.emplace_back();
    layer.input_norm = matrix(path + "input_layernorm");
    layer.post_norm = matrix(path + "post_attention_layernorm");
    layer.q_norm = matrix(path + "self_attn.q_norm");
    layer.k_norm = matrix(path + "self_attn.k_norm");
    layer.q = matrix(path + "self_attn.q_proj");
    layer.k = matrix(path + "self_attn.k_proj");
    layer.v = matrix(path + "self_attn.v_proj");
    layer.o = matrix(path + "self_attn.o_proj");
    layer.router = matrix(path + "mlp.gate");
    for (std::int64_t e = 0; e < config.num_experts; ++e) {
      const std::string expert = path + "mlp.experts." + std::to_string(e) + ".";
      layer.gate.push_back(matrix(expert + "gate_proj"));
      layer.up.push_back(matrix(expert + "up_proj"));
      layer.down.push_back(matrix(expert + "down_proj"));
    }
  }
  return model;
}

Matrix Model::forward(std::span<const std::vector<std::int32_t>> sequences,
                      std::span<const std::int32_t> slots, ExpertDeltas* deltas,
                      const Layout& layout) const {
  const auto length = static_cast<std::int64_t>(sequences[0].size());
  Matrix x(static_cast<std::int64_t>(sequences.size()) * length, config_.hidden);
  std::vector<std::int32_t> token_slots;
  std::int64_t row = 0;
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    for (const std::int32_t id : sequences[i]) {
      x.row(row++) = embed_.row(id);
      token_slots.push_back(slots[i]);
    }
  }
  for (std::int64_t i = 0; i < config_.num_layers; ++i) {
    const Layer& layer = layers_[static_cast<std::size_t>(i)];
    x += attention(layer, rms_norm(x, layer.input_norm, config_.eps), length);
    x += experts(i, rms_norm(x, layer.post_norm, config_.eps), token_slots, deltas, layout);
  }
  return rms_norm(x, norm_, config_.eps) * head_.transpose();
}

Matrix Model::attention(const Layer& layer, const Matrix& x, std::int64_t length) const {
  Matrix q = x * layer.q.transpose();
  Matrix k = x * layer.k.transpose();
  const Matrix v = x * layer.v.transpose();
  const std::int64_t dim = config_.head_dim;
  const std::int64_t sharing = config_.num_heads / config_.num_kv_heads;
  Matrix heads(x.rows(), q.cols());
  for (std::int64_t first = 0; first < x.rows(); first += length) {
    norm_and_rotate(q.middleRows(first, length), layer.q_norm, config_.eps, config_.rope_theta,
                    dim);
    norm_and_rotate(k.middleRows(first, length), layer.k_norm, config_.eps, config_.rope_theta,
                    dim);
    for (std::int64_t head = 0; head < config_.num_heads; ++head) {
      const std::int64_t shared = head / sharing * dim;
      Matrix scores = q.block(first, head * dim, length, dim) *
                      k.block(first, shared, length, dim).transpose() /
                      std::sqrt(static_cast<float>(dim));
      for (std::int64_t row = 0; row < length; ++row) {
        scores.row(row).tail(length - row - 1).setZero();
        auto seen = scores.row(row).head(row + 1);
        seen = (seen.array() - seen.maxCoeff()).exp();
        seen /= seen.sum();
      }
      heads.block(first, head * dim, length, dim) = scores * v.block(first, shared, length, dim);
    }
  }
  return heads * layer.o.transpose();
}

Routes Model::route(std::int64_t layer, const Matrix& x) const {
  const Matrix logits = x * layers_[static_cast<std::size_t>(layer)].router.transpose();
  Routes routes;
  for (std::int64_t t = 0; t < x.rows(); ++t) {
    RowVector share = (logits.row(t).array() - logits.row(t).maxCoeff()).exp();
    share /= share.sum();
    std::vector<std::int32_t> order(static_cast<std::size_t>(config_.num_experts));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](std::int32_t a, std::int32_t b) { return share[a] > share[b]; });
    float sum = 0;
    for (std::int64_t k = 0; k < config_.top_k; ++k) sum += share[order[k]];
    for (std::int64_t k = 0; k < config_.top_k; ++k) {
      routes.experts.push_back(order[k]);
      routes.weights.push_back(share[order[k]] / sum);
    }
  }
  return routes;
}

Matrix Model::experts(std::int64_t layer_number, const Matrix& x,
                      std::span<const std::int32_t> slots, ExpertDeltas* deltas,
                      const Layout& layout) const {
  const Layer& layer = layers_[static_cast<std::size_t>(layer_number)];
  const Routes routes = route(layer_number, x);
  const auto num_rows = static_cast<std::int64_t>(routes.experts.size());

  // Rows of the batch: token-major as the router made them, or sorted by expert.
  std::vector<std::int32_t> order(routes.experts.size());
  std::iota(order.begin(), order.end(), 0);
  std::vector<std::int32_t> offsets(static_cast<std::size_t>(config_.num_experts) + 1, 0);
  const bool grouped = layout.mode == rankfold::ExpertMode::grouped;
  if (grouped) {
    std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
      return routes.experts[a] < routes.experts[b];
    });
    for (const std::int32_t expert : routes.experts)
      ++offsets[static_cast<std::size_t>(expert) + 1];
    std::partial_sum(offsets.begin(), offsets.end(), offsets.begin());
  }
  std::vector<std::int32_t> tokens, ids;
  std::vector<float> weights;
  for (const std::int32_t row : order) {
    tokens.push_back(row / static_cast<std::int32_t>(config_.top_k));
    ids.push_back(routes.experts[row]);
    weights.push_back(routes.weights[row]);
  }
  rankfold::ExpertAddressing addressing;
  addressing.mode = layout.mode;
  addressing.num_tokens = x.rows();
  addressing.num_rows = num_rows;
  if (grouped) {
    addressing.expert_offsets = offsets.data();
    addressing.row_tokens = tokens.data();
  } else {
    addressing.expert_ids = ids.data();
    addressing.top_k = static_cast<std::int32_t>(config_.top_k);
  }
  addressing.token_slots = slots.data();

  Matrix gate_up(num_rows, 2 * config_.inner);
  for (std::int64_t i = 0; i < num_rows; ++i) {
    gate_up.row(i).head(config_.inner) = x.row(tokens[i]) * layer.gate[ids[i]].transpose();
    gate_up.row(i).tail(config_.inner) = x.row(tokens[i]) * layer.up[ids[i]].transpose();
  }
  addressing.x_rows = rankfold::XRows::token;
  if (deltas != nullptr) deltas->apply(layer_number, false, x, addressing, layout.window, gate_up);

  const auto gate = gate_up.leftCols(config_.inner).array();
  const Matrix inner = gate / (1.0f + (-gate).exp()) * gate_up.rightCols(config_.inner).array();

  // The choice's weight is a factor of both the base product and the delta.
  Matrix down(num_rows, config_.hidden);
  for (std::int64_t i = 0; i < num_rows; ++i)
    down.row(i) = weights[i] * (inner.row(i) * layer.down[ids[i]].transpose());
  addressing.x_rows = rankfold::XRows::own;
  addressing.row_weights = weights.data();
  if (deltas != nullptr) deltas->apply(layer_number, true, inner, addressing, layout.window, down);

  Matrix y = Matrix::Zero(x.rows(), config_.hidden);
  for (std::int64_t i = 0; i < num_rows; ++i) y.row(tokens[i]) += down.row(i);
  return y;
}

}  // namespace moe
