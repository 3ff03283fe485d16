// Each adapter of peft_llama uses one feature of PEFT's format; its logits are PEFT's own.
#include <doctest/doctest.h>

#include <algorithm>
#include <set>

#include "support.hpp"

namespace golden {
namespace {

void check_all(const GoldenFile& file, const std::vector<std::string>& names,
               const std::vector<Matrix>& got) {
  const Matrix base = file.logits("base");
  for (std::size_t i = 0; i < names.size(); ++i) {
    CAPTURE(names[i]);
    const Matrix expected = file.logits(names[i]);
    const double error =
        names[i] == "base" ? base_error(got[i], expected) : adapter_error(got[i], expected, base);
    CHECK(error <= 1);
  }
}

TEST_CASE("golden peft_llama: exactly two adapters are refused, by the key's name") {
  const auto model = llama::Model::load(kPeftLlama / "base");
  const llama::Targets targets(model.config(), model.weights());
  std::set<std::string> accepted;
  std::set<std::string> refused;
  for (const auto& folder : std::filesystem::directory_iterator(kPeftLlama / "adapters")) {
    const std::string name = folder.path().filename().string();
    const auto adapter = rankfold::load_adapter(folder.path().string(), targets.specs());
    (adapter ? accepted : refused).insert(name);
    for (const auto& [refused_name, key] : refused_adapters()) {
      if (name != refused_name) continue;
      CHECK(adapter.status().code() == rankfold::StatusCode::unsupported);
      CHECK_MESSAGE(std::string(adapter.status().message()).find(key) != std::string::npos,
                    adapter.status().message());
    }
  }
  CHECK(accepted == std::set(accepted_adapters().begin(), accepted_adapters().end()));
  std::set<std::string> expected;
  for (const auto& [name, key] : refused_adapters()) expected.insert(name);
  CHECK(refused == expected);
}

TEST_CASE("golden peft_llama: each adapter alone") {
  const GoldenFile file(kPeftLlama);
  for (const rankfold::StreamMode mode : stream_modes()) {
    CAPTURE(to_string(mode));
    for (const std::string& name : accepted_adapters()) {
      Rig rig(kPeftLlama, {name}, mode);
      check_all(file, {name}, rig.logits(file.sequences(), {name}));
    }
  }
}

TEST_CASE("golden peft_llama: all adapters and the base in one batch") {
  const GoldenFile file(kPeftLlama);
  std::vector<std::string> names = accepted_adapters();
  names.insert(names.begin() + 3, "base");
  for (const rankfold::StreamMode mode : stream_modes()) {
    CAPTURE(to_string(mode));
    Rig rig(kPeftLlama, accepted_adapters(), mode);
    for (const Feed feed : {Feed::whole, Feed::one_by_one}) {
      CAPTURE(static_cast<int>(feed));
      check_all(file, names, rig.logits(file.sequences(), names, feed));
    }
  }
}

TEST_CASE("C4: rows of the base keep their bits beside rows with adapters") {
  const GoldenFile file(kPeftLlama);
  std::vector<std::string> names = accepted_adapters();
  names.insert(names.begin() + 3, "base");
  for (const rankfold::StreamMode mode : stream_modes()) {
    Rig rig(kPeftLlama, accepted_adapters(), mode);
    const Matrix mixed = rig.logits(file.sequences(), names).at(3);
    const Matrix bare = rig.base_logits(file.sequences(), names.size()).at(3);
    CHECK((mixed.array() == bare.array()).all());
    // C1: and after a step with adapters, a step of the base alone is the base alone.
    const std::vector<std::string> none(names.size(), "base");
    CHECK((rig.logits(file.sequences(), none).at(0).array() ==
           rig.base_logits(file.sequences(), names.size()).at(0).array())
              .all());
  }
}

}  // namespace
}  // namespace golden
