#include <doctest/doctest.h>

#include <fstream>

#include "run_tool.hpp"

using nlohmann::json;
using rankfold::test::contains;
using rankfold::test::run_tool;
using rankfold::test::ScratchFolder;
using rankfold::test::ToolRun;

namespace {

// Seven tokens, two adapters, two without: 5 active rows, widths 24 and 40.
json small_point() {
  return {{"name", "small/mixed"},
          {"kind", "serve"},
          {"phase", "decode"},
          {"K", 48},
          {"slices", {24, 40}},
          {"rank", 4},
          {"tokens", 7},
          {"adapters", 3},
          {"token_adapter_rle", json::parse("[[1, 2], [2, -1], [1, 0], [3, 2]]")},
          {"min_bytes", 2 * (2 * 4 * (2 * 48 + 64) + 5 * (48 + 2 * 64))},
          {"flops", 2 * 5 * 4 * (2 * 48 + 64)}};
}

json small_file() {
  const json moe = {{"name", "small/moe"},
                    {"kind", "moe"},
                    {"K", 32},
                    {"slices", {16}},
                    {"rank", 4},
                    {"tokens", 2},
                    {"adapters", 1},
                    {"experts", 4},
                    {"top_k", 2},
                    {"x_rows", "token"},
                    {"min_bytes", 1},
                    {"flops", 1},
                    {"route_seed", 1},
                    {"mul_routed_weight", false}};
  const json train = {
      {"name", "small/train"}, {"kind", "train"}, {"M", 8},    {"K", 8}, {"N", 8}, {"rank", 2},
      {"pass", "bwd"},         {"min_bytes", 1},  {"flops", 1}};
  return {{"schema", 1},
          {"dtype", "bf16"},
          {"scale", 0.5},
          {"workloads", json::array({small_point(), moe, train})}};
}

}  // namespace

TEST_CASE("bench: times serve points, lists the others with the backend's reason") {
  const ScratchFolder folder;
  const std::string workloads = folder.write("workloads.json", small_file().dump());
  const std::string results = folder.path("results.json");
  const ToolRun run = run_tool(
      {"bench", "--backend", "reference", "--workloads", workloads, "--sweep", "--json", results});
  CAPTURE(run.out);
  CHECK(run.exit_code == 0);
  CHECK(run.err.empty());
  CHECK(contains(run.out, "floor us"));
  CHECK(contains(run.out, "1 timed, 0 failed, 2 skipped"));

  std::ifstream stream(results);
  const json document = json::parse(stream, nullptr, false);
  REQUIRE_FALSE(document.is_discarded());
  CHECK(document["backend"] == "reference:0");
  CHECK(document["copy_gb_per_s"] > 0);
  CHECK(document["read_gb_per_s"] > 0);
  CHECK(document["matrix_tflop_per_s"] > 0);
  REQUIRE(document["points"].size() == 3);
  const json& point = document["points"][0];
  CHECK(point["outcome"] == "timed");
  CHECK(point["checked_rows"].get<int>() == 14);  // every row, of the first and of the last layer
  CHECK(point["layers"].get<int>() >= 2);
  const double median = point["time"]["median_us"];
  CHECK(median > 0);
  CHECK(point["time"]["p10_us"] <= median);
  CHECK(point["time"]["p90_us"] >= median);
  CHECK(point["time"]["replays"] >= 3);
  CHECK(point["floor"]["median_us"] > 0);
  CHECK(point["bound_us"] > 0);
  CHECK(point["gb_per_s"].get<double>() ==
        doctest::Approx(point["min_bytes"].get<double>() / median / 1e3));
  CHECK(point["tflop_per_s"].get<double>() ==
        doctest::Approx(point["flops"].get<double>() / median / 1e6));
  CHECK(point["sweep"].size() >= 1);
  for (int i = 1; i < 3; ++i) {
    CHECK(document["points"][i]["outcome"] == "skipped");
    CHECK_FALSE(document["points"][i]["reason"].get<std::string>().empty());
  }
}

TEST_CASE("bench --json -: the document alone on stdout") {
  const ScratchFolder folder;
  const std::string workloads = folder.write("workloads.json", small_file().dump());
  const ToolRun run = run_tool({"bench", "--backend", "reference", "--workloads", workloads,
                                "--filter", "small/t", "--json", "-"});
  CHECK(run.exit_code == 0);
  CHECK(run.json()["points"].size() == 1);
  CHECK(contains(run.err, "small/train"));
}

TEST_CASE("bench: what is wrong with a workloads file is said with its place") {
  const ScratchFolder folder;
  struct Line {
    const char* key;
    json value;
    const char* part;
  };
  const Line lines[] = {
      {"kind", "sreve", "serve, moe or train"},
      {"K", -48, "\"K\" is -48"},
      {"K", 48.5, "\"K\" is 48.5"},
      {"rank", 18446744073709551615u, "\"rank\" is 18446744073709551615"},
      {"slices", json::array(), "\"slices\""},
      {"tokens", 8, "covers 7 tokens; \"tokens\" is 8"},
      {"tokens", 6, "covers 7 tokens or more; \"tokens\" is 6"},
      {"adapters", 1 << 20, "\"adapters\" is 1048576; it should be an integer from 1 to 65536"},
      {"adapters", 2, "an adapter of \"token_adapter_rle\" is 2"},
      {"token_adapter_rle", json::parse("[[7]]"), "[count, adapter]"},
      {"min_bytes", 1, "\"min_bytes\" is 1"},
      {"flops", 1, "\"flops\" is 1"},
      {"name", nullptr, "\"name\" is null"},
      {"kind",
       "\xc2\x9b"
       "31m",
       "\\xc2\\x9b31m"},
  };
  for (const Line& line : lines) {
    CAPTURE(std::string(line.key));
    CAPTURE(std::string(line.part));
    json file = small_file();
    file["workloads"][0][line.key] = line.value;
    const std::string path = folder.write("workloads.json", file.dump());
    const ToolRun run = run_tool({"bench", "--workloads", path});
    CAPTURE(run.err);
    CHECK(run.exit_code == 3);
    CHECK(run.out.empty());
    CHECK(contains(run.err, path));
    CHECK(contains(run.err, "workloads[0]"));
    CHECK(contains(run.err, line.part));
  }
  json twice = small_file();
  twice["workloads"].push_back(small_point());
  CHECK(run_tool({"bench", "--workloads", folder.write("twice", twice.dump())}).exit_code == 3);
  CHECK(run_tool({"bench", "--workloads", folder.write("no", "{\"schema\": ")}).exit_code == 3);
  CHECK(run_tool({"bench", "--workloads", folder.write("array", "[]")}).exit_code == 3);
  CHECK(run_tool({"bench", "--workloads", "/does/not/exist"}).exit_code == 2);
  CHECK(run_tool({"bench", "--filter", "no such point"}).exit_code == 2);
  CHECK(run_tool({"bench", "--json", "/does/not/exist/out.json"}).exit_code == 2);
}

TEST_CASE("bench: the workloads that come with the command are well-formed") {
  // Past the reader, before anything is measured.
  const ToolRun run = run_tool({"bench", "--filter", "decode", "--backend", "doesnotexist"});
  CHECK(run.exit_code == 2);
  CHECK(contains(run.err, "unknown_backend"));
}

TEST_CASE("bench: hostile workloads files end with the path and the reason") {
  const ScratchFolder folder;
  const auto refusal = [&](const std::string& text) {
    const std::string path = folder.write("hostile.json", text);
    const ToolRun run = run_tool({"bench", "--backend", "doesnotexist", "--workloads", path});
    CHECK(run.signal == 0);
    CHECK(run.exit_code == 3);
    CHECK(contains(run.err, path));
    return run.err;
  };
  CHECK(contains(refusal("{\"schema\": 1e999}"), "overflows"));
  const std::string deep = std::string(200000, '[') + std::string(200000, ']');
  CHECK(contains(refusal(deep), "nested deeper"));
  json file = small_file();
  file["workloads"][0]["K"] = "DEEP";
  std::string text = file.dump();
  text.replace(text.find("\"DEEP\""), 6, deep);
  CHECK(contains(refusal(text), "nested deeper"));
  for (const json& scale : {json(0), json(1e300), json("1"), json(nullptr)}) {
    file = small_file();
    file["scale"] = scale;
    CHECK(contains(refusal(file.dump()), "\"scale\" " + scale.dump() + "; it should be"));
  }
  // What may be opened and not read, and what never ends.
  for (const char* path : {"/proc/self/mem", "/"}) {
    const ToolRun run = run_tool({"bench", "--workloads", path});
    CHECK(run.exit_code == 2);
    CHECK(contains(run.err, std::string(path) + ": the workloads file cannot be read"));
  }
  const ToolRun endless = run_tool({"bench", "--workloads", "/dev/zero"});
  CHECK(endless.exit_code == 3);
  CHECK(contains(endless.err, "more than 64.0 MiB"));
}
