// One module at a time: x and y of two modules as PEFT saw them under all_linear_r8.
#include <doctest/doctest.h>

#include <cmath>

#include "support.hpp"

namespace golden {
namespace {

// Feeds PEFT's own x to one target; compares the columns of the slice that PEFT recorded.
void check_module(const std::string& module, int target, const Matrix& weight,
                  rankfold::StreamMode mode) {
  CAPTURE(module);
  const GoldenFile file(kPeftLlama);
  const Matrix x = file.matrix("act.model." + module + ".x");
  const Matrix expected = file.matrix("act.model." + module + ".y");

  Rig rig(kPeftLlama, {"all_linear_r8"}, mode);
  const std::vector<std::int32_t> slots(static_cast<std::size_t>(x.rows()),
                                        rig.slot("all_linear_r8"));
  Matrix y = x * weight.transpose();
  const Matrix base = y.leftCols(expected.cols());
  rig.deltas().begin_step(slots, {});
  rig.deltas().apply_linear(target, x, y);

  const Eigen::MatrixXd exact = expected.cast<double>();
  const double error = (y.leftCols(expected.cols()).cast<double>() - exact).norm();
  const double delta = (exact - base.cast<double>()).norm();
  CHECK(delta > 0.1 * exact.norm());  // else the check would say little
  CHECK(error <= 1e-5 * delta + std::ldexp(exact.norm(), -24));
}

TEST_CASE("golden activations: q_proj and down_proj of all_linear_r8") {
  const auto model = llama::Model::load(kPeftLlama / "base");
  for (const rankfold::StreamMode mode : stream_modes()) {
    CAPTURE(to_string(mode));
    check_module("layers.0.self_attn.q_proj", llama::qkv_target(0), model.weights().layers[0].qkv,
                 mode);
    check_module("layers.1.mlp.down_proj", llama::down_target(1), model.weights().layers[1].down,
                 mode);
  }
}

}  // namespace
}  // namespace golden
