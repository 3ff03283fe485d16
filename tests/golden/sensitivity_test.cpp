// Golden tests are worth what they can see: small mistakes must break the rule.
#include <doctest/doctest.h>

#include "support.hpp"

namespace golden {
namespace {

double error_of(const std::string& adapter, const Rig::ChangeSpecs& change) {
  const GoldenFile file(kPeftLlama);
  Rig rig(kPeftLlama, {adapter}, stream_modes().front(), change);
  return adapter_error(rig.logits(file.sequences(), {adapter}).at(0), file.logits(adapter),
                       file.logits("base"));
}

TEST_CASE("sensitivity: unchanged specs are right") {
  CHECK(error_of("all_linear_r8", [](Specs&) {}) <= 1);
}

TEST_CASE("sensitivity: the scaling of one target doubled") {
  for (const int target : {llama::qkv_target(0), llama::o_target(0), llama::gate_up_target(1),
                           llama::down_target(1)}) {
    CAPTURE(target);
    CHECK(error_of("all_linear_r8", [&](Specs& specs) { specs.targets[target].delta_scale = 2; }) >
          1);
  }
  CHECK(error_of("embed_head_r6", [](Specs& specs) { specs.targets[0].delta_scale = 2; }) > 1);
  CHECK(error_of("embed_head_r6", [](Specs& specs) { specs.targets.back().delta_scale = 2; }) > 1);
}

TEST_CASE("sensitivity: the scaling of one target off by a thousandth") {
  CHECK(error_of("all_linear_r8", [](Specs& specs) {
          specs.targets[llama::down_target(1)].delta_scale = 1.001f;
        }) > 1);
}

TEST_CASE("sensitivity: two slices of one width swapped") {
  CHECK(error_of("all_linear_r8", [](Specs& specs) {
          auto& slices = specs.slices[llama::qkv_target(0)];  // q, k, v; k and v are of one width
          std::swap(slices[1], slices[2]);
        }) > 1);
  CHECK(error_of("all_linear_r8", [](Specs& specs) {
          auto& slices = specs.slices[llama::gate_up_target(1)];
          std::swap(slices[0], slices[1]);
        }) > 1);
}

TEST_CASE("sensitivity: rows of one adapter computed with another's") {
  const GoldenFile file(kPeftLlama);
  Rig rig(kPeftLlama, {"r1", "regex_layer1"}, stream_modes().front());
  const Matrix wrong = rig.logits(file.sequences(), {"regex_layer1"}).at(0);
  CHECK(adapter_error(wrong, file.logits("r1"), file.logits("base")) > 1);
  // And the base passed off as the adapter.
  CHECK(adapter_error(file.logits("base"), file.logits("r1"), file.logits("base")) > 1);
}

}  // namespace
}  // namespace golden
