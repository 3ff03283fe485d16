#include "llama_targets.hpp"

#include <doctest/doctest.h>

namespace adapter_tests {

using rankfold::TargetKind;

LlamaTargets::LlamaTargets(const LlamaShape& shape, const rankfold::Safetensors* base)
    : base_(base) {
  for (int i = 0; i < shape.num_layers; ++i) {
    const std::string layer = "layers." + std::to_string(i);
    const std::string path = "model." + layer;
    add(layer + ".qkv", TargetKind::linear, shape.hidden,
        {{path + ".self_attn.q_proj", shape.queries},
         {path + ".self_attn.k_proj", shape.keys},
         {path + ".self_attn.v_proj", shape.keys}},
        path + ".self_attn.qkv_proj");
    add(layer + ".o", TargetKind::linear, shape.queries,
        {{path + ".self_attn.o_proj", shape.hidden}});
    add(layer + ".gate_up", TargetKind::linear, shape.hidden,
        {{path + ".mlp.gate_proj", shape.intermediate},
         {path + ".mlp.up_proj", shape.intermediate}});
    add(layer + ".down", TargetKind::linear, shape.intermediate,
        {{path + ".mlp.down_proj", shape.hidden}});
  }
  add("embed", TargetKind::embedding, shape.vocab, {{"model.embed_tokens", shape.hidden}});
  add("head", TargetKind::linear, shape.hidden, {{"lm_head", shape.vocab}});
}

void LlamaTargets::add(const std::string& key, TargetKind kind, std::int64_t in,
                       const std::vector<Slice>& slices, const std::string& fused) {
  auto& specs = slices_.emplace_back();
  for (const Slice& slice : slices) {
    rankfold::SliceSpec& spec = specs.emplace_back();
    spec.module = strings_.emplace_back(slice.module).c_str();
    spec.out = slice.out;
    if (base_ == nullptr) continue;
    const auto* weight = base_->find(slice.module + ".weight");
    REQUIRE(weight != nullptr);
    spec.base_weight =
        rankfold::const_matrix(weight->data, weight->dtype, weight->sizes[0], weight->sizes[1]);
  }
  rankfold::TargetSpec& target = targets_.emplace_back();
  target.key = strings_.emplace_back(key).c_str();
  target.kind = kind;
  target.in = in;
  target.num_slices = static_cast<std::int32_t>(specs.size());
  target.slices = specs.data();
  if (!fused.empty()) target.fused_module = strings_.emplace_back(fused).c_str();
}

std::int32_t LlamaTargets::index(const std::string& key) const {
  for (std::size_t i = 0; i < targets_.size(); ++i) {
    if (key == targets_[i].key) return static_cast<std::int32_t>(i);
  }
  FAIL("no target " << key);
  return -1;
}

}  // namespace adapter_tests
