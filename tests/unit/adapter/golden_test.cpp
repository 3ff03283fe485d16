// The adapters that PEFT wrote, opened and bound.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <string>

#include "files.hpp"
#include "llama_targets.hpp"

using namespace adapter_tests;  // NOLINT
using rankfold::AdapterFile;
using rankfold::StatusCode;

namespace {

const std::string kPeft = RANKFOLD_SOURCE_DIR "/tests/data/peft_llama/";
const std::string kTasks = RANKFOLD_SOURCE_DIR "/examples/01_string_tasks/data/";

rankfold::Safetensors read(const std::string& path) {
  auto file = rankfold::Safetensors::read(path);
  REQUIRE_MESSAGE(file.ok(), file.status().message());
  return std::move(*file);
}

// Each binding's elements are those of the file's tensors.
void check_weights(const rankfold::Adapter& adapter, const rankfold::Safetensors& file) {
  CHECK(adapter.report().size() == file.entries().size());
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < adapter.report().size(); ++i) {
    CHECK(std::string(adapter.report()[i].tensor) == file.entries()[i].name);
    CHECK(adapter.report()[i].kind != rankfold::TensorBinding::Kind::unbound);
    if (adapter.report()[i].kind == rankfold::TensorBinding::Kind::bound) {
      bytes += static_cast<std::int64_t>(file.entries()[i].bytes);
    }
  }
  CHECK(bytes == adapter.weight_bytes());
}

struct Golden {
  const char* name;
  std::size_t num_bindings;
};

}  // namespace

TEST_CASE("golden adapters: seven bind to the base they were trained on") {
  const auto base = read(kPeft + "base/model.safetensors");
  const LlamaTargets model(kGoldenLlama, &base);
  for (const Golden& golden :
       {Golden{"all_linear_r8", 14}, Golden{"qv_rslora_r4", 4}, Golden{"rank_alpha_pattern", 6},
        Golden{"embed_head_r6", 4}, Golden{"lora_bias_r8", 4}, Golden{"r1", 4},
        Golden{"regex_layer1", 2}}) {
    CAPTURE(std::string(golden.name));
    const std::string path = kPeft + "adapters/" + golden.name;
    auto adapter = rankfold::load_adapter(path, model.targets());
    REQUIRE_MESSAGE(adapter.ok(), adapter.status().message());
    CHECK(adapter->bindings().size() == golden.num_bindings);
    check_weights(*adapter, read(path + "/adapter_model.safetensors"));
  }
}

TEST_CASE("golden adapters: exactly two are refused by name") {
  struct Refused {
    std::string name, key;
    std::size_t num_modules;
  };
  for (const Refused& refused :
       {Refused{"dora_r8", "use_dora", 6}, Refused{"modules_to_save_head", "modules_to_save", 2}}) {
    CAPTURE(refused.name);
    auto file = AdapterFile::open(kPeft + "adapters/" + refused.name);
    REQUIRE_MESSAGE(file.ok(), file.status().message());
    CHECK(file->modules().size() == refused.num_modules);
    check_error(file->status(), StatusCode::unsupported, {refused.key});
    const LlamaTargets model(kGoldenLlama);
    const std::string text = file->status().message();
    auto adapter = std::move(*file).bind(model.targets());
    REQUIRE(!adapter.ok());
    CHECK(text == adapter.status().message());
  }
}

TEST_CASE("golden adapters: the trained string tasks bind") {
  const auto base = read(kTasks + "base/model.safetensors");
  const LlamaTargets model(kTaskLlama, &base);
  for (const Golden& golden :
       {Golden{"reverse", 28}, Golden{"upper", 16}, Golden{"sort", 28}, Golden{"rot13", 22}}) {
    CAPTURE(std::string(golden.name));
    const std::string path = kTasks + "adapters/" + golden.name;
    auto adapter = rankfold::load_adapter(path, model.targets());
    REQUIRE_MESSAGE(adapter.ok(), adapter.status().message());
    CHECK(adapter->bindings().size() == golden.num_bindings);
    check_weights(*adapter, read(path + "/adapter_model.safetensors"));
  }
}

TEST_CASE("golden adapters: ranks and scalings by pattern") {
  auto file = AdapterFile::open(kPeft + "adapters/rank_alpha_pattern");
  REQUIRE(file.ok());
  struct Expected {
    int rank;
    double alpha;
  };
  const std::map<std::string, Expected> expected = {
      {"model.layers.0.self_attn.q_proj", {3, 12}}, {"model.layers.1.self_attn.q_proj", {8, 12}},
      {"model.layers.0.mlp.up_proj", {8, 12}},      {"model.layers.1.mlp.up_proj", {8, 5}},
      {"model.layers.0.mlp.down_proj", {17, 40}},   {"model.layers.1.mlp.down_proj", {17, 12}}};
  REQUIRE(file->modules().size() == expected.size());
  for (const rankfold::AdapterModule& module : file->modules()) {
    CAPTURE(std::string(module.path));
    const Expected& want = expected.at(module.path);
    CHECK(module.rank == want.rank);
    CHECK(module.alpha == want.alpha);
    CHECK(module.scaling == static_cast<float>(want.alpha / want.rank));
  }
}

TEST_CASE("golden adapters: rsLoRA, and slices with and without a pair") {
  const LlamaTargets model(kGoldenLlama);
  auto adapter = rankfold::load_adapter(kPeft + "adapters/qv_rslora_r4", model.targets());
  REQUIRE(adapter.ok());
  const std::int32_t qkv = model.index("layers.0.qkv");
  REQUIRE(adapter->bindings().size() == 4);
  CHECK(adapter->bindings()[0].target == qkv);
  CHECK(adapter->bindings()[0].slice == 0);
  CHECK(adapter->bindings()[1].slice == 2);
  for (const auto& binding : adapter->bindings()) CHECK(binding.scaling == 4.0f);  // 8 / sqrt(4)
}

TEST_CASE("golden adapters: base copies are equal to the base, or not compared, or an error") {
  const std::string path = kPeft + "adapters/embed_head_r6";
  const auto copies = [](const rankfold::Adapter& adapter) {
    std::map<std::string, std::string> found;
    for (const auto& line : adapter.report()) {
      if (line.kind == rankfold::TensorBinding::Kind::base_copy) found[line.tensor] = line.detail;
    }
    return found;
  };
  const auto base = read(kPeft + "base/model.safetensors");
  {
    const LlamaTargets model(kGoldenLlama, &base);
    const auto adapter = rankfold::load_adapter(path, model.targets());
    REQUIRE(adapter.ok());
    CHECK(copies(*adapter).size() == 2);
    for (const auto& [tensor, detail] : copies(*adapter)) CHECK(detail == "equal to the base");
  }
  {
    const LlamaTargets model(kGoldenLlama);
    const auto adapter = rankfold::load_adapter(path, model.targets());
    REQUIRE(adapter.ok());
    CHECK(copies(*adapter).size() == 2);
    for (const auto& [tensor, detail] : copies(*adapter)) CHECK(detail == "not compared");
    CHECK(adapter->findings().size() >= 2);
  }
  {
    LlamaTargets model(kGoldenLlama, &base);
    std::vector<float> head(160 * 64);
    std::memcpy(head.data(), base.find("lm_head.weight")->data, head.size() * 4);
    head[64 * 12 + 3] += 0.25f;
    auto targets = model.targets();
    auto slice = targets[model.index("head")].slices[0];
    slice.base_weight.data = head.data();
    targets[model.index("head")].slices = &slice;
    const auto adapter = rankfold::load_adapter(path, targets);
    REQUIRE(!adapter.ok());
    check_error(adapter.status(), StatusCode::invalid_argument,
                {"lm_head.base_layer.weight", "[12, 3]"});
  }
}

TEST_CASE("golden adapters: embedding and bias views") {
  const LlamaTargets model(kGoldenLlama);
  const auto embed = rankfold::load_adapter(kPeft + "adapters/embed_head_r6", model.targets());
  REQUIRE(embed.ok());
  bool seen = false;
  for (const auto& binding : embed->bindings()) {
    if (binding.target != model.index("embed")) continue;
    seen = true;
    CHECK(binding.a.sizes[0] == 6);
    CHECK(binding.a.sizes[1] == 160);
    CHECK(binding.b.sizes[0] == 64);
    CHECK(binding.b.sizes[1] == 6);
    CHECK(binding.scaling == 1.0f);
  }
  CHECK(seen);
  const auto bias = rankfold::load_adapter(kPeft + "adapters/lora_bias_r8", model.targets());
  REQUIRE(bias.ok());
  for (const auto& binding : bias->bindings()) {
    CHECK(binding.bias.num_dims == 1);
    CHECK(binding.bias.sizes[0] == binding.b.sizes[0]);
  }
}

TEST_CASE("golden adapters: every key of PEFT's own config is known or listed") {
  const auto file = AdapterFile::open(kPeft + "adapters/r1");
  REQUIRE(file.ok());
  for (const auto& finding : file->findings()) {
    CAPTURE(std::string(finding.text));
    CHECK(finding.severity == rankfold::Finding::Severity::note);
  }
  CHECK(!file->findings().empty());
}

TEST_CASE("a folder that is not there is named as the caller gave it") {
  for (const std::string path : {"no_such_folder", "no/such/folder/"}) {
    CAPTURE(path);
    const auto file = rankfold::AdapterFile::open(path);
    REQUIRE_FALSE(file.ok());
    CHECK(file.status().code() == rankfold::StatusCode::invalid_argument);
    CHECK(std::string(file.status().message()).find("'" + path + "'") != std::string::npos);
  }
}
