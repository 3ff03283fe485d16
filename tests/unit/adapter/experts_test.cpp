// Parameters with several experts in them: A [E * rank, in] expert-major, B [out, rank * E] with
// the expert index fastest.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "files.hpp"

using namespace adapter_tests;  // NOLINT
using rankfold::AdapterFile;
using rankfold::SliceSpec;
using rankfold::StatusCode;
using rankfold::TargetKind;
using rankfold::TargetSpec;

namespace {

const std::string kMoe = RANKFOLD_SOURCE_DIR "/tests/data/peft_moe/adapters/experts_r4";
const std::string kOne =
    config("\"target_parameters\":[\"experts.up\",\"experts.down\"]", "2", "6");

std::vector<Tensor> operator+(std::vector<Tensor> left, const std::vector<Tensor>& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}

// 3 experts: up maps 5 to 7, down maps 7 to 5.
struct Experts {
  SliceSpec up{.module = "m.experts.up", .out = 7};
  SliceSpec down{.module = "m.experts.down", .out = 4};
  std::vector<TargetSpec> targets;
  Experts() {
    targets.push_back({.key = "up",
                       .kind = TargetKind::experts,
                       .num_slices = 1,
                       .slices = &up,
                       .in = 5,
                       .num_experts = 3});
    targets.push_back({.key = "down",
                       .kind = TargetKind::experts,
                       .num_slices = 1,
                       .slices = &down,
                       .in = 7,
                       .num_experts = 3});
  }
  Experts(const Experts&) = delete;
  Experts& operator=(const Experts&) = delete;

  rankfold::Result<rankfold::Adapter> bind(const std::string& text,
                                           const std::vector<Tensor>& tensors) const {
    auto file = open(text, tensors);
    if (!file.ok()) return file.status();
    return std::move(*file).bind(targets);
  }
};

}  // namespace

TEST_CASE("golden experts: nested pairs are told apart by shape, fused gate and up are windows") {
  const auto tensors = rankfold::Safetensors::read(kMoe + "/adapter_model.safetensors");
  REQUIRE(tensors.ok());
  const std::string path = "model.layers.0.mlp.experts";
  const std::string gate_up = path + ".gate_up_proj";
  const std::string down = path + ".down_proj";
  const SliceSpec gate_up_slices[] = {
      {.module = gate_up.c_str(), .out = 40, .out_begin = 0, .out_full = 80},
      {.module = gate_up.c_str(), .out = 40, .out_begin = 40, .out_full = 80}};
  const SliceSpec down_slice{.module = down.c_str(), .out = 48};
  const TargetSpec targets[] = {{.key = "gate_up",
                                 .kind = TargetKind::experts,
                                 .num_slices = 2,
                                 .slices = gate_up_slices,
                                 .in = 48,
                                 .num_experts = 6},
                                {.key = "down",
                                 .kind = TargetKind::experts,
                                 .num_slices = 1,
                                 .slices = &down_slice,
                                 .in = 40,
                                 .num_experts = 6}};
  auto file = AdapterFile::open(kMoe);
  REQUIRE(file.ok());
  REQUIRE_MESSAGE(file->status().ok(), file->status().message());
  REQUIRE(file->modules().size() == 4);
  for (const auto& module : file->modules()) {
    CHECK(module.is_parameter == 1);
    CHECK(module.num_experts == 6);
    CHECK(module.rank == 4);
    CHECK(module.scaling == 2.0f);
  }
  // Layer 1 has no targets here.
  check_error(std::move(*file).bind(targets).status(), StatusCode::invalid_argument,
              {"2 of the 4 modules", "model.layers.1.mlp.experts"});
  rankfold::AdapterOptions options;
  options.unbound = rankfold::AdapterOptions::Unbound::allow;
  const auto adapter = rankfold::load_adapter(kMoe, targets, options);
  REQUIRE_MESSAGE(adapter.ok(), adapter.status().message());
  REQUIRE(adapter->bindings().size() == 6 * 3);

  const auto raw = [&](const std::string& name, std::int64_t index) {
    const auto* entry = tensors->find("base_model.model." + path + name);
    REQUIRE(entry != nullptr);
    float value = 0;
    std::memcpy(&value, static_cast<const std::byte*>(entry->data) + index * sizeof(float),
                sizeof(value));
    return value;
  };
  for (const auto& binding : adapter->bindings()) {
    CHECK(binding.rank == 4);
    CHECK(binding.scaling == 2.0f);
    const std::int64_t e = binding.expert;
    for (std::int64_t r = 0; r < 4; ++r) {
      if (binding.target == 0) {
        const std::int64_t row = binding.slice * 40 + 39;
        CHECK(element(binding.a, r, 47) == raw(".base_layer.lora_A.weight", (e * 4 + r) * 48 + 47));
        CHECK(element(binding.b, 39, r) == raw(".base_layer.lora_B.weight", row * 24 + r * 6 + e));
      } else {
        CHECK(element(binding.a, r, 13) == raw(".lora_A.weight", (e * 4 + r) * 40 + 13));
        CHECK(element(binding.b, 47, r) == raw(".lora_B.weight", 47 * 24 + r * 6 + e));
      }
    }
  }
}

TEST_CASE("experts: a pair of the transposed parameter is bound the other way round") {
  const Experts model;
  // B A is [5, 7]: A has 7 = out columns, B 5 = in rows.
  const auto adapter = model.bind(kOne, pair("m.experts", 6, 7, 5));
  REQUIRE_MESSAGE(adapter.ok(), adapter.status().message());
  REQUIRE(adapter->bindings().size() == 3);
  for (const auto& binding : adapter->bindings()) {
    CHECK(binding.target == 0);
    CHECK(binding.rank == 2);
    CHECK(binding.scaling == 3.0f);
    CHECK(binding.a.sizes[0] == 2);
    CHECK(binding.a.sizes[1] == 5);
    CHECK(binding.b.sizes[0] == 7);
    CHECK(binding.b.sizes[1] == 2);
    const int e = binding.expert;
    CHECK(element(binding.a, 1, 4) == 1000 + static_cast<float>(4 * 6 + 1 * 3 + e));
    CHECK(element(binding.b, 6, 1) == static_cast<float>((e * 2 + 1) * 7 + 6));
  }
}

TEST_CASE("experts: delta_scale multiplies the scaling of every expert") {
  Experts model;
  model.targets[0].delta_scale = 0.5f;
  const auto adapter = model.bind(kOne, pair("m.experts", 6, 7, 5));
  REQUIRE_MESSAGE(adapter.ok(), adapter.status().message());
  REQUIRE(adapter->bindings().size() == 3);
  for (const auto& binding : adapter->bindings()) CHECK(binding.scaling == 1.5f);
}

TEST_CASE("F5: where in equals out, the host says which way round, and both ways differ") {
  Experts model;
  model.up.out = 5;  // 3 experts of rank 2, in 5, out 5
  const auto tensors = pair("m.experts", 6, 5, 5);
  check_error(model.bind(kOne, tensors).status(), StatusCode::invalid_argument,
              {"'m.experts.up'", "both ways", "orientation"});
  model.targets[0].orientation = rankfold::ExpertOrientation::out_in;
  const auto straight = model.bind(kOne, tensors);
  REQUIRE_MESSAGE(straight.ok(), straight.status().message());
  CHECK(element(straight->bindings()[1].a, 1, 4) == (1 * 2 + 1) * 5 + 4);
  CHECK(element(straight->bindings()[1].b, 4, 1) == 1000 + 4 * 6 + 1 * 3 + 1);
  model.targets[0].orientation = rankfold::ExpertOrientation::in_out;
  const auto swapped = model.bind(kOne, tensors);
  REQUIRE_MESSAGE(swapped.ok(), swapped.status().message());
  CHECK(element(swapped->bindings()[1].a, 1, 4) == 1000 + 4 * 6 + 1 * 3 + 1);
  CHECK(element(swapped->bindings()[1].b, 4, 1) == (1 * 2 + 1) * 5 + 4);
}

TEST_CASE("experts: two parameters of one shape need a statement") {
  Experts model;
  model.down.out = 7;
  model.targets[1].in = 5;
  const auto tensors = pair("m.experts", 6, 5, 7) + pair("m.experts.base_layer", 6, 5, 7, 500);
  check_error(model.bind(kOne, tensors).status(), StatusCode::invalid_argument,
              {"'m.experts.up'", "'m.experts.down'", "pair_path"});
  model.up.pair_path = "m.experts.base_layer";
  model.down.pair_path = "m.experts";
  const auto adapter = model.bind(kOne, tensors);
  REQUIRE_MESSAGE(adapter.ok(), adapter.status().message());
  REQUIRE(adapter->bindings().size() == 6);
  CHECK(element(adapter->bindings()[0].a, 0, 0) == 500);  // up
  CHECK(element(adapter->bindings()[3].a, 0, 0) == 0);    // down
}

TEST_CASE("experts: patterns see the parameter, the rank is checked, shapes are named") {
  const Experts model;
  const std::string by_name = config(
      "\"target_parameters\":[\"experts.up\",\"experts.down\"],\"rank_pattern\":{\"experts.up\":4},"
      "\"alpha_pattern\":{\"m.experts.up\":2}",
      "2", "6");
  const auto adapter = model.bind(by_name, pair("m.experts", 12, 5, 7));
  REQUIRE_MESSAGE(adapter.ok(), adapter.status().message());
  CHECK(adapter->bindings()[0].rank == 4);
  CHECK(adapter->bindings()[0].scaling == 0.5f);
  check_error(model.bind(by_name, pair("m.experts", 6, 5, 7)).status(), StatusCode::malformed_file,
              {"'m.experts.up'", "rank 2", "rank 4"});
  check_error(model.bind(kOne, pair("m.experts", 6, 5, 8)).status(), StatusCode::malformed_file,
              {"[6, 5]", "[8, 6]", "'m.experts.up' of 3 experts of [7, 5]"});
  check_error(model.bind(kOne, pair("m.experts", 8, 5, 7)).status(), StatusCode::malformed_file,
              {"'m.experts'"});  // 8 rows are no 3 experts
  check_error(open(kOne, pair("m.experts", 7, 5, 7))->status(), StatusCode::malformed_file,
              {"7 rows", "rank 2"});
  check_error(model.bind(kOne, pair("n.experts", 6, 5, 7)).status(), StatusCode::invalid_argument,
              {"none of the 1 modules"});
}

TEST_CASE("experts: shards are windows of rows and columns, also the other way round") {
  Experts model;
  model.up = {.module = "m.experts.up", .out = 2, .out_begin = 4, .out_full = 7};
  model.targets[0].in = 3;
  model.targets[0].in_begin = 1;
  model.targets[0].in_full = 5;
  const auto straight = model.bind(kOne, pair("m.experts", 6, 5, 7));
  REQUIRE_MESSAGE(straight.ok(), straight.status().message());
  CHECK(straight->bindings()[2].a.sizes[1] == 3);
  CHECK(element(straight->bindings()[2].a, 1, 2) == 5 * 5 + 3);
  CHECK(element(straight->bindings()[2].b, 1, 1) == 1000 + 5 * 6 + 1 * 3 + 2);
  const auto swapped = model.bind(kOne, pair("m.experts", 6, 7, 5));
  REQUIRE_MESSAGE(swapped.ok(), swapped.status().message());
  CHECK(element(swapped->bindings()[2].a, 1, 2) == 1000 + 3 * 6 + 1 * 3 + 2);
  CHECK(element(swapped->bindings()[2].b, 1, 1) == 5 * 7 + 5);
}

TEST_CASE("a weight parameter of a plain layer binds as the layer does") {
  const SliceSpec slice{.module = "m.q", .out = 7};
  const TargetSpec target{.key = "q", .num_slices = 1, .slices = &slice, .in = 5};
  auto file = open(config("\"target_parameters\":[\"q.weight\"],\"rank_pattern\":{\"q.weight\":3}"),
                   pair("m.q", 3, 5, 7));
  REQUIRE(file.ok());
  const auto adapter = std::move(*file).bind({&target, 1});
  REQUIRE_MESSAGE(adapter.ok(), adapter.status().message());
  CHECK(adapter->bindings()[0].rank == 3);
  CHECK(adapter->bindings()[0].scaling == static_cast<float>(8.0 / 3));
}
