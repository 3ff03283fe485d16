// A Qwen3-MoE whose experts PEFT has adapted through target_parameters: its activations and logits.
// The arrays of these tests are host memory: they run where the device is the host.
#include <doctest/doctest.h>

#include "moe/model.hpp"
#include "support.hpp"

namespace golden {
namespace {

using rankfold::ExpertMode;

const std::filesystem::path kMoe = GOLDEN_PEFT_MOE;
const std::vector<std::filesystem::path> kAdapter = {kMoe / "adapters" / "experts_r4"};

std::vector<moe::Layout> layouts() {
  return {{ExpertMode::grouped, 0},
          {ExpertMode::gather, 0},
          {ExpertMode::grouped, 7},
          {ExpertMode::gather, 7}};
}

bool on_host() { return rankfold::backend().device().type == rankfold::DeviceType::cpu; }

TEST_CASE("golden peft_moe: the base model") {
  const GoldenFile file(kMoe);
  const auto model = moe::Model::load(kMoe / "base");
  const auto sequences = file.sequences();
  const std::vector<std::int32_t> slots(sequences.size(), -1);
  const Matrix got = model.forward(sequences, slots, nullptr, {});
  CHECK(base_error(got, file.logits("base")) <= 1);
}

TEST_CASE("golden peft_moe: the experts' block of layer 0 gives PEFT's activations") {
  if (!on_host()) return;
  const GoldenFile file(kMoe);
  const auto model = moe::Model::load(kMoe / "base");
  const std::string name = "act.experts_r4.layers.0.moe.";
  const Matrix x = file.matrix(name + "x");
  const Matrix expected = file.matrix(name + "y");
  const Matrix base = model.experts(0, x, {}, nullptr, {});
  for (const rankfold::StreamMode mode : stream_modes()) {
    moe::ExpertDeltas deltas(model.config(), kAdapter, mode);
    const std::vector<std::int32_t> slots(static_cast<std::size_t>(x.rows()), deltas.slots()[0]);
    for (const moe::Layout& layout : layouts()) {
      CAPTURE(to_string(mode));
      CAPTURE(static_cast<int>(layout.mode));
      CAPTURE(layout.window);
      CHECK(adapter_error(model.experts(0, x, slots, &deltas, layout), expected, base) <= 1);
    }
  }
}

TEST_CASE("golden peft_moe: logits, by both layouts, whole and in windows") {
  if (!on_host()) return;
  const GoldenFile file(kMoe);
  const auto model = moe::Model::load(kMoe / "base");
  const auto sequences = file.sequences();
  const Matrix base = file.logits("base");
  for (const rankfold::StreamMode mode : stream_modes()) {
    moe::ExpertDeltas deltas(model.config(), kAdapter, mode);
    const std::vector<std::int32_t> slots(sequences.size(), deltas.slots()[0]);
    for (const moe::Layout& layout : layouts()) {
      CAPTURE(to_string(mode));
      CAPTURE(static_cast<int>(layout.mode));
      CAPTURE(layout.window);
      CHECK(adapter_error(model.forward(sequences, slots, &deltas, layout),
                          file.logits("experts_r4"), base) <= 1);
    }
  }
}

TEST_CASE("golden peft_moe: base and adapter in one batch") {
  if (!on_host()) return;
  const GoldenFile file(kMoe);
  const auto model = moe::Model::load(kMoe / "base");
  std::vector<Tokens> sequences = file.sequences();
  const auto count = sequences.size();
  for (std::size_t i = 0; i < count; ++i) sequences.push_back(sequences[i]);
  moe::ExpertDeltas deltas(model.config(), kAdapter, stream_modes()[0]);
  std::vector<std::int32_t> slots(2 * count, -1);
  std::fill(slots.begin(), slots.begin() + static_cast<std::ptrdiff_t>(count), deltas.slots()[0]);
  const Matrix base = file.logits("base");
  for (const moe::Layout& layout : layouts()) {
    const Matrix got = model.forward(sequences, slots, &deltas, layout);
    CHECK(adapter_error(got.topRows(base.rows()), file.logits("experts_r4"), base) <= 1);
    CHECK(base_error(got.bottomRows(base.rows()), base) <= 1);
  }
}

TEST_CASE("golden peft_moe: the rule sees an adapter in the wrong slot") {
  if (!on_host()) return;
  const GoldenFile file(kMoe);
  const auto model = moe::Model::load(kMoe / "base");
  moe::ExpertDeltas deltas(model.config(), kAdapter, stream_modes()[0]);
  const auto sequences = file.sequences();
  const std::vector<std::int32_t> slots(sequences.size(), deltas.slots()[0] + 1);
  CHECK(adapter_error(model.forward(sequences, slots, &deltas, {}), file.logits("experts_r4"),
                      file.logits("base")) > 1000);
}

}  // namespace
}  // namespace golden
