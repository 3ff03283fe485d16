#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "run_tool.hpp"

using nlohmann::json;
using rankfold::test::contains;
using rankfold::test::run_tool;
using rankfold::test::ScratchFolder;
using rankfold::test::ToolRun;

namespace {

json point(const char* name, int adapters) {
  json slots = json::array();
  for (int i = 0; i < 4; ++i) slots.push_back({1, i % adapters});
  return {{"name", name},
          {"kind", "serve"},
          {"phase", "decode"},
          {"K", 48},
          {"slices", {24, 40}},
          {"rank", 4},
          {"tokens", 4},
          {"adapters", adapters},
          {"token_adapter_rle", slots},
          {"min_bytes", 2 * (adapters * 4 * (2 * 48 + 64) + 4 * (48 + 2 * 64))},
          {"flops", 2 * 4 * 4 * (2 * 48 + 64)}};
}

std::string shapes(const ScratchFolder& folder) {
  const json file = {{"schema", 1},
                     {"dtype", "bf16"},
                     {"scale", 0.5},
                     {"workloads", json::array({point("one", 1), point("two", 2)})}};
  return folder.write("shapes.json", file.dump());
}

std::string read(const std::string& path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

std::size_t files_in(const ScratchFolder& folder) {
  const std::filesystem::directory_iterator files(folder.path("")), end;
  return static_cast<std::size_t>(std::distance(files, end));
}

}  // namespace

TEST_CASE("tune: every shape is measured, and a file is written that list and bench read") {
  const ScratchFolder folder;
  const std::string file = folder.path("cpu.tuning");
  const ToolRun run =
      run_tool({"tune", "--backend", "reference", "--shapes", shapes(folder), "-o", file},
               {"RANKFOLD_TUNING=/does/not/exist"});
  CAPTURE(run.out);
  CAPTURE(run.err);
  CHECK(run.exit_code == 0);
  CHECK(contains(run.out, "RANKFOLD_TUNING is set and not looked at"));
  CHECK(contains(run.out, "the reference backend reads no tuning file"));
  CHECK(contains(run.out, "grouped: default"));
  CHECK(contains(run.out, "two (tokens)"));
  CHECK(contains(run.out, "of 3 shapes; 0 failed"));
  CHECK(files_in(folder) == 2);
  const std::string text = read(file);
  CAPTURE(text);
  CHECK(contains(text, "rankfold-tuning 1\ndevice reference kernels=0 "));
  for (const char* name : {"one", "two", "two (tokens)"}) CHECK(contains(text, name));

  const std::vector<std::string> variable = {"RANKFOLD_TUNING=" + file};
  const ToolRun list = run_tool({"list"}, variable);
  CHECK(list.exit_code == 0);
  CHECK(contains(list.out, "RANKFOLD_TUNING is \"" + file + "\": "));
  CHECK(contains(list.out, "reference reads none"));
  const json tuning = run_tool({"list", "--json"}, variable).json()["tuning"];
  CHECK(tuning["value"] == file);
  CHECK(tuning["error"].is_null());
  const ToolRun bench = run_tool(
      {"bench", "--backend", "reference", "--workloads", shapes(folder), "--json", "-"}, variable);
  CHECK(bench.exit_code == 0);
  CHECK(contains(bench.err, "tuning: " + file + ": reference reads none"));
  CHECK(bench.json()["points"][0]["from_tuning"] == false);
  CHECK(bench.json()["points"][0]["strategy"] == "grouped");
}

TEST_CASE("list: RANKFOLD_TUNING that cannot be used is an error with the line") {
  CHECK(contains(run_tool({"list"}).out, "RANKFOLD_TUNING is not set"));
  const ScratchFolder folder;
  const std::string file = folder.write("bad.tuning", "rankfold-tuning 1\nnonsense\n");
  const ToolRun run = run_tool({"list"}, {"RANKFOLD_TUNING=" + file});
  CHECK(run.exit_code == 2);
  CHECK(contains(run.out, "reference"));  // what there is stands there all the same
  CHECK(contains(run.out, "cannot be used, see the error"));
  CHECK(contains(run.err, "malformed_file: RANKFOLD_TUNING is '" + file + "': line 2: "));
  const ToolRun missing = run_tool({"list", "--json"}, {"RANKFOLD_TUNING=/does/not/exist"});
  CHECK(missing.exit_code == 2);
  CHECK(missing.json()["tuning"]["error"]["code"] == "invalid_argument");
  CHECK(run_tool({"list"}, {"RANKFOLD_TUNING="}).exit_code == 0);
}

TEST_CASE("tune: bad command lines, and files that cannot be written") {
  const ScratchFolder folder;
  const auto tune = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"tune", "--backend", "reference"});
    return run_tool(more);
  };
  const ToolRun without = tune({});
  CHECK(without.exit_code == 2);
  CHECK(contains(without.err, "--output"));
  const std::string points = shapes(folder);
  CHECK(tune({"-o", "/does/not/exist/x", "--shapes", points}).exit_code == 2);
  const ToolRun directory = tune({"-o", folder.path("."), "--shapes", points});
  CHECK(directory.exit_code == 2);
  CHECK(contains(directory.err, "not a regular file"));
  CHECK(tune({"-o", folder.path("x"), "--shapes", "/does/not/exist"}).exit_code == 2);
  CHECK(tune({"-o", folder.path("x"), "--shapes", points, "--filter", "three"}).exit_code == 2);
  CHECK(run_tool({"tune", "--backend", "doesnotexist", "-o", folder.path("x")}).exit_code == 2);
  CHECK(files_in(folder) == 1);  // nothing is left behind
}
