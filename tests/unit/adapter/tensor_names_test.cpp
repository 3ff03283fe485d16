// Spellings of keys, and conventions that are not PEFT's.
#include <doctest/doctest.h>

#include <cstring>
#include <string>

#include "files.hpp"
#include "llama_targets.hpp"

using namespace adapter_tests;  // NOLINT
using rankfold::AdapterOptions;
using rankfold::StatusCode;

namespace {

struct OneTarget {
  rankfold::SliceSpec slice{.module = "layers.q_proj", .out = 6};
  rankfold::TargetSpec target{.key = "q", .num_slices = 1, .slices = &slice, .in = 5};
  std::span<const rankfold::TargetSpec> span() const { return {&target, 1}; }
};

std::vector<Tensor> named(const std::string& a, const std::string& b) {
  return {{a, {4, 5}, "F32", 1}, {b, {6, 4}, "F32", 100}};
}

}  // namespace

TEST_CASE("I2: every spelling of a key gives the same adapter") {
  for (const char* prefix : {"base_model.model.", "base_model.", ""}) {
    for (const char* name : {"", ".default"}) {
      const std::string path = std::string(prefix) + "layers.q_proj";
      CAPTURE(std::string(path));
      CAPTURE(std::string(name));
      auto file = open(config(), named(path + ".lora_A" + name + ".weight",
                                       path + ".lora_B" + name + ".weight"));
      REQUIRE_MESSAGE(file.ok(), file.status().message());
      REQUIRE_MESSAGE(file->status().ok(), file->status().message());
      CHECK(std::string(file->modules()[0].path) == "layers.q_proj");
      const OneTarget model;
      const auto adapter = std::move(*file).bind(model.span());
      REQUIRE_MESSAGE(adapter.ok(), adapter.status().message());
      REQUIRE(adapter->bindings().size() == 1);
      const auto& binding = adapter->bindings()[0];
      CHECK(binding.rank == 4);
      CHECK(binding.scaling == 2.0f);
      CHECK(element(binding.a, 1, 2) == 8);
      CHECK(element(binding.b, 2, 1) == 109);
    }
  }
}

TEST_CASE("I2: embedding keys with and without the adapter's name") {
  for (const char* name : {"", ".default"}) {
    CAPTURE(std::string(name));
    auto file =
        open(config(), {{"base_model.model.e.lora_embedding_A" + std::string(name), {4, 9}},
                        {"base_model.model.e.lora_embedding_B" + std::string(name), {3, 4}}});
    REQUIRE(file.ok());
    REQUIRE_MESSAGE(file->status().ok(), file->status().message());
    CHECK(file->modules()[0].is_embedding == 1);
    CHECK(file->modules()[0].in == 9);
    CHECK(file->modules()[0].out == 3);
  }
}

TEST_CASE("I2: lora_down and lora_up are refused, naming the convention") {
  const auto file =
      open(config(), named("lora_unet_q_proj.lora_down.weight", "lora_unet_q_proj.lora_up.weight"));
  REQUIRE(file.ok());
  check_error(file->status(), StatusCode::unsupported, {"lora_down/lora_up", "lora_A/lora_B"});
}

TEST_CASE("I2: another adapter's name, DoRA's magnitudes and whole modules are refused") {
  struct Refused {
    const char* tensor;
    const char* text;
  };
  for (const Refused& refused :
       {Refused{"model.k.lora_A.other.weight", "'default'"},
        Refused{"model.k.lora_embedding_A.other", "'default'"},
        Refused{"model.k.lora_magnitude_vector", "DoRA"},
        Refused{"model.k.lora_magnitude_vector.default.weight", "DoRA"},
        Refused{"model.k.modules_to_save.default.weight", "whole module"}}) {
    CAPTURE(std::string(refused.tensor));
    auto tensors = pair("layers.q_proj", 4, 5, 6);
    tensors.push_back({refused.tensor, {4}});
    // Allowing unbound tensors does not allow what changes the mathematics.
    AdapterOptions options;
    options.unbound = AdapterOptions::Unbound::allow;
    const auto file = open(config(), tensors, options);
    REQUIRE(file.ok());
    check_error(file->status(), StatusCode::unsupported, {refused.tensor, refused.text});
  }
}

TEST_CASE("tensors that no rule of LoRA knows are an error, or a line of the report") {
  for (const char* name : {"rope_freqs.weight", "lora_A.weight", "layers.q_proj.lora_A.bias",
                           "layers.q_proj.lora_C.weight", "other.base_layer.weight", ""}) {
    CAPTURE(std::string(name));
    auto tensors = pair("layers.q_proj", 4, 5, 6);
    tensors.push_back({name, {2, 2}});
    const auto refused = open(config(), tensors);
    REQUIRE(refused.ok());
    check_error(refused->status(), StatusCode::unsupported, {std::string("'") + name + "'"});

    AdapterOptions options;
    options.unbound = AdapterOptions::Unbound::allow;
    auto allowed = open(config(), tensors, options);
    REQUIRE(allowed.ok());
    REQUIRE_MESSAGE(allowed->status().ok(), allowed->status().message());
    const OneTarget model;
    const auto adapter = std::move(*allowed).bind(model.span());
    REQUIRE_MESSAGE(adapter.ok(), adapter.status().message());
    REQUIRE(adapter->report().size() == 3);
    CHECK(adapter->report()[2].kind == rankfold::TensorBinding::Kind::unbound);
    CHECK(std::strlen(adapter->report()[2].detail) > 0);
  }
}

TEST_CASE("the same tensor by two spellings is malformed") {
  auto tensors = pair("layers.q_proj", 4, 5, 6);
  tensors.push_back({"layers.q_proj.lora_A.default.weight", {4, 5}});
  const auto file = open(config(), tensors);
  REQUIRE(file.ok());
  check_error(file->status(), StatusCode::malformed_file, {"two names"});
}

TEST_CASE("module paths over 512 bytes or with control characters are refused") {
  const std::string longest(512, 'x');
  CHECK(
      open(config(), named(longest + ".lora_A.weight", longest + ".lora_B.weight"))->status().ok());
  const auto file = open(config(), named(longest + "x.lora_A.weight", longest + "x.lora_B.weight"));
  REQUIRE(file.ok());
  check_error(file->status(), StatusCode::unsupported, {"513", "512", "xxx"});
  const auto control = open(config(), named("a\\nb.lora_A.weight", "a\\nb.lora_B.weight"));
  REQUIRE(control.ok());
  check_error(control->status(), StatusCode::malformed_file, {"'a?b'", "control"});
}

TEST_CASE("an empty file of tensors is no adapter") {
  const auto file = open(config(), std::vector<Tensor>{});
  REQUIRE(file.ok());
  check_error(file->status(), StatusCode::malformed_file, {"no LoRA tensors"});
}
