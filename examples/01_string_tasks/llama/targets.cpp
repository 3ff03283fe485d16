#include "llama/targets.hpp"

namespace llama {

using rankfold::TargetKind;

Targets::Targets(const Config& config, const Weights& weights) {
  const std::int64_t q = config.q_width();
  const std::int64_t kv = config.kv_width();
  const std::int64_t inner = config.intermediate_size;
  const std::int64_t hidden = config.hidden_size;
  const std::int64_t vocab = config.vocab_size;

  add(TargetKind::embedding, "embed_tokens", "model.", {{"embed_tokens", hidden}},
      weights.embed_tokens);
  for (std::size_t i = 0; i < weights.layers.size(); ++i) {
    const LayerWeights& layer = weights.layers[i];
    const std::string key = "layers." + std::to_string(i) + ".";
    const std::string attention = "model." + key + "self_attn.";
    const std::string mlp = "model." + key + "mlp.";
    // Adapters name q, k and v apart (or, trained on a packed model, qkv_proj); the model computes
    // them as one. The slices say how the one is made of the three.
    add(TargetKind::linear, key + "qkv", attention, {{"q_proj", q}, {"k_proj", kv}, {"v_proj", kv}},
        layer.qkv, "qkv_proj");
    add(TargetKind::linear, key + "o", attention, {{"o_proj", hidden}}, layer.o);
    add(TargetKind::linear, key + "gate_up", mlp, {{"gate_proj", inner}, {"up_proj", inner}},
        layer.gate_up, "gate_up_proj");
    add(TargetKind::linear, key + "down", mlp, {{"down_proj", hidden}}, layer.down);
  }
  add(TargetKind::linear, "lm_head", "", {{"lm_head", vocab}}, weights.head());
}

void Targets::add(TargetKind kind, const std::string& key, const std::string& path,
                  std::vector<Part> parts, const Matrix& weight, const char* fused) {
  std::vector<rankfold::SliceSpec>& slices = slices_.emplace_back();
  // A linear weight is [out, in]: a slice is a run of its rows. An embedding is [vocab, hidden],
  // looked up by row, so it reads `in` = vocab columns of A and writes `out` = hidden.
  const bool lookup = kind == TargetKind::embedding;
  const std::int64_t columns = weight.cols();
  const float* rows = weight.data();
  for (const Part& part : parts) {
    const std::int64_t num_rows = lookup ? weight.rows() : part.out;
    slices.push_back({.module = keep(path + part.module),
                      .out = part.out,
                      .base_weight = rankfold::const_matrix(rows, num_rows, columns)});
    rows += num_rows * columns;
  }
  specs_.push_back({.key = keep(key),
                    .kind = kind,
                    .num_slices = static_cast<std::int32_t>(slices.size()),
                    .slices = slices.data(),
                    .in = lookup ? weight.rows() : columns,
                    .fused_module = fused == nullptr ? nullptr : keep(path + fused)});
}

}  // namespace llama
