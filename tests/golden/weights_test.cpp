// Weight files: dtypes, tied embeddings, and what is refused.
#include <doctest/doctest.h>

#include <cstring>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "support.hpp"

namespace golden {
namespace {

using rankfold::DType;

// A copy of the golden base, its tensors open to changes.
class ModelFolder {
 public:
  struct Tensor {
    DType dtype;
    std::vector<std::int64_t> sizes;
    std::vector<std::byte> bytes;
  };
  std::map<std::string, Tensor> tensors;
  nlohmann::json config;

  ModelFolder() : folder_("weights") {
    std::ifstream stream(kPeftLlama / "base" / "config.json");
    config = nlohmann::json::parse(stream);
    const auto file =
        rankfold::Safetensors::read((kPeftLlama / "base" / "model.safetensors").string()).value();
    for (const rankfold::SafetensorsEntry& entry : file.entries()) {
      const auto* data = static_cast<const std::byte*>(entry.data);
      tensors[entry.name] = {
          entry.dtype, {entry.sizes, entry.sizes + entry.num_dims}, {data, data + entry.bytes}};
    }
  }

  const std::filesystem::path& write() const {
    std::ofstream(path() / "config.json") << config.dump();
    std::vector<rankfold::SafetensorsTensor> list;
    for (const auto& [name, tensor] : tensors) {
      rankfold::SafetensorsTensor& out = list.emplace_back();
      out.name = name.c_str();
      out.dtype = tensor.dtype;
      out.num_dims = static_cast<std::int32_t>(tensor.sizes.size());
      std::copy(tensor.sizes.begin(), tensor.sizes.end(), out.sizes);
      out.data = tensor.bytes.data();
    }
    rankfold::throw_if_error(
        rankfold::write_safetensors((path() / "model.safetensors").string(), list));
    return path();
  }
  const std::filesystem::path& path() const { return folder_.path(); }

  std::string refusal() const {
    try {
      (void)llama::Model::load(write());
    } catch (const std::exception& error) {
      return error.what();
    }
    return "";
  }

 private:
  ScratchFolder folder_;
};

// Rounds a tensor to a 16-bit type and back, so that both files hold the same numbers.
template <class T>
void narrow(ModelFolder::Tensor& tensor, ModelFolder::Tensor& rounded) {
  const std::size_t count = tensor.bytes.size() / sizeof(float);
  rounded = {rankfold::kDTypeOf<T>, tensor.sizes, std::vector<std::byte>(count * sizeof(T))};
  for (std::size_t i = 0; i < count; ++i) {
    float value;
    std::memcpy(&value, &tensor.bytes[i * sizeof(float)], sizeof(float));
    const T small = rankfold::from_float<T>(value);
    value = rankfold::to_float(small);
    std::memcpy(&tensor.bytes[i * sizeof(float)], &value, sizeof(float));
    std::memcpy(&rounded.bytes[i * sizeof(T)], &small, sizeof(T));
  }
}

Matrix base_logits(const std::filesystem::path& folder) {
  const auto model = llama::Model::load(folder);
  llama::KvCache cache(model.config(), 4);
  llama::Batch batch;
  const Tokens tokens = {7, 130, 0, 159};
  batch.add(cache, tokens, -1, llama::Logits::all);
  llama::Deltas none;
  return model.forward(batch, none);
}

TEST_CASE("weights: F16 and BF16 files are widened exactly") {
  ModelFolder wide;
  ModelFolder mixed;
  bool half = true;
  for (auto& [name, tensor] : wide.tensors) {
    if (half)
      narrow<rankfold::Half>(tensor, mixed.tensors[name]);
    else
      narrow<rankfold::BFloat16>(tensor, mixed.tensors[name]);
    half = !half;
  }
  const Matrix expected = base_logits(wide.write());
  const Matrix got = base_logits(mixed.write());
  CHECK((got.array() == expected.array()).all());
}

TEST_CASE("weights: a tied head is the embedding, saved or not") {
  ModelFolder untied;
  untied.tensors["lm_head.weight"] = untied.tensors["model.embed_tokens.weight"];
  const Matrix expected = base_logits(untied.write());

  ModelFolder tied;
  tied.config["tie_word_embeddings"] = true;
  const Matrix with_copy = base_logits(tied.write());
  CHECK((with_copy.array() == expected.array()).all());
  tied.tensors.erase("lm_head.weight");
  const Matrix without = base_logits(tied.write());
  CHECK((without.array() == expected.array()).all());
}

TEST_CASE("weights: what does not fit config.json is refused by the tensor's name") {
  {
    ModelFolder folder;
    folder.tensors.erase("model.layers.1.mlp.up_proj.weight");
    CHECK(folder.refusal().find("model.layers.1.mlp.up_proj.weight is missing") !=
          std::string::npos);
  }
  {
    ModelFolder folder;
    folder.config["intermediate_size"] = 175;
    const std::string text = folder.refusal();
    CHECK(text.find("[176, 64]") != std::string::npos);
    CHECK(text.find("[175, 64]") != std::string::npos);
  }
  {
    ModelFolder folder;
    folder.tensors["model.layers.0.self_attn.q_proj.bias"] = {
        DType::f32, {64}, std::vector<std::byte>(256)};
    CHECK(folder.refusal().find("q_proj.bias is not a tensor of the Llama") != std::string::npos);
  }
  {
    ModelFolder folder;
    folder.tensors["model.norm.weight"] = {DType::f64, {64}, std::vector<std::byte>(512)};
    CHECK(folder.refusal().find("model.norm.weight is F64") != std::string::npos);
  }
  for (const float value :
       {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    ModelFolder folder;
    ModelFolder::Tensor& tensor = folder.tensors["model.layers.1.mlp.up_proj.weight"];
    REQUIRE(tensor.dtype == DType::f32);
    std::memcpy(&tensor.bytes[tensor.bytes.size() - sizeof(value)], &value, sizeof(value));
    CHECK(folder.refusal().find("model.layers.1.mlp.up_proj.weight holds a NaN") !=
          std::string::npos);
  }
  {
    const ModelFolder folder;
    folder.write();
    std::filesystem::remove(folder.path() / "model.safetensors");
    std::ofstream(folder.path() / "model.safetensors.index.json") << "{}";
    try {
      (void)llama::Model::load(folder.path());
      FAIL("a sharded model was read");
    } catch (const llama::ModelError& error) {
      CHECK(std::string(error.what()).find("sharded") != std::string::npos);
    }
  }
}

}  // namespace
}  // namespace golden
