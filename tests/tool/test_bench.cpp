#include <doctest/doctest.h>

#include <fstream>
#include <iterator>

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

// Two tokens of two choices each; with seed 1 they meet three of the four experts.
json small_moe() {
  return {{"name", "small/moe"},
          {"kind", "moe"},
          {"K", 32},
          {"slices", {16}},
          {"rank", 4},
          {"tokens", 2},
          {"adapters", 1},
          {"experts", 4},
          {"top_k", 2},
          {"x_rows", "token"},
          {"min_bytes", 2 * (3 * 4 * (32 + 16) + 2 * 32 + 4 * 2 * 16)},
          {"flops", 2 * 4 * 4 * (32 + 16)},
          {"route_seed", 1},
          {"mul_routed_weight", true}};
}

json small_train(const char* pass) {
  const bool backward = std::string(pass) == "bwd";
  // Forward: A, B, x once, y twice. Backward: A, B and their gradients, dy, x, h once, dx twice.
  const int bytes = backward ? 2 * (2 * 4 * (24 + 16) + 8 * (3 * 24 + 16 + 4))
                             : 2 * (4 * (24 + 16) + 8 * (24 + 2 * 16));
  return {{"name", std::string("small/train/") + pass},
          {"kind", "train"},
          {"M", 8},
          {"K", 24},
          {"N", 16},
          {"rank", 4},
          {"pass", pass},
          {"min_bytes", bytes},
          {"flops", (backward ? 4 : 2) * 8 * 4 * (24 + 16)}};
}

json small_file() {
  return {{"schema", 1},
          {"dtype", "bf16"},
          {"scale", 0.5},
          {"workloads",
           json::array({small_point(), small_moe(), small_train("fwd"), small_train("bwd")})}};
}

}  // namespace

TEST_CASE("bench: every kind of point is checked and timed") {
  const ScratchFolder folder;
  const std::string workloads = folder.write("workloads.json", small_file().dump());
  const std::string results = folder.path("results.json");
  const ToolRun run = run_tool(
      {"bench", "--backend", "reference", "--workloads", workloads, "--sweep", "--json", results});
  CAPTURE(run.out);
  CHECK(run.exit_code == 0);
  CHECK(run.err.empty());
  CHECK(contains(run.out, "floor us"));
  CHECK(contains(run.out, "4 timed, 0 failed, 0 skipped"));

  std::ifstream stream(results);
  const json document = json::parse(stream, nullptr, false);
  REQUIRE_FALSE(document.is_discarded());
  CHECK(document["backend"] == "reference:0");
  CHECK(document["workloads"] == "workloads.json");
  CHECK(document["copy_gb_per_s"] > 0);
  CHECK(document["read_gb_per_s"] > 0);
  CHECK(document["matrix_tflop_per_s"] > 0);
  CHECK_FALSE(document.contains("peers"));  // of a GPU
  REQUIRE(document["points"].size() == 4);
  const char* const groups[] = {"decode", "moe", "train fwd", "train bwd"};
  const int rows[] = {7, 4, 8, 8};  // every row, of the first and of the last layer
  for (std::size_t i = 0; i < 4; ++i) {
    const json& point = document["points"][i];
    CAPTURE(point.dump());
    CHECK(point["outcome"] == "timed");
    CHECK(point["group"] == groups[i]);
    CHECK(point["checked_rows"].get<int>() == 2 * rows[i]);
    CHECK(point["layers"].get<int>() >= 2);
    const double median = point["time"]["median_us"];
    CHECK(median > 0);
    CHECK(point["time"]["p10_us"] <= median);
    CHECK(point["time"]["p90_us"] >= median);
    CHECK(point["time"]["replays"] >= 3);
    CHECK(point["floor"]["median_us"] > 0);
    CHECK(point["bound_us"] > 0);
    CHECK(point["host_us"] > 0);
    CHECK(point["gb_per_s"].get<double>() ==
          doctest::Approx(point["min_bytes"].get<double>() / median / 1e3));
    CHECK(point["tflop_per_s"].get<double>() ==
          doctest::Approx(point["flops"].get<double>() / median / 1e6));
    CHECK(point["sweep"].size() >= 1);
    CHECK_FALSE(point.contains("goal_us"));  // stated for GPUs
  }
  CHECK(document["points"][0]["addressing"] == "grouped");
  CHECK(document["points"][0]["group_tokens"]["median_us"] > 0);
  CHECK(document["points"][1]["addressing"] == "gather");
  CHECK(document["points"][2]["addressing"] == "uniform");
  CHECK_FALSE(document["points"][2].contains("group_tokens"));
}

TEST_CASE("bench --from: tables and figures of earlier results; nothing is measured") {
  const ScratchFolder folder;
  const std::string workloads = folder.write("workloads.json", small_file().dump());
  const std::string results = folder.path("results.json");
  const std::string tables = folder.path("results.md");
  const ToolRun measured = run_tool({"bench", "--backend", "reference", "--workloads", workloads,
                                     "--filter", "mixed", "--checks", "--json", results});
  CHECK(measured.exit_code == 0);
  CHECK(contains(measured.out, "no checks: they are for devices with graphs"));
  const ToolRun run = run_tool({"bench", "--from", results, "--markdown", tables, "--figures",
                                folder.path("figures"), "--backend", "doesnotexist"});
  CAPTURE(run.err);
  CHECK(run.exit_code == 0);
  const auto read = [](const std::string& path) {
    std::ifstream file(path);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  CHECK(contains(read(tables), "| small/mixed |"));
  CHECK(contains(read(folder.path("figures/decode.svg")), "small/mixed"));

  const auto refusal = [&](const std::string& text) {
    return run_tool({"bench", "--from", folder.write("other.json", text), "--markdown", tables});
  };
  CHECK(refusal("{}").exit_code == 3);
  CHECK(refusal("[1, 2").exit_code == 3);
  CHECK(refusal("{\"points\": 7, \"versions\": {}}").exit_code == 3);
  CHECK(run_tool({"bench", "--from", "/does/not/exist", "--markdown", tables}).exit_code == 2);
  CHECK(run_tool({"bench", "--from", results, "--markdown", "/does/not/exist/x"}).exit_code == 2);
}

TEST_CASE("bench --off-grid: odd sizes, ranks and dtypes") {
  const ToolRun run = run_tool({"bench", "--backend", "reference", "--off-grid", "--filter",
                                "1536x.*T(2|7)/.*mixed", "--json", "-"});
  CAPTURE(run.err);
  CHECK(run.exit_code == 0);
  REQUIRE(run.json()["points"].size() >= 1);
  CHECK(run.json()["points"][0]["group"] == "off-grid");
  CHECK(run.json()["points"][0]["outcome"] == "timed");
  CHECK(run_tool({"bench", "--off-grid", "--workloads", "x"}).exit_code == 2);
}

TEST_CASE("bench --json -: the document alone on stdout") {
  const ScratchFolder folder;
  const std::string workloads = folder.write("workloads.json", small_file().dump());
  const ToolRun run = run_tool({"bench", "--backend", "reference", "--workloads", workloads,
                                "--filter", "small/t", "--json", "-"});
  CHECK(run.exit_code == 0);
  CHECK(run.json()["points"].size() == 2);
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
  const Line moe_lines[] = {
      {"x_rows", "tokens", "\"x_rows\" is \"tokens\"; it should be token or own"},
      {"mul_routed_weight", 1, "\"mul_routed_weight\" is 1; it should be true or false"},
      {"route_seed", -1, "\"route_seed\" is -1"},
      {"route_seed", 2, "\"min_bytes\""},
      {"top_k", 5, "\"top_k\" is 5; it should be an integer from 1 to 4"},
      {"tokens", 1 << 20, "\"tokens\" times \"top_k\" is 2097152; it should be at most 1048576"},
  };
  for (const Line& line : moe_lines) {
    CAPTURE(std::string(line.part));
    json file = small_file();
    file["workloads"][1][line.key] = line.value;
    const ToolRun run =
        run_tool({"bench", "--workloads", folder.write("workloads.json", file.dump())});
    CAPTURE(run.err);
    CHECK(run.exit_code == 3);
    CHECK(contains(run.err, "workloads[1]"));
    CHECK(contains(run.err, line.part));
  }
  CHECK(run_tool({"bench", "--backend", "reference", "--peers", "/does/not/exist"}).exit_code == 2);
  CHECK(run_tool({"bench", "--backend", "reference", "--peers", folder.write("peers", "{}")})
            .exit_code == 3);
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
