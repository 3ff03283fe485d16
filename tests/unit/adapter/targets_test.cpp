// Target specs that break their rules, and base copies against base weights.
#include <doctest/doctest.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "files.hpp"

using namespace adapter_tests;  // NOLINT
using rankfold::DType;
using rankfold::SliceSpec;
using rankfold::StatusCode;
using rankfold::TargetKind;
using rankfold::TargetSpec;

namespace {

struct Model {
  std::vector<SliceSpec> slices = {{.module = "a.q", .out = 6}, {.module = "a.k", .out = 3}};
  std::vector<SliceSpec> more = {{.module = "a.o", .out = 6}};
  std::vector<TargetSpec> targets;
  Model() {
    targets.push_back(
        {.key = "qk", .num_slices = 2, .slices = slices.data(), .in = 5, .fused_module = "a.qk"});
    targets.push_back({.key = "o", .num_slices = 1, .slices = more.data(), .in = 5});
  }
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  rankfold::Status bind(const std::vector<Tensor>& tensors) const {
    auto file = open(config(), tensors);
    REQUIRE(file.ok());
    REQUIRE_MESSAGE(file->status().ok(), file->status().message());
    return std::move(*file).bind(targets).status();
  }
};

std::vector<Tensor> with_copy(const std::string& path, std::int64_t in, std::int64_t out,
                              std::int64_t copy_rows, std::int64_t copy_columns,
                              const std::string& dtype = "F32") {
  auto tensors = pair(path, 4, in, out);
  tensors.push_back({path + ".base_layer.weight", {copy_rows, copy_columns}, dtype, 7});
  return tensors;
}

std::vector<float> counting(std::size_t size) {
  std::vector<float> values(size);
  for (std::size_t i = 0; i < size; ++i) values[i] = 7 + static_cast<float>(i);
  return values;
}

}  // namespace

TEST_CASE("targets: what breaks a rule of TargetSpec is an invalid argument that names it") {
  struct Broken {
    std::function<void(Model&)> change;
    std::vector<std::string> parts;
  };
  static const float weight[64] = {};
  const float infinite = std::numeric_limits<float>::infinity();
  const std::vector<Broken> list = {
      {[](Model& m) { m.targets[0].key = nullptr; }, {"targets[0].key"}},
      {[](Model& m) { m.targets[0].key = ""; }, {"targets[0].key"}},
      {[](Model& m) { m.targets[1].key = "qk"; }, {"'qk'", "twice"}},
      {[](Model& m) { m.more[0].module = "a.k"; }, {"'a.k'", "two targets", "'qk'", "'o'"}},
      {[](Model& m) { m.more[0].module = "a.qk"; }, {"'a.qk'", "two targets"}},
      {[](Model& m) { m.targets[1].fused_module = "a.q"; }, {"'a.q'", "two targets"}},
      {[](Model& m) { m.targets[0].fused_module = "a.q"; }, {"fused_module"}},
      {[](Model& m) { m.targets[0].kind = static_cast<TargetKind>(7); }, {"kind is 7"}},
      {[](Model& m) { m.targets[0].num_slices = 0; }, {"num_slices is 0"}},
      {[](Model& m) { m.targets[0].num_slices = 17; }, {"num_slices is 17", "16"}},
      {[](Model& m) { m.targets[0].slices = nullptr; }, {"slices"}},
      {[](Model& m) { m.targets[0].kind = TargetKind::embedding; }, {"num_slices is 2"}},
      {[](Model& m) { m.targets[0].in = 0; }, {"in is 0"}},
      {[](Model& m) { m.targets[0].in_begin = 1; }, {"in_full"}},
      {[](Model& m) { m.targets[0].in_full = 4; }, {"in_full 4"}},
      {[](Model& m) {
         m.targets[0].in_full = 9;
         m.targets[0].in_begin = 5;
       },
       {"in_full 9"}},
      {[](Model& m) {
         m.targets[0].in_full = 9;
         m.targets[0].in_begin = std::numeric_limits<std::int64_t>::max();
       },
       {"in_full 9"}},
      {[](Model& m) { m.targets[0].num_experts = 2; }, {"num_experts is 2"}},
      {[](Model& m) { m.targets[0].num_experts = 0; }, {"num_experts is 0"}},
      {[infinite](Model& m) { m.targets[0].delta_scale = infinite; }, {"delta_scale"}},
      {[](Model& m) { m.slices[1].module = nullptr; }, {"slices[1].module"}},
      {[](Model& m) { m.slices[1].out = -3; }, {"slices[1].out is -3"}},
      {[](Model& m) { m.slices[1].out_begin = -1; }, {"slices[1]", "out_full"}},
      {[](Model& m) { m.slices[1].out_full = 2; }, {"out_full 2"}},
      {[](Model& m) { m.slices[0].base_weight = rankfold::const_matrix(weight, 5, 6); },
       {"slices[0].base_weight", "[5, 6]", "[6, 5]"}},
      {[](Model& m) { m.slices[0].base_weight = rankfold::const_matrix(weight, DType::i32, 6, 5); },
       {"base_weight is i32"}},
      {[](Model& m) {
         m.slices[0].base_weight =
             rankfold::const_matrix(weight, 6, 5, {rankfold::DeviceType::cuda, 0});
       },
       {"host memory"}},
  };
  for (std::size_t i = 0; i < list.size(); ++i) {
    CAPTURE(i);
    Model model;
    list[i].change(model);
    check_error(model.bind(pair("a.q", 4, 5, 6)), StatusCode::invalid_argument, list[i].parts);
  }
  const Model good;
  CHECK(good.bind(pair("a.q", 4, 5, 6)).ok());
}

TEST_CASE("base copies: compared by value, also across dtypes and strides") {
  Model model;
  auto base = counting(6 * 5);
  model.slices[0].base_weight = rankfold::const_matrix(base.data(), 6, 5);
  CHECK(model.bind(with_copy("a.q", 5, 6, 6, 5)).ok());

  std::vector<double> wide(6 * 8, -1);
  for (std::size_t i = 0; i < base.size(); ++i) wide[i / 5 * 8 + i % 5] = base[i];
  model.slices[0].base_weight = rankfold::const_matrix(wide.data(), 6, 5, {}, 8);
  CHECK(model.bind(with_copy("a.q", 5, 6, 6, 5)).ok());
  wide[5 * 8 + 4] = -1;
  check_error(model.bind(with_copy("a.q", 5, 6, 6, 5)), StatusCode::invalid_argument,
              {"'a.q.base_layer.weight'", "[5, 4]", "36 in the file", "-1 in the model"});
}

TEST_CASE("base copies: zeros of both signs are equal, so are NaNs; half formats are read") {
  Model model;
  std::vector<float> base(6 * 5, -0.0f);
  model.slices[0].base_weight = rankfold::const_matrix(base.data(), 6, 5);
  // file_of() writes zero bytes for the 16-bit dtypes.
  CHECK(model.bind(with_copy("a.q", 5, 6, 6, 5, "BF16")).ok());
  CHECK(model.bind(with_copy("a.q", 5, 6, 6, 5, "F16")).ok());
  CHECK(model.bind(with_copy("a.q", 5, 6, 6, 5, "F64")).ok());
  base[7] = std::numeric_limits<float>::quiet_NaN();
  check_error(model.bind(with_copy("a.q", 5, 6, 6, 5, "F16")), StatusCode::invalid_argument,
              {"[1, 2]"});
}

TEST_CASE("base copies: other shapes are an error, other dtypes are not compared") {
  Model model;
  auto base = counting(6 * 5);
  model.slices[0].base_weight = rankfold::const_matrix(base.data(), 6, 5);
  check_error(model.bind(with_copy("a.q", 5, 6, 7, 5)), StatusCode::invalid_argument,
              {"[7, 5]", "[6, 5]"});
  check_error(model.bind(with_copy("a.q", 5, 6, 6, 4)), StatusCode::invalid_argument,
              {"[6, 4]", "[6, 5]"});
  auto file = open(config(), with_copy("a.q", 5, 6, 6, 5, "U8"));
  REQUIRE(file.ok());
  const auto adapter = std::move(*file).bind(model.targets);
  REQUIRE_MESSAGE(adapter.ok(), adapter.status().message());
  CHECK(std::string(adapter->report()[2].detail) == "not compared: dtype U8");
  REQUIRE(adapter->findings().size() == 1);
}

TEST_CASE("base copies: of a fused module, rows in slice order, as far as the host gives them") {
  Model model;
  auto base = counting(9 * 5);
  model.slices[1].base_weight = rankfold::const_matrix(base.data() + 30, 3, 5);
  auto file = open(config(), with_copy("a.qk", 5, 9, 9, 5));
  REQUIRE(file.ok());
  const auto adapter = std::move(*file).bind(model.targets);
  REQUIRE_MESSAGE(adapter.ok(), adapter.status().message());
  CHECK(std::string(adapter->report()[2].detail) == "equal to the base where the model gives it");
  base[30 + 11] = 0;
  check_error(model.bind(with_copy("a.qk", 5, 9, 9, 5)), StatusCode::invalid_argument,
              {"a.qk.base_layer.weight", "[8, 1]"});
  check_error(model.bind(with_copy("a.qk", 5, 9, 8, 5)), StatusCode::invalid_argument, {"[8, 5]"});
}

TEST_CASE("base copies: only beside LoRA tensors of the same module, and once") {
  auto tensors = pair("a.q", 4, 5, 6);
  tensors.push_back({"a.k.base_layer.weight", {3, 5}});
  auto file = open(config(), tensors);
  REQUIRE(file.ok());
  check_error(file->status(), StatusCode::unsupported, {"a.k.base_layer.weight", "without LoRA"});
  tensors.back().name = "a.q.base_layer.weight";
  tensors.push_back({"base_model.model.a.q.base_layer.weight", {6, 5}});
  file = open(config(), tensors);
  REQUIRE(file.ok());
  check_error(file->status(), StatusCode::malformed_file, {"two names"});
}
