// What save_adapter() writes is read back bit for bit, with the scalings that were meant.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <string>
#include <vector>

#include "files.hpp"
#include "llama_targets.hpp"
#include "rankfold/save_adapter.hpp"
#include "save_model.hpp"

using namespace adapter_tests;  // NOLINT
using rankfold::Adapter;
using rankfold::AdapterBinding;
using rankfold::ConstTensorView;
using rankfold::StatusCode;

namespace {

const std::string kPeft = RANKFOLD_SOURCE_DIR "/tests/data/peft_llama/adapters/";
const std::string kMoe = RANKFOLD_SOURCE_DIR "/tests/data/peft_moe/adapters/experts_r4";

// Dense bytes of a view.
std::vector<std::byte> bytes_of(const ConstTensorView& view) {
  std::vector<std::byte> bytes;
  const auto size = static_cast<std::int64_t>(rankfold::size_of(view.dtype));
  const auto* data = static_cast<const std::byte*>(view.data);
  const std::int64_t columns = view.num_dims == 2 ? view.sizes[1] : 1;
  for (std::int64_t row = 0; view.data != nullptr && row < view.sizes[0]; ++row) {
    for (std::int64_t column = 0; column < columns; ++column) {
      const auto* from = data + (row * view.strides[0] + column * view.strides[1]) * size;
      bytes.insert(bytes.end(), from, from + size);
    }
  }
  return bytes;
}

// The bindings of an adapter as weights to be saved.
std::vector<AdapterWeights> weights_of(const Adapter& adapter, bool sqrt_rank = false) {
  std::vector<AdapterWeights> weights;
  for (const AdapterBinding& from : adapter.bindings()) {
    const double rank = from.rank;
    weights.push_back({.target = from.target,
                       .slice = from.slice,
                       .expert = from.expert,
                       .alpha = from.scaling * (sqrt_rank ? std::sqrt(rank) : rank),
                       .a = from.a,
                       .b = from.b,
                       .bias = from.bias});
  }
  return weights;
}

void check_equal(const Adapter& got, const Adapter& wanted) {
  REQUIRE(got.bindings().size() == wanted.bindings().size());
  for (std::size_t i = 0; i < wanted.bindings().size(); ++i) {
    const AdapterBinding& one = got.bindings()[i];
    const AdapterBinding& other = wanted.bindings()[i];
    CAPTURE(i);
    CHECK(one.target == other.target);
    CHECK(one.slice == other.slice);
    CHECK(one.expert == other.expert);
    CHECK(one.rank == other.rank);
    CHECK(one.scaling == other.scaling);
    CHECK(one.a.dtype == other.a.dtype);
    CHECK(one.b.dtype == other.b.dtype);
    CHECK(bytes_of(one.a) == bytes_of(other.a));
    CHECK(bytes_of(one.b) == bytes_of(other.b));
    CHECK(bytes_of(one.bias) == bytes_of(other.bias));
  }
}

}  // namespace

TEST_CASE("saving: every adapter of PEFT that binds is read back as it was") {
  for (const std::string name : {"all_linear_r8", "qv_rslora_r4", "rank_alpha_pattern",
                                 "embed_head_r6", "lora_bias_r8", "r1", "regex_layer1"}) {
    CAPTURE(name);
    const Folder folder;
    const LlamaTargets model(kGoldenLlama);
    const auto adapter = rankfold::load_adapter(kPeft + name, model.targets());
    REQUIRE_MESSAGE(adapter.ok(), adapter.status().message());
    const bool sqrt_rank = name == "qv_rslora_r4";
    const auto saved = rankfold::save_adapter(
        folder / "copy", model.targets(), weights_of(*adapter, sqrt_rank),
        {.scaling = sqrt_rank ? rankfold::ScalingRule::sqrt_rank : rankfold::ScalingRule::rank});
    REQUIRE_MESSAGE(saved.ok(), saved.message());
    const auto again = rankfold::load_adapter(folder / "copy", model.targets());
    REQUIRE_MESSAGE(again.ok(), again.status().message());
    check_equal(*again, *adapter);
  }
}

TEST_CASE("saving: experts are laid out as PEFT lays them out") {
  std::deque<std::string> paths;
  std::deque<std::vector<SliceSpec>> slices;
  std::vector<TargetSpec> targets;
  for (const char* layer : {"0", "1"}) {
    const std::string path = "model.layers." + std::string(layer) + ".mlp.experts.";
    const char* gate_up = paths.emplace_back(path + "gate_up_proj").c_str();
    const char* down = paths.emplace_back(path + "down_proj").c_str();
    slices.push_back({{.module = gate_up, .out = 40, .out_begin = 0, .out_full = 80},
                      {.module = gate_up, .out = 40, .out_begin = 40, .out_full = 80}});
    const rankfold::ExpertOrientation straight = rankfold::ExpertOrientation::out_in;
    targets.push_back({.key = gate_up,
                       .kind = TargetKind::experts,
                       .num_slices = 2,
                       .slices = slices.back().data(),
                       .in = 48,
                       .num_experts = 6,
                       .orientation = straight});
    slices.push_back({{.module = down, .out = 48}});
    targets.push_back({.key = down,
                       .kind = TargetKind::experts,
                       .num_slices = 1,
                       .slices = slices.back().data(),
                       .in = 40,
                       .num_experts = 6,
                       .orientation = straight});
  }
  const Folder folder;
  const auto adapter = rankfold::load_adapter(kMoe, targets);
  REQUIRE_MESSAGE(adapter.ok(), adapter.status().message());
  const std::vector<AdapterWeights> weights = weights_of(*adapter);
  const auto saved = rankfold::save_adapter(folder / "copy", targets, weights);
  REQUIRE_MESSAGE(saved.ok(), saved.message());
  // The file of PEFT itself, tensor by tensor.
  const auto wanted = rankfold::Safetensors::read(kMoe + "/adapter_model.safetensors");
  const auto got = rankfold::Safetensors::read(folder / "copy/adapter_model.safetensors");
  REQUIRE(wanted.ok());
  REQUIRE_MESSAGE(got.ok(), got.status().message());
  REQUIRE(got->entries().size() == wanted->entries().size());
  for (const auto& entry : wanted->entries()) {
    CAPTURE(std::string(entry.name));
    const auto* same = got->find(entry.name);
    REQUIRE(same != nullptr);
    CHECK(same->sizes[0] == entry.sizes[0]);
    CHECK(same->sizes[1] == entry.sizes[1]);
    REQUIRE(same->bytes == entry.bytes);
    CHECK(std::memcmp(same->data, entry.data, entry.bytes) == 0);
  }

  // The other way round, and with alphas by parameter.
  for (TargetSpec& target : targets) target.orientation = rankfold::ExpertOrientation::in_out;
  std::vector<AdapterWeights> changed = weights;
  for (AdapterWeights& one : changed) {
    if (one.target == 1) one.alpha = 3;
  }
  REQUIRE(rankfold::save_adapter(folder / "turned", targets, changed).ok());
  const auto turned = rankfold::load_adapter(folder / "turned", targets);
  REQUIRE_MESSAGE(turned.ok(), turned.status().message());
  REQUIRE(turned->bindings().size() == weights.size());
  for (std::size_t i = 0; i < weights.size(); ++i) {
    CHECK(bytes_of(turned->bindings()[i].a) == bytes_of(weights[i].a));
    CHECK(bytes_of(turned->bindings()[i].b) == bytes_of(weights[i].b));
    CHECK(turned->bindings()[i].scaling == (turned->bindings()[i].target == 1 ? 0.75f : 2.0f));
  }

  const auto refused = [&](const std::vector<AdapterWeights>& list,
                           const std::vector<std::string>& parts) {
    check_error(rankfold::save_adapter(folder / "none", targets, list),
                StatusCode::invalid_argument, parts);
    CHECK(!fs::exists(folder / "none"));
  };
  std::vector<AdapterWeights> fewer(weights.begin(), weights.end() - 1);
  refused(fewer, {"layers.1.mlp.experts.down_proj", "5 of 6"});
  changed = weights;
  changed[1].alpha = 5;
  refused(changed, {"alpha", "expert"});
  changed = weights;
  for (AdapterWeights& one : changed) {
    if (one.target == 0 && one.slice == 1 && one.expert == 2) one.a = weights[0].a;
  }
  refused(changed, {"gate_up_proj", "share"});
  targets[3].orientation = rankfold::ExpertOrientation::by_shape;
  refused(weights, {"by_shape", "out_in"});
}

TEST_CASE("saving: slices, ranks, alphas, dtypes and strides of their own") {
  const Folder folder;
  const Model model;
  const std::vector<rankfold::BFloat16> narrow(100, rankfold::to_bfloat16(1.5f));
  std::vector<AdapterWeights> weights = {model.weights(0, 0, 2, 4), model.weights(0, 1, 2, 4),
                                         model.weights(0, 2, 3, 0.1), model.weights(1, 0, 2, 4),
                                         model.weights(2, 0, 1, 4)};
  // v: A in bf16, B lies transposed.
  weights[2].a = rankfold::const_matrix(narrow.data(), 3, 4);
  weights[2].b.strides[0] = 1;
  weights[2].b.strides[1] = 2;
  weights[4].a.sizes[1] = 5;  // fewer columns than the vocabulary
  const auto saved = rankfold::save_adapter(
      folder / "new/adapter/", model.targets, weights,
      {.scaling = rankfold::ScalingRule::sqrt_rank, .dropout = 0.25, .base_model = "base \"x\""});
  REQUIRE_MESSAGE(saved.ok(), saved.message());
  CHECK(fs::exists(folder / "new/adapter/adapter_config.json"));
  const auto read = rankfold::load_adapter(folder / "new/adapter", model.targets);
  REQUIRE_MESSAGE(read.ok(), read.status().message());
  REQUIRE(read->bindings().size() == weights.size());
  for (const AdapterBinding& got : read->bindings()) {
    const auto wanted = std::find_if(weights.begin(), weights.end(), [&](const auto& one) {
      return one.target == got.target && one.slice == got.slice;
    });
    REQUIRE(wanted != weights.end());
    const auto rank = wanted->a.sizes[0];
    CHECK(got.rank == rank);
    CHECK(got.scaling == static_cast<float>(wanted->alpha / std::sqrt(static_cast<double>(rank))));
    CHECK(got.a.dtype == wanted->a.dtype);
    CHECK(bytes_of(got.a) == bytes_of(wanted->a));
    CHECK(bytes_of(got.b) == bytes_of(wanted->b));
  }
  const std::string config = text_of(folder / "new/adapter/adapter_config.json");
  CHECK(config.find("\"r\": 2,") != std::string::npos);
  CHECK(config.find("\"lora_alpha\": 4,") != std::string::npos);
  CHECK(config.find("\"v_proj\": 0.1") != std::string::npos);
  CHECK(config.find("\"lora_dropout\": 0.25") != std::string::npos);
  CHECK(config.find("base \\\"x\\\"") != std::string::npos);
}

TEST_CASE("saving: patterns name whole paths where a last part is not enough") {
  const Folder folder;
  SliceSpec slices[4];
  const char* paths[4] = {"layers.0.q_proj", "layers.1.q_proj", "x.layers.0.q_proj", "layers_0.k"};
  std::vector<TargetSpec> targets;
  for (int i = 0; i < 4; ++i) {
    slices[i] = {.module = paths[i], .out = 2};
    targets.push_back({.key = paths[i], .num_slices = 1, .slices = &slices[i], .in = 2});
  }
  const std::vector<float> numbers(20, 1.0f);
  std::vector<AdapterWeights> weights;
  const std::int64_t ranks[4] = {3, 1, 1, 2};
  for (int i = 0; i < 4; ++i) {
    weights.push_back({.target = i,
                       .alpha = i == 1 ? 7.0 : 1.0,
                       .a = rankfold::const_matrix(numbers.data(), ranks[i], 2),
                       .b = rankfold::const_matrix(numbers.data(), 2, ranks[i])});
  }
  const auto saved = rankfold::save_adapter(folder / "a", targets, weights);
  REQUIRE_MESSAGE(saved.ok(), saved.message());
  const auto read = rankfold::load_adapter(folder / "a", targets);
  REQUIRE_MESSAGE(read.ok(), read.status().message());
  for (const AdapterBinding& got : read->bindings()) {
    CHECK(got.rank == ranks[got.target]);
    CHECK(got.scaling == static_cast<float>((got.target == 1 ? 7.0 : 1.0) / got.rank));
  }
}

TEST_CASE("saving: one bias gives the others zeros; embeddings have none") {
  const Folder folder;
  const Model model;
  std::vector<AdapterWeights> weights = {model.weights(0, 0, 2, 4), model.weights(0, 1, 2, 4)};
  weights[1].bias = rankfold::const_vector(model.numbers.data(), 2);
  REQUIRE(rankfold::save_adapter(folder / "a", model.targets, weights).ok());
  const auto read = rankfold::load_adapter(folder / "a", model.targets);
  REQUIRE_MESSAGE(read.ok(), read.status().message());
  CHECK(bytes_of(read->bindings()[0].bias) == std::vector<std::byte>(6 * sizeof(float)));
  CHECK(bytes_of(read->bindings()[1].bias) == bytes_of(weights[1].bias));
  weights.push_back(model.weights(2, 0, 2, 4));
  check_error(rankfold::save_adapter(folder / "b", model.targets, weights), StatusCode::unsupported,
              {"k_proj", "embed_tokens", "bias"});
  CHECK(!fs::exists(folder / "b"));
}

TEST_CASE("saving: windows of a sharded module are refused, all of its windows are joined") {
  const Folder folder;
  const Model model;
  SliceSpec windows[2] = {{.module = "gate_up", .out = 2, .out_begin = 3, .out_full = 5},
                          {.module = "gate_up", .out = 3, .out_begin = 0, .out_full = 5}};
  std::vector<TargetSpec> targets = {
      {.key = "gate_up", .num_slices = 2, .slices = windows, .in = 4}};
  std::vector<AdapterWeights> weights;
  for (std::int32_t s = 0; s < 2; ++s) {
    weights.push_back(
        {.slice = s,
         .alpha = 1,
         .a = rankfold::const_matrix(model.numbers.data(), 2, 4),
         .b = rankfold::const_matrix(model.numbers.data() + 20 * s, windows[s].out, 2),
         .bias = rankfold::const_vector(model.numbers.data() + s, windows[s].out)});
  }
  REQUIRE(rankfold::save_adapter(folder / "a", targets, weights).ok());
  const auto read = rankfold::load_adapter(folder / "a", targets);
  REQUIRE_MESSAGE(read.ok(), read.status().message());
  REQUIRE(read->bindings().size() == 2);
  for (const AdapterBinding& got : read->bindings()) {
    const AdapterWeights& wanted = weights[static_cast<std::size_t>(got.slice)];
    CHECK(bytes_of(got.b) == bytes_of(wanted.b));
    CHECK(bytes_of(got.bias) == bytes_of(wanted.bias));
  }
  const auto refused = [&](const std::vector<std::string>& parts) {
    check_error(rankfold::save_adapter(folder / "b", targets, weights),
                StatusCode::invalid_argument, parts);
  };
  weights.pop_back();
  refused({"gate_up", "1 of 2"});
  targets[0].num_slices = 1;
  refused({"gate_up", "whole"});
  windows[0] = {.module = "gate_up", .out = 2};
  targets[0].in_full = 8;
  refused({"4 of 8 columns"});
}
