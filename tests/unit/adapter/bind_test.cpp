// Binding a file's modules to the targets of a host.
#include <doctest/doctest.h>

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "files.hpp"
#include "llama_targets.hpp"

using namespace adapter_tests;  // NOLINT
using rankfold::Adapter;
using rankfold::AdapterOptions;
using rankfold::Result;
using rankfold::SliceSpec;
using rankfold::StatusCode;
using rankfold::TargetKind;
using rankfold::TargetSpec;
using rankfold::TensorBinding;

namespace {

Result<Adapter> bind(const std::string& text, const std::vector<Tensor>& tensors,
                     std::span<const TargetSpec> targets, const AdapterOptions& options = {}) {
  auto file = open(text, tensors, options);
  if (!file.ok()) return file.status();
  return std::move(*file).bind(targets);
}

std::vector<Tensor> operator+(std::vector<Tensor> left, const std::vector<Tensor>& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}

// q of 6 rows, k and v of 3, in 5, as one target; also reachable as the fused module "attn.qkv".
struct Qkv {
  std::vector<SliceSpec> slices = {{.module = "attn.q", .out = 6},
                                   {.module = "attn.k", .out = 3},
                                   {.module = "attn.v", .out = 3}};
  TargetSpec target{
      .key = "qkv", .num_slices = 3, .slices = slices.data(), .in = 5, .fused_module = "attn.qkv"};
  Qkv() = default;
  Qkv(const Qkv&) = delete;
  Qkv& operator=(const Qkv&) = delete;
  std::span<const TargetSpec> span() const { return {&target, 1}; }
};

const std::string kPatterns =
    config("\"rank_pattern\":{\"k\":2,\"v\":7},\"alpha_pattern\":{\"v\":21}");

}  // namespace

TEST_CASE("slices of a target from separate modules with their own ranks and scalings") {
  const Qkv model;
  const auto adapter = bind(
      kPatterns, pair("attn.v", 7, 5, 3, 50) + pair("attn.q", 4, 5, 6) + pair("attn.k", 2, 5, 3),
      model.span());
  REQUIRE_MESSAGE(adapter.ok(), adapter.status().message());
  REQUIRE(adapter->bindings().size() == 3);
  const int ranks[] = {4, 2, 7};
  const float scalings[] = {2, 4, 3};
  for (int i = 0; i < 3; ++i) {
    const auto& binding = adapter->bindings()[i];
    CHECK(binding.slice == i);
    CHECK(binding.expert == 0);
    CHECK(binding.rank == ranks[i]);
    CHECK(binding.scaling == scalings[i]);
    CHECK(binding.a.sizes[0] == ranks[i]);
    CHECK(binding.a.sizes[1] == 5);
    CHECK(binding.b.sizes[0] == (i == 0 ? 6 : 3));
    CHECK(binding.b.sizes[1] == ranks[i]);
    CHECK(binding.bias.data == nullptr);
  }
  CHECK(element(adapter->bindings()[2].a, 6, 4) == 50 + 34);
  CHECK(element(adapter->bindings()[2].b, 2, 6) == 1050 + 20);
  CHECK(adapter->weight_bytes() == 4 * (4 * 11 + 2 * 8 + 7 * 8));
}

TEST_CASE("one pair trained on the fused module: A shared, B split by rows in slice order") {
  const Qkv model;
  const auto adapter = bind(config(), pair("attn.qkv", 4, 5, 12), model.span());
  REQUIRE_MESSAGE(adapter.ok(), adapter.status().message());
  REQUIRE(adapter->bindings().size() == 3);
  const std::int64_t first_row[] = {0, 6, 9};
  for (int i = 0; i < 3; ++i) {
    const auto& binding = adapter->bindings()[i];
    CHECK(binding.slice == i);
    CHECK(binding.a.data == adapter->bindings()[0].a.data);
    CHECK(binding.b.sizes[0] == (i == 0 ? 6 : 3));
    CHECK(element(binding.b, 1, 2) == 1000 + static_cast<float>((first_row[i] + 1) * 4 + 2));
  }
  CHECK(std::string(adapter->report()[0].detail) == "all slices");
  CHECK(adapter->weight_bytes() == 4 * (4 * 5 + 12 * 4));

  const auto wrong = bind(config(), pair("attn.qkv", 4, 5, 11), model.span());
  check_error(wrong.status(), StatusCode::malformed_file, {"[11, 4]", "[12, 4]", "'qkv'"});
}

TEST_CASE("a slice bound by a fused pair and by its own module is an error") {
  const Qkv model;
  const auto adapter =
      bind(config(), pair("attn.k", 4, 5, 3) + pair("attn.qkv", 4, 5, 12), model.span());
  check_error(adapter.status(), StatusCode::malformed_file,
              {"'attn.k'", "'attn.qkv'", "slice 1", "'qkv'"});
}

TEST_CASE("I1: a prefix that the host does not have is an error, never the base's output") {
  const LlamaTargets model(kGoldenLlama);
  const auto none = bind(
      config(), pair("language_model.model.layers.0.self_attn.q_proj", 4, 64, 64), model.targets());
  check_error(none.status(), StatusCode::invalid_argument,
              {"none of the 1 modules", "language_model.model.layers.0.self_attn.q_proj",
               "'model.layers.0.self_attn.q_proj'"});
  // Not even when unbound tensors are allowed.
  AdapterOptions options;
  options.unbound = AdapterOptions::Unbound::allow;
  CHECK(!bind(config(), pair("x", 4, 64, 64), model.targets(), options).ok());
}

TEST_CASE("I1: a partial match is reported by name with counts") {
  const LlamaTargets model(kGoldenLlama);
  const auto tensors = pair("model.layers.0.self_attn.q_proj", 4, 64, 64) +
                       pair("model.layers.0.self_attn.r_proj", 4, 64, 64) +
                       pair("model.layers.1.self_attn.q_proj", 4, 64, 64);
  check_error(bind(config(), tensors, model.targets()).status(), StatusCode::invalid_argument,
              {"2 of the 3 modules", "'model.layers.0.self_attn.r_proj'"});
  AdapterOptions options;
  options.unbound = AdapterOptions::Unbound::allow;
  const auto adapter = bind(config(), tensors, model.targets(), options);
  REQUIRE_MESSAGE(adapter.ok(), adapter.status().message());
  CHECK(adapter->bindings().size() == 2);
  REQUIRE(adapter->report().size() == 6);
  CHECK(adapter->report()[2].kind == TensorBinding::Kind::unbound);
  CHECK(adapter->report()[3].kind == TensorBinding::Kind::unbound);
  CHECK(std::string(adapter->report()[2].target).empty());
  REQUIRE(adapter->findings().size() == 1);
  CHECK(std::string(adapter->findings()[0].text).find("2 of the 3") != std::string::npos);
}

TEST_CASE("I3: missing members of a packed group have no entry, the others are right") {
  const LlamaTargets model(kGoldenLlama);
  const auto adapter = bind(config(),
                            pair("model.layers.0.self_attn.q_proj", 4, 64, 64) +
                                pair("model.layers.0.self_attn.v_proj", 4, 64, 32) +
                                pair("model.layers.0.mlp.gate_proj", 4, 64, 176),
                            model.targets());
  REQUIRE_MESSAGE(adapter.ok(), adapter.status().message());
  std::multimap<std::string, int> bound;
  for (const auto& binding : adapter->bindings()) {
    bound.emplace(model.targets()[binding.target].key, binding.slice);
  }
  CHECK(bound == std::multimap<std::string, int>{
                     {"layers.0.gate_up", 0}, {"layers.0.qkv", 0}, {"layers.0.qkv", 2}});
}

TEST_CASE("I5: shapes that do not fit are an error naming tensor and both shapes") {
  const LlamaTargets model(kGoldenLlama);
  const std::string path = "model.layers.0.self_attn.k_proj";
  check_error(bind(config(), pair(path, 4, 65, 32), model.targets()).status(),
              StatusCode::malformed_file, {path + ".lora_A.weight", "[4, 65]", "[4, 64]"});
  check_error(bind(config(), pair(path, 4, 64, 64), model.targets()).status(),
              StatusCode::malformed_file, {path + ".lora_B.weight", "[64, 4]", "[32, 4]"});
  auto tensors = pair(path, 4, 64, 32);
  tensors[1].shape = {32, 5};
  check_error(bind(config(), tensors, model.targets()).status(), StatusCode::malformed_file,
              {path, "[4, 64]", "rank 4", "[32, 5]", "rank 5"});
  tensors[1].shape = {32};
  check_error(bind(config(), tensors, model.targets()).status(), StatusCode::unsupported,
              {path, "[32]", "2 dimensions"});
}

TEST_CASE("A without B, B without A, a bias alone, empty and foreign dtypes are errors") {
  const Qkv model;
  const std::string path = "base_model.model.attn.q";
  const auto status = [&](const std::vector<Tensor>& tensors, const std::string& more = "") {
    return bind(config(more), tensors, model.span()).status();
  };
  check_error(status({{path + ".lora_A.weight", {4, 5}}}), StatusCode::malformed_file,
              {"lora_A", "no B"});
  check_error(status({{path + ".lora_B.weight", {6, 4}}}), StatusCode::malformed_file,
              {"lora_B", "no A"});
  check_error(status({{path + ".lora_B.bias", {6}}}), StatusCode::malformed_file, {"no A"});
  check_error(status(pair("attn.q", 0, 5, 6)), StatusCode::malformed_file, {"[0, 5]", "empty"});
  check_error(status(pair("attn.q", 4, 5, 6) + std::vector<Tensor>{{path + ".lora_B.bias", {6}}}),
              StatusCode::malformed_file, {"lora_bias"});
  check_error(status(pair("attn.q", 4, 5, 6), "\"lora_bias\":true"), StatusCode::malformed_file,
              {"no bias"});
  check_error(status(pair("attn.q", 4, 5, 6) + std::vector<Tensor>{{path + ".lora_B.bias", {5}}},
                     "\"lora_bias\":true"),
              StatusCode::malformed_file, {"bias [5]", "[6, 4]"});
  check_error(
      status(pair("attn.q", 4, 5, 6) + std::vector<Tensor>{{"attn.q.lora_embedding_A", {4, 5}}}),
      StatusCode::malformed_file, {"linear layer", "embedding"});
  auto wide = pair("attn.q", 4, 5, 6);
  wide[0].dtype = "F64";
  check_error(status(wide), StatusCode::unsupported, {"F64", "BF16"});
  auto half = pair("attn.q", 4, 5, 6);
  half[0].dtype = "BF16";
  half[1].dtype = "F16";
  const auto mixed = bind(config(), half, model.span());
  REQUIRE_MESSAGE(mixed.ok(), mixed.status().message());
  CHECK(mixed->bindings()[0].a.dtype == rankfold::DType::bf16);
  CHECK(mixed->bindings()[0].b.dtype == rankfold::DType::f16);
}

TEST_CASE("shards are windows of B's rows, A's columns and the bias") {
  Qkv model;
  model.slices[0] = {.module = "attn.q", .out = 2, .out_begin = 3, .out_full = 6};
  model.target.num_slices = 1;
  model.target.fused_module = nullptr;
  model.target.in = 2;
  model.target.in_begin = 3;
  model.target.in_full = 5;
  model.target.delta_scale = 0.5f;
  const auto tensors =
      pair("attn.q", 4, 5, 6) + std::vector<Tensor>{{"attn.q.lora_B.bias", {6}, "F32", 70}};
  const auto adapter = bind(config("\"lora_bias\":true"), tensors, model.span());
  REQUIRE_MESSAGE(adapter.ok(), adapter.status().message());
  REQUIRE(adapter->bindings().size() == 1);
  const auto& binding = adapter->bindings()[0];
  CHECK(binding.scaling == 1.0f);
  CHECK(binding.a.sizes[1] == 2);
  CHECK(binding.b.sizes[0] == 2);
  CHECK(element(binding.a, 0, 0) == 3);
  CHECK(element(binding.a, 3, 1) == 3 * 5 + 4);
  CHECK(element(binding.b, 1, 3) == 1000 + 4 * 4 + 3);
  REQUIRE(binding.bias.num_dims == 1);
  CHECK(binding.bias.sizes[0] == 2);
  float bias = 0;
  std::memcpy(&bias, binding.bias.data, sizeof(bias));  // file data may be unaligned
  CHECK(bias == 73);

  model.target.bias_owner = rankfold::BiasOwner::elsewhere;
  const auto other = bind(config("\"lora_bias\":true"), tensors, model.span());
  REQUIRE(other.ok());
  CHECK(other->bindings()[0].bias.data == nullptr);
  CHECK(other->report()[2].kind == TensorBinding::Kind::bound);
  CHECK(std::string(other->report()[2].detail) == "slice 0, added by another shard");
}

TEST_CASE("a scaling that delta_scale makes infinite is refused") {
  Qkv model;
  model.target.delta_scale = 10;
  check_error(bind(config("", "4", "1e39"), pair("attn.q", 4, 5, 6), model.span()).status(),
              StatusCode::malformed_file, {"lora_alpha"});
  check_error(bind(config("", "1", "3e38"), pair("attn.q", 1, 5, 6), model.span()).status(),
              StatusCode::invalid_argument, {"'attn.q'", "delta_scale 10", "'qkv'"});
}

TEST_CASE("a fused pair is sharded slice by slice") {
  Qkv model;
  model.slices[0] = {.module = "attn.q", .out = 3, .out_begin = 3, .out_full = 6};
  model.slices[1] = {.module = "attn.k", .out = 1, .out_begin = 2, .out_full = 3};
  model.slices[2] = {.module = "attn.v", .out = 1, .out_begin = 2, .out_full = 3};
  const auto adapter = bind(config(), pair("attn.qkv", 4, 5, 12), model.span());
  REQUIRE_MESSAGE(adapter.ok(), adapter.status().message());
  const std::int64_t rows[] = {3, 8, 11};
  for (int i = 0; i < 3; ++i) {
    CHECK(element(adapter->bindings()[i].b, 0, 0) == 1000 + static_cast<float>(rows[i] * 4));
  }
}

TEST_CASE("several slices may be windows of one module") {
  std::vector<SliceSpec> slices = {
      {.module = "mlp.gate_up", .out = 4, .out_begin = 0, .out_full = 8},
      {.module = "mlp.gate_up", .out = 4, .out_begin = 4, .out_full = 8}};
  const TargetSpec target{.key = "gate_up", .num_slices = 2, .slices = slices.data(), .in = 5};
  const auto adapter = bind(config(), pair("mlp.gate_up", 4, 5, 8), {&target, 1});
  REQUIRE_MESSAGE(adapter.ok(), adapter.status().message());
  REQUIRE(adapter->bindings().size() == 2);
  CHECK(adapter->bindings()[0].a.data == adapter->bindings()[1].a.data);
  CHECK(element(adapter->bindings()[1].b, 0, 0) == 1000 + 16);
  CHECK(std::string(adapter->report()[0].detail) == "slice 0, slice 1");
}

TEST_CASE("E2: an embedding of fewer words is legal, of more words an error") {
  SliceSpec slice{.module = "embed", .out = 3};
  TargetSpec target{
      .key = "embed", .kind = TargetKind::embedding, .num_slices = 1, .slices = &slice, .in = 104};
  const auto words = [](std::int64_t count) {
    return std::vector<Tensor>{{"embed.lora_embedding_A", {4, count}},
                               {"embed.lora_embedding_B", {3, 4}}};
  };
  for (std::int64_t count : {100, 104}) {
    const auto adapter = bind(config(), words(count), {&target, 1});
    REQUIRE_MESSAGE(adapter.ok(), adapter.status().message());
    CHECK(adapter->bindings()[0].a.sizes[1] == count);
    CHECK(adapter->bindings()[0].a.strides[0] == count);
  }
  check_error(bind(config(), words(105), {&target, 1}).status(), StatusCode::malformed_file,
              {"embed.lora_embedding_A", "[4, 105]", "104"});
  check_error(bind(config(), pair("embed", 4, 104, 3), {&target, 1}).status(),
              StatusCode::malformed_file, {"'embed'", "linear layer"});

  // A shard of the vocabulary sees its own words, those that the file has.
  target.in = 52;
  target.in_begin = 52;
  target.in_full = 104;
  const auto shard = bind(config(), words(100), {&target, 1});
  REQUIRE_MESSAGE(shard.ok(), shard.status().message());
  CHECK(shard->bindings()[0].a.sizes[1] == 48);
  CHECK(element(shard->bindings()[0].a, 1, 0) == 152);
  const auto outside = bind(config(), words(50), {&target, 1});
  REQUIRE_MESSAGE(outside.ok(), outside.status().message());
  CHECK(outside->bindings().empty());
}

TEST_CASE("a file that does not bind stays as it was and binds to other targets") {
  const LlamaTargets wrong(kGoldenLlama);
  const Qkv right;
  auto file = open(config(), pair("attn.q", 4, 5, 6));
  REQUIRE(file.ok());
  REQUIRE(!std::move(*file).bind(wrong.targets()).ok());
  CHECK(file->modules().size() == 1);
  CHECK(std::string(file->modules()[0].path) == "attn.q");
  const auto adapter = std::move(*file).bind(right.span());
  REQUIRE_MESSAGE(adapter.ok(), adapter.status().message());
  CHECK(file->modules().empty());
  CHECK(!file->status().ok());
  CHECK(element(adapter->bindings()[0].b, 0, 0) == 1000);
}

TEST_CASE("no targets: nothing binds") {
  check_error(bind(config(), pair("attn.q", 4, 5, 6), {}).status(), StatusCode::invalid_argument,
              {"none of the 1 modules"});
}
