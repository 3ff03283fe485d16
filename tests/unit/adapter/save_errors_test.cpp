// What save_adapter() cannot write leaves the folder as it was.
#include <doctest/doctest.h>
#include <sys/resource.h>

#include <cmath>
#include <csignal>
#include <set>
#include <string>
#include <vector>

#include "adapter/new_file.hpp"
#include "files.hpp"
#include "rankfold/adapter.hpp"
#include "rankfold/save_adapter.hpp"
#include "save_model.hpp"

using namespace adapter_tests;  // NOLINT
using rankfold::StatusCode;

TEST_CASE("saving: bad weights are refused by name, before anything is written") {
  const Folder folder;
  const Model model;
  const auto refused = [&](auto change, const std::vector<std::string>& parts) {
    std::vector<AdapterWeights> weights = {model.weights(0, 0, 2, 4), model.weights(1, 0, 2, 4)};
    change(weights);
    check_error(rankfold::save_adapter(folder / "a", model.targets, weights),
                StatusCode::invalid_argument, parts);
    CHECK(folder.names().empty());
  };
  using List = std::vector<AdapterWeights>;
  refused([](List& w) { w.clear(); }, {"weights", "empty"});
  refused([](List& w) { w[1].target = 3; }, {"weights[1].target is 3"});
  refused([](List& w) { w[0].slice = -1; }, {"weights[0].slice is -1"});
  refused([](List& w) { w[0].expert = 1; }, {"weights[0].expert is 1"});
  refused([](List& w) { w[1] = w[0]; }, {"weights[1]", "second time"});
  refused([](List& w) { w[1].alpha = NAN; }, {"weights[1].alpha"});
  refused([](List& w) { w[1].alpha = -1; }, {"weights[1].alpha is -1"});
  refused([](List& w) { w[0].a = {}; }, {"weights[0].a", "not given"});
  refused([](List& w) { w[0].a.data = nullptr; }, {"weights[0].a", "null"});
  refused([](List& w) { w[0].a.dtype = rankfold::DType::f64; }, {"weights[0].a is f64"});
  refused([](List& w) { w[0].a.sizes[1] = 5; }, {"weights[0].a is f32 [2, 5]", "in 4"});
  refused([](List& w) { w[0].a.sizes[0] = 0; }, {"weights[0].a is f32 [0, 4]", "rank"});
  refused([](List& w) { w[0].b.sizes[1] = 3; }, {"weights[0].b is f32 [6, 3]", "[6, 2]"});
  refused([](List& w) { w[0].b.device.type = rankfold::DeviceType::cuda; },
          {"weights[0].b", "host memory"});
  refused([](List& w) { w[1].bias = rankfold::const_vector<float>(nullptr, 4); },
          {"weights[1].bias", "null"});
  refused([&](List& w) { w[1].bias = rankfold::const_vector(model.numbers.data(), 3); },
          {"weights[1].bias is f32 [3]", "[4]"});

  const std::vector<AdapterWeights> weights = {model.weights(0, 0, 2, 4)};
  const auto bad_options = [&](const rankfold::SaveAdapterOptions& options, const char* part) {
    check_error(rankfold::save_adapter(folder / "a", model.targets, weights, options),
                StatusCode::invalid_argument, {part});
    CHECK(folder.names().empty());
  };
  bad_options({.dropout = 1}, "options.dropout");
  bad_options({.scaling = static_cast<rankfold::ScalingRule>(2)}, "options.scaling");
  bad_options({.base_model = "\xff"}, "UTF-8");
  check_error(rankfold::save_adapter("", model.targets, weights), StatusCode::invalid_argument,
              {"directory"});

  Model long_name;
  const std::string path(513, 'a');
  long_name.down.module = path.c_str();
  check_error(
      rankfold::save_adapter(folder / "a", long_name.targets, {{long_name.weights(1, 0, 2, 4)}}),
      StatusCode::unsupported, {"513 bytes"});
  long_name.down.module = "a.lora_A.weight.b";
  check_error(
      rankfold::save_adapter(folder / "a", long_name.targets, {{long_name.weights(1, 0, 2, 4)}}),
      StatusCode::unsupported, {"means something else"});
  CHECK(folder.names().empty());
}

TEST_CASE("saving: an error while writing leaves what was there, and nothing else") {
  const Folder folder;
  const Model model;
  const std::vector<AdapterWeights> old = {model.weights(0, 0, 2, 4)};
  const std::vector<AdapterWeights> young = {model.weights(1, 0, 3, 6)};
  const std::string path = folder.path.string();
  REQUIRE(rankfold::save_adapter(path, model.targets, old).ok());
  const std::set<std::string> both = {"adapter_config.json", "adapter_model.safetensors"};
  CHECK(folder.names() == both);
  const std::string config = text_of(folder / "adapter_config.json");
  const std::string tensors = text_of(folder / "adapter_model.safetensors");
  const auto check_untouched = [&] {
    CHECK(folder.names() == both);
    CHECK(text_of(folder / "adapter_config.json") == config);
    CHECK(text_of(folder / "adapter_model.safetensors") == tensors);
  };

  {  // no room for the tensors: files may have 600 bytes, as on a full disk
    rlimit limit{};
    REQUIRE(getrlimit(RLIMIT_FSIZE, &limit) == 0);
    const rlimit small{600, limit.rlim_max};
    void (*const handler)(int) = std::signal(SIGXFSZ, SIG_IGN);
    REQUIRE(setrlimit(RLIMIT_FSIZE, &small) == 0);
    std::vector<AdapterWeights> large = {model.weights(1, 0, 12, 6)};
    const auto status = rankfold::save_adapter(path, model.targets, large);
    const auto elsewhere = rankfold::save_adapter(folder / "new/a", model.targets, large);
    REQUIRE(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    std::signal(SIGXFSZ, handler);
    check_error(status, StatusCode::invalid_argument, {"cannot write", path});
    check_error(elsewhere, StatusCode::invalid_argument, {"cannot write", "new/a"});
    check_untouched();
  }
  {  // a name that is taken by something else
    fs::remove(folder / "adapter_model.safetensors");
    fs::create_directory(folder / "adapter_model.safetensors");
    check_error(rankfold::save_adapter(path, model.targets, young), StatusCode::invalid_argument,
                {"adapter_model.safetensors", "not a regular file"});
    CHECK(folder.names() == both);
    CHECK(text_of(folder / "adapter_config.json") == config);
    fs::remove(folder / "adapter_model.safetensors");
  }
  check_error(rankfold::save_adapter(folder / "adapter_config.json/x", model.targets, young),
              StatusCode::invalid_argument, {"adapter_config.json/x"});

  REQUIRE(rankfold::save_adapter(path, model.targets, young).ok());
  CHECK(folder.names() == both);
  const auto read = rankfold::load_adapter(path, model.targets);
  REQUIRE_MESSAGE(read.ok(), read.status().message());
  CHECK(read->bindings()[0].rank == 3);
}

TEST_CASE("a new file brings back what was there unless it is settled") {
  const Folder folder;
  const std::string path = folder / "file";
  std::ofstream(path) << "old";
  {
    auto file = rankfold::detail::NewFile::create(path);
    REQUIRE(file.ok());
    REQUIRE(file->write("new", 3).ok());
    CHECK(text_of(path) == "old");
    REQUIRE(file->set_aside().ok());
    CHECK(!fs::exists(path));
    REQUIRE(file->publish().ok());
    CHECK(text_of(path) == "new");
  }
  CHECK(text_of(path) == "old");
  CHECK(folder.names() == std::set<std::string>{"file"});
  fs::create_symlink("file", folder / "link");
  auto file = rankfold::detail::NewFile::create(folder / "link");
  REQUIRE(file.ok());
  REQUIRE(file->write("new", 3).ok());
  REQUIRE(file->publish().ok());
  file->settle();
  CHECK(fs::is_symlink(folder / "link"));
  CHECK(text_of(path) == "new");
}
