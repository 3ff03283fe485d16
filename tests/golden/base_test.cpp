// The bare base: logits of PyTorch within 1e-5.
#include <doctest/doctest.h>

#include <cstdlib>
#include <limits>

#include "support.hpp"

namespace golden {
namespace {

// An adapter is resident, and no row uses it.
void check_base(const std::filesystem::path& folder, const std::string& adapter) {
  const GoldenFile file(folder);
  const Matrix expected = file.logits("base");
  Rig rig(folder, {adapter}, stream_modes().front());

  const Matrix at_once = rig.base_logits(file.sequences(), 1).at(0);
  CHECK(base_error(at_once, expected) <= 1);
  // The same through the KV caches, a token a step.
  const Matrix by_token = rig.logits(file.sequences(), {"base"}, Feed::one_by_one).at(0);
  CHECK(base_error(by_token, expected) <= 1);
}

TEST_CASE("the backend is the one that was asked for") {
  const char* wish = std::getenv("RANKFOLD_BACKEND");
  if (wish == nullptr || *wish == '\0' || std::string(wish) == "auto") return;
  CHECK(std::string(wish).rfind(rankfold::backend().name(), 0) == 0);
}

TEST_CASE("golden base logits: peft_llama, float32 weights") {
  check_base(kPeftLlama, "all_linear_r8");
}

TEST_CASE("golden base logits: tasks, bfloat16 weights") { check_base(kTasks, "rot13"); }

TEST_CASE("the base rule sees a change of one weight in a thousand") {
  const GoldenFile file(kPeftLlama);
  const Matrix expected = file.logits("base");
  Matrix wrong = expected;
  wrong(3, 5) *= 1.1f;
  CHECK(base_error(expected, expected) == 0);
  CHECK(base_error(wrong, expected) > 1);
  wrong(3, 5) = std::numeric_limits<float>::quiet_NaN();
  CHECK(base_error(wrong, expected) > 1);
}

}  // namespace
}  // namespace golden
