#include "llama/weights.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <rankfold/rankfold.hpp>
#include <set>
#include <string>

namespace llama {
namespace {

// Data of a safetensors file may be unaligned, hence the memcpy of every element.
template <class T>
void widen(const rankfold::SafetensorsEntry& entry, float* out, std::int64_t count) {
  const auto* bytes = static_cast<const std::byte*>(entry.data);
  for (std::int64_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, bytes + i * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
    out[i] = rankfold::to_float(value);
  }
}

std::string shape_text(const std::vector<std::int64_t>& sizes) {
  std::string text = "[";
  for (const std::int64_t size : sizes)
    text += (text.size() > 1 ? ", " : "") + std::to_string(size);
  return text + "]";
}

class WeightFile {
 public:
  explicit WeightFile(const std::filesystem::path& path)
      : path_(path), file_(rankfold::Safetensors::read(path.string()).value()) {}

  RowVector vector(const std::string& name, std::int64_t size) {
    const rankfold::SafetensorsEntry& entry = find(name, {size});
    RowVector out(size);
    read(entry, out.data());
    return out;
  }

  Matrix matrix(const std::string& name, std::int64_t rows, std::int64_t columns) {
    return packed({{name, rows}}, columns);
  }

  struct Part {
    std::string name;
    std::int64_t rows;
  };
  // The parts one below the other. All are found before memory is taken for them.
  Matrix packed(const std::vector<Part>& parts, std::int64_t columns) {
    std::vector<const rankfold::SafetensorsEntry*> entries;
    std::int64_t rows = 0;
    for (const Part& part : parts) {
      entries.push_back(&find(part.name, {part.rows, columns}));
      rows += part.rows;
    }
    Matrix out(rows, columns);
    float* next = out.data();
    for (const rankfold::SafetensorsEntry* entry : entries) next = read(*entry, next);
    return out;
  }

  void allow(const std::string& name) { seen_.insert(name); }

  void check_all_seen() const {
    for (const rankfold::SafetensorsEntry& entry : file_.entries())
      if (!seen_.count(entry.name))
        fail(entry.name, "is not a tensor of the Llama that config.json describes");
  }

 private:
  [[noreturn]] void fail(const std::string& name, const std::string& what) const {
    throw ModelError(path_.string() + ": " + name + " " + what);
  }

  const rankfold::SafetensorsEntry& find(const std::string& name,
                                         const std::vector<std::int64_t>& sizes) {
    const rankfold::SafetensorsEntry* entry = file_.find(name);
    if (entry == nullptr) fail(name, "is missing; config.json asks for " + shape_text(sizes));
    const std::vector<std::int64_t> have(entry->sizes, entry->sizes + entry->num_dims);
    if (have != sizes)
      fail(name, "is " + shape_text(have) + "; config.json asks for " + shape_text(sizes));
    if (!entry->has_dtype || !rankfold::is_activation(entry->dtype))
      fail(name, std::string("is ") + entry->dtype_name + "; F32, F16 or BF16 is needed");
    seen_.insert(name);
    return *entry;
  }

  // Returns where the next tensor goes.
  float* read(const rankfold::SafetensorsEntry& entry, float* out) {
    std::int64_t count = 1;
    for (int i = 0; i < entry.num_dims; ++i) count *= entry.sizes[i];
    switch (entry.dtype) {
      case rankfold::DType::f16:
        widen<rankfold::Half>(entry, out, count);
        break;
      case rankfold::DType::bf16:
        widen<rankfold::BFloat16>(entry, out, count);
        break;
      default:
        widen<float>(entry, out, count);
    }
    // Every answer would be made of NaN, and be the same token.
    if (!std::all_of(out, out + count, [](float value) { return std::isfinite(value); }))
      fail(entry.name, "holds a NaN or an infinity; weights must be finite");
    return out + count;
  }

  std::filesystem::path path_;
  rankfold::Safetensors file_;
  std::set<std::string> seen_;
};

std::filesystem::path find_weight_file(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / "model.safetensors";
  if (std::filesystem::exists(path)) return path;
  const std::filesystem::path index = folder / "model.safetensors.index.json";
  if (std::filesystem::exists(index))
    throw ModelError(index.string() + ": the weights are sharded; this example reads one file, " +
                     path.filename().string());
  throw ModelError(path.string() + ": no such file; this example reads safetensors only");
}

}  // namespace

Weights read_weights(const std::filesystem::path& folder, const Config& config) {
  WeightFile file(find_weight_file(folder));
  const std::int64_t hidden = config.hidden_size;

  Weights weights;
  weights.embed_tokens = file.matrix("model.embed_tokens.weight", config.vocab_size, hidden);
  for (std::int64_t i = 0; i < config.num_layers; ++i) {
    const std::string layer = "model.layers." + std::to_string(i) + ".";
    const std::string attention = layer + "self_attn.";
    const std::string mlp = layer + "mlp.";
    weights.layers.push_back({
        .attention_norm = file.vector(layer + "input_layernorm.weight", hidden),
        .qkv = file.packed({{attention + "q_proj.weight", config.q_width()},
                            {attention + "k_proj.weight", config.kv_width()},
                            {attention + "v_proj.weight", config.kv_width()}},
                           hidden),
        .o = file.matrix(attention + "o_proj.weight", hidden, config.q_width()),
        .mlp_norm = file.vector(layer + "post_attention_layernorm.weight", hidden),
        .gate_up = file.packed({{mlp + "gate_proj.weight", config.intermediate_size},
                                {mlp + "up_proj.weight", config.intermediate_size}},
                               hidden),
        .down = file.matrix(mlp + "down_proj.weight", hidden, config.intermediate_size),
    });
    file.allow(attention + "rotary_emb.inv_freq");  // of older files; follows from rope_theta
  }
  weights.norm = file.vector("model.norm.weight", hidden);
  if (config.tie_word_embeddings)
    file.allow("lm_head.weight");  // a copy of embed_tokens, where it is saved at all
  else
    weights.lm_head = file.matrix("lm_head.weight", config.vocab_size, hidden);
  file.check_all_seen();
  return weights;
}

}  // namespace llama
