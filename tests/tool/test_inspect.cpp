#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>

#include "rankfold/safetensors.hpp"
#include "run_tool.hpp"

using nlohmann::json;
using rankfold::test::contains;
using rankfold::test::run_tool;
using rankfold::test::ScratchFolder;
using rankfold::test::ToolRun;

namespace {

const std::string kAdapters = RANKFOLD_TEST_DATA "/peft_llama/adapters/";

const json& module_at(const json& document, const std::string& path) {
  for (const json& module : document["modules"]) {
    if (module["path"] == path) return module;
  }
  FAIL("no module " << path);
  return document;
}

}  // namespace

TEST_CASE("inspect: ranks, alphas and scalings, H2: patterns") {
  const ToolRun run = run_tool({"inspect", kAdapters + "rank_alpha_pattern", "--json"});
  CHECK(run.exit_code == 0);
  CHECK(run.err.empty());
  const json document = run.json();
  CHECK(document["kind"] == "adapter");
  CHECK(document["accepted"] == true);
  CHECK(document["totals"]["modules"] == 6);
  CHECK(document["totals"]["min_rank"] == 3);
  CHECK(document["totals"]["max_rank"] == 17);
  struct Line {
    const char* path;
    int rank;
    double alpha;
    int in;
    int out;
  };
  for (const Line& line : {Line{"model.layers.0.self_attn.q_proj", 3, 12, 64, 64},
                           {"model.layers.1.self_attn.q_proj", 8, 12, 64, 64},
                           {"model.layers.0.mlp.down_proj", 17, 40, 176, 64},
                           {"model.layers.1.mlp.down_proj", 17, 12, 176, 64},
                           {"model.layers.0.mlp.up_proj", 8, 12, 64, 176},
                           {"model.layers.1.mlp.up_proj", 8, 5, 64, 176}}) {
    CAPTURE(std::string(line.path));
    const json& module = module_at(document, line.path);
    CHECK(module["rank"] == line.rank);
    CHECK(module["alpha"] == line.alpha);
    CHECK(module["in"] == line.in);
    CHECK(module["out"] == line.out);
    CHECK(module["bytes"] == 4 * line.rank * (line.in + line.out));
    CHECK(module["scaling"].get<double>() == doctest::Approx(line.alpha / line.rank));
  }
  const ToolRun text = run_tool({"inspect", kAdapters + "rank_alpha_pattern"});
  CHECK(text.exit_code == 0);
  CHECK(contains(text.out, "6 modules, ranks 3 to 17"));
  CHECK(contains(text.out, "model.layers.0.mlp.down_proj"));
  CHECK(contains(text.out, "would be accepted"));
}

TEST_CASE("inspect: H1: rsLoRA") {
  const json document = run_tool({"inspect", kAdapters + "qv_rslora_r4", "--json"}).json();
  REQUIRE(document["modules"].size() == 4);
  for (const json& module : document["modules"]) CHECK(module["scaling"] == 4.0);  // 8 / sqrt(4)
}

TEST_CASE("inspect: a parameter of experts, all of whose pairs count") {
  const std::string path = RANKFOLD_TEST_DATA "/peft_moe/adapters/experts_r4";
  const json document = run_tool({"inspect", path, "--json"}).json();
  REQUIRE(document["modules"].size() == 4);
  for (const json& module : document["modules"]) {
    CHECK(module["kind"] == "parameter");
    CHECK(module["experts"] == 6);
    CHECK(module["rank"] == 4);
    CHECK(module["bytes"] == 4 * 6 * 4 * (module["in"].get<int>() + module["out"].get<int>()));
  }
  // Everything in the file is float32.
  CHECK(4 * document["totals"]["parameters"].get<int>() == document["totals"]["bytes"]);
  CHECK(contains(run_tool({"inspect", path}).out, "parameter"));
}

TEST_CASE("inspect: every golden adapter, accepted or refused by name with a full report") {
  struct Line {
    const char* name;
    std::size_t modules;
    const char* refused;  // or null
  };
  for (const Line& line : {Line{"all_linear_r8", 14, nullptr},
                           {"embed_head_r6", 4, nullptr},
                           {"lora_bias_r8", 4, nullptr},
                           {"qv_rslora_r4", 4, nullptr},
                           {"r1", 4, nullptr},
                           {"rank_alpha_pattern", 6, nullptr},
                           {"regex_layer1", 2, nullptr},
                           {"dora_r8", 6, "use_dora"},
                           {"modules_to_save_head", 2, "modules_to_save"}}) {
    CAPTURE(std::string(line.name));
    const ToolRun run = run_tool({"inspect", kAdapters + line.name});
    CHECK(run.exit_code == (line.refused != nullptr ? 3 : 0));
    CHECK(contains(run.out, "self_attn") != contains(std::string(line.name), "regex"));
    const json document = run_tool({"inspect", kAdapters + line.name, "--json"}).json();
    CHECK(document["modules"].size() == line.modules);
    CHECK(document["accepted"] == (line.refused == nullptr));
    if (line.refused == nullptr) continue;
    CHECK(contains(run.out, line.refused));
    CHECK(contains(document["error"]["message"].get<std::string>(), line.refused));
    bool found = false;
    for (const json& finding : document["findings"]) {
      found = found || (finding["severity"] == "refused" && finding["subject"] == line.refused);
    }
    CHECK(found);
  }
}

TEST_CASE("inspect: copies of the base are named") {
  const ToolRun run = run_tool({"inspect", kAdapters + "embed_head_r6"});
  CHECK(contains(run.out, "'base_model.model.lm_head.base_layer.weight' is a copy of the base"));
  const json document = run_tool({"inspect", kAdapters + "embed_head_r6", "--json"}).json();
  REQUIRE(document["base_copies"].size() == 2);
  CHECK(document["base_copies"][0]["bytes"] == 4 * 160 * 64);
}

TEST_CASE("inspect: a file of an adapter stands for its folder") {
  const ToolRun run =
      run_tool({"inspect", kAdapters + "lora_bias_r8/adapter_model.safetensors", "--json"});
  CHECK(run.exit_code == 0);
  const json document = run.json();
  CHECK(document["kind"] == "adapter");
  for (const json& module : document["modules"]) CHECK(module["bias"] == true);
}

TEST_CASE("inspect: a safetensors file that is no adapter") {
  const ScratchFolder folder;
  const float values[6] = {};
  const rankfold::SafetensorsTensor tensors[] = {
      {"plain\nname", rankfold::DType::f32, 2, {2, 3}, values}};
  const rankfold::SafetensorsMetadata metadata[] = {{"made", "for \x1b[31m this"}};
  const std::string path = folder.path("plain.safetensors");
  REQUIRE(rankfold::write_safetensors(path, tensors, metadata).ok());
  const ToolRun run = run_tool({"inspect", path});
  CHECK(run.exit_code == 0);
  CHECK(contains(run.out, "no adapter"));
  CHECK(contains(run.out, "[2, 3]"));
  CHECK(contains(run.out, "plain\\x0aname"));  // a name cannot write on the terminal
  CHECK_FALSE(contains(run.out, "\x1b"));
  const json document = run_tool({"inspect", path, "--json"}).json();
  CHECK(document["kind"] == "safetensors");
  CHECK(document["tensors"][0]["name"] == "plain\nname");
  CHECK(document["tensors"][0]["shape"] == json::array({2, 3}));
  CHECK(document["totals"]["bytes"] == 24);
}

TEST_CASE("inspect: I8: malformed files") {
  const ScratchFolder folder;
  struct Line {
    const char* name;
    std::string bytes;
  };
  const Line lines[] = {{"empty.safetensors", ""},
                        {"short.safetensors", "abc"},
                        {"past.safetensors", std::string("\xff\0\0\0\0\0\0\0{}", 10)},
                        {"json.safetensors", std::string("\2\0\0\0\0\0\0\0{]", 10)}};
  for (const Line& line : lines) {
    CAPTURE(std::string(line.name));
    const std::string path = folder.write(line.name, line.bytes);
    const ToolRun run = run_tool({"inspect", path});
    CHECK(run.exit_code == 3);
    CHECK(contains(run.err, "malformed_file"));
    CHECK(contains(run.err, line.name));
    const ToolRun as_json = run_tool({"inspect", path, "--json"});
    CHECK(as_json.exit_code == 3);
    CHECK(as_json.json()["error"]["code"] == "malformed_file");
  }
  // The same within an adapter, and a config that is no JSON.
  folder.write("adapter_config.json", R"({"peft_type": "LORA", "r": 8, "lora_alpha": 16})");
  folder.write("adapter_model.safetensors", "abc");
  CHECK(run_tool({"inspect", folder.path("")}).exit_code == 3);
  folder.write("adapter_model.safetensors", std::string("\2\0\0\0\0\0\0\0{}", 10));
  folder.write("adapter_config.json", "{\"r\": ");
  const ToolRun run = run_tool({"inspect", folder.path("")});
  CHECK(run.exit_code == 3);
  CHECK(contains(run.err, "adapter_config.json"));
}

TEST_CASE("inspect: what is not there is a usage error") {
  for (const char* path : {"/does/not/exist", "/does/not/exist.safetensors"}) {
    const ToolRun run = run_tool({"inspect", path});
    CHECK(run.exit_code == 2);
    CHECK(contains(run.err, path));
  }
  const ScratchFolder folder;
  CHECK(run_tool({"inspect", folder.path("")}).exit_code == 2);  // a folder without an adapter
}

TEST_CASE("inspect: control characters of C1 in names, keys and values are shown escaped") {
  const ScratchFolder folder;
  const std::string c1 =
      "\xc2\x9b"
      "31m";
  const float values[6] = {};
  const std::string tensor = "t" + c1, key = "k" + c1, value = "v\x7f" + c1;
  const rankfold::SafetensorsTensor tensors[] = {
      {tensor.c_str(), rankfold::DType::f32, 2, {2, 3}, values}};
  const rankfold::SafetensorsMetadata metadata[] = {{key.c_str(), value.c_str()}};
  const std::string path = folder.path("plain" + c1);
  REQUIRE(rankfold::write_safetensors(path, tensors, metadata).ok());
  const ToolRun text = run_tool({"inspect", path});
  CHECK(text.exit_code == 0);
  CHECK(contains(text.out, "t\\xc2\\x9b31m"));
  CHECK(contains(text.out, "v\\x7f\\xc2\\x9b31m"));
  CHECK_FALSE(contains(text.out, "\x9b"));
  const ToolRun as_json = run_tool({"inspect", path, "--json"});
  CHECK_FALSE(contains(as_json.out, "\x9b"));
  CHECK_FALSE(contains(as_json.out, "\x7f"));
  CHECK(as_json.json()["tensors"][0]["name"] == tensor);  // the document means the same
  CHECK(as_json.json()["metadata"][key] == value);

  // In an adapter: texts of the library.
  folder.write("adapter_config.json", R"({"peft_type": "LORA", "r": 2, "lora_alpha": 1, "x)" + c1 +
                                          R"(": 1, "bias": ")" + c1 + "\"}");
  const std::string a = "base_model.model.q" + c1 + ".lora_A.weight";
  const std::string b = "base_model.model.q" + c1 + ".lora_B.weight";
  const rankfold::SafetensorsTensor pair[] = {{a.c_str(), rankfold::DType::f32, 2, {2, 3}, values},
                                              {b.c_str(), rankfold::DType::f32, 2, {3, 2}, values}};
  REQUIRE(rankfold::write_safetensors(folder.path("adapter_model.safetensors"), pair, {}).ok());
  for (const char* option : {"", "--json"}) {
    std::vector<std::string> words = {"inspect", folder.path("")};
    if (*option != '\0') words.emplace_back(option);
    const ToolRun run = run_tool(words);
    CHECK(run.exit_code == 3);
    CHECK(contains(run.out, "unknown key 'x?31m' is 1"));
    CHECK(contains(run.out, "bias is '?31m'"));
    CHECK(contains(run.out, "module path 'q?31m' holds a control character"));
    CHECK_FALSE(contains(run.out + run.err, "\x9b"));
  }
}

TEST_CASE("inspect: a path that cannot be followed says why") {
  const ScratchFolder folder;
  std::filesystem::create_symlink(folder.path("b"), folder.path("a"));
  std::filesystem::create_symlink(folder.path("a"), folder.path("b"));
  const ToolRun circle = run_tool({"inspect", folder.path("a")});
  CHECK(circle.exit_code == 2);
  CHECK(contains(circle.err, "symbolic links"));
  const ToolRun long_name = run_tool({"inspect", std::string(5000, 'x')});
  CHECK(long_name.exit_code == 2);
  CHECK(contains(long_name.err, "name too long"));
}
