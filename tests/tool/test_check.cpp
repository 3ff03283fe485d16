#include <doctest/doctest.h>

#include <sstream>

#include "rankfold/safetensors.hpp"
#include "run_tool.hpp"

using nlohmann::json;
using rankfold::DType;
using rankfold::SafetensorsMetadata;
using rankfold::SafetensorsTensor;
using rankfold::test::contains;
using rankfold::test::run_tool;
using rankfold::test::ScratchFolder;
using rankfold::test::ToolRun;

namespace {

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// y = 1 + 0.5 * (x A^T) B^T with x = (1, 2), A = (3, 4), B = 2: 1 + 0.5 * 11 * 2 = 12.
std::string write_case(const ScratchFolder& folder, double expected, const char* format) {
  const float x[] = {1, 2}, a[] = {3, 4}, b[] = {2}, y[] = {1}, scalings[] = {0.5f};
  const std::int32_t slots[] = {0};
  const SafetensorsTensor tensors[] = {
      {"x", DType::f32, 2, {1, 2}, x},
      {"y", DType::f32, 2, {1, 1}, y},
      {"token_slots", DType::i32, 1, {1}, slots},
      {"scalings", DType::f32, 2, {1, 1}, scalings},
      {"a.0.0", DType::f32, 2, {1, 2}, a},
      {"b.0.0", DType::f32, 2, {1, 1}, b},
      {"expect.y", DType::f64, 2, {1, 1}, &expected},
  };
  const SafetensorsMetadata metadata[] = {
      {"format", format}, {"op", "apply_linear"}, {"out_slices", "1"}};
  const std::string path = folder.path("case.safetensors");
  REQUIRE(rankfold::write_safetensors(path, tensors, metadata).ok());
  return path;
}

}  // namespace

TEST_CASE("check --list: names and what they are about, nothing is run") {
  const ToolRun run = run_tool({"check", "--list"}, {"RANKFOLD_BACKEND=doesnotexist"});
  CHECK(run.exit_code == 0);
  CHECK(lines_of(run.out).size() > 100);
  CHECK(contains(run.out, "apply_linear/"));
  const json document = run_tool({"check", "--list", "--json", "--filter", "^shrink/"}).json();
  REQUIRE(document["cases"].size() > 0);
  for (const json& line : document["cases"]) {
    CHECK(line["name"].get<std::string>().rfind("shrink/", 0) == 0);
    CHECK_FALSE(line["about"].get<std::string>().empty());
  }
}

TEST_CASE("check: a line a case and a summary") {
  const ToolRun run = run_tool({"check", "--backend", "reference", "--filter", "^gather_shrink/"});
  CAPTURE(run.out);
  CHECK(run.exit_code == 0);
  CHECK(run.err.empty());
  const std::vector<std::string> lines = lines_of(run.out);
  REQUIRE(lines.size() > 4);
  CHECK(contains(lines.front(), "reference:0, seed 1"));
  CHECK(contains(lines[1], "backend/name"));
  for (std::size_t i = 2; i + 2 < lines.size(); ++i) CHECK(contains(lines[i], "gather_shrink/"));
  CHECK(contains(lines.back(), " passed, 0 failed, "));

  const json document = run_tool({"check", "--backend", "cpu", "--filter", "^gather_shrink/",
                                  "--json", "--seed", "7"})
                            .json();
  CHECK(document["seed"] == 7);
  CHECK(document["backend"] == "reference:0");
  CHECK(document["summary"]["failed"] == 0);
  CHECK(document["cases"].size() == lines.size() - 3);
}

TEST_CASE("check: the seed of the variable, unless one is named") {
  const std::vector<std::string> words = {"check", "--json", "--filter", "^backend/name$"};
  CHECK(run_tool(words, {"RANKFOLD_TEST_SEED=42"}).json()["seed"] == 42);
  CHECK(run_tool(words, {"RANKFOLD_TEST_SEED=nonsense"}).exit_code == 2);
}

TEST_CASE("check --drawn: calls drawn at random") {
  const ToolRun drawn =
      run_tool({"check", "--backend", "reference", "--drawn", "5", "--first", "7"});
  CHECK(drawn.exit_code == 0);
  CHECK(contains(drawn.out, "drawn/7"));
  CHECK(contains(drawn.out, "drawn/11"));
  CHECK_FALSE(contains(drawn.out, "drawn/12"));
  CHECK(contains(drawn.out, "6 passed, 0 failed, 0 skipped"));
  CHECK(run_tool({"check", "--drawn", "0"}).exit_code == 2);
  CHECK(run_tool({"check", "--drawn", "3", "--filter", "x"}).exit_code == 2);
  CHECK(run_tool({"check", "--first", "3"}).exit_code == 2);
}

TEST_CASE("check --case: a file that any system can write") {
  const ScratchFolder folder;
  const std::string right = write_case(folder, 12, "rankfold-case-1");
  const ToolRun passed = run_tool({"check", "--backend", "reference", "--case", right});
  CAPTURE(passed.out);
  CHECK(passed.exit_code == 0);
  CHECK(contains(passed.out, "1 passed, 0 failed, 0 skipped"));

  const std::string wrong = write_case(folder, 12.5, "rankfold-case-1");
  const ToolRun failed = run_tool({"check", "--backend", "reference", "--case", wrong});
  CAPTURE(failed.out);
  CHECK(failed.exit_code == 1);
  CHECK(contains(failed.out, "FAILED"));
  CHECK(contains(failed.out, "0 passed, 1 failed, 0 skipped"));
  CHECK(contains(failed.out, "12.5"));
  // The command that repeats it.
  CHECK(contains(failed.out, "repeat: "));
  CHECK(contains(failed.out, "--case"));
  const json document =
      run_tool({"check", "--backend", "reference", "--case", wrong, "--json"}).json();
  CHECK(document["summary"]["failed"] == 1);
  CHECK(document["cases"][0]["verdict"] == "failed");
  CHECK(contains(document["cases"][0]["repeat"].get<std::string>(), wrong));

  const std::string other = write_case(folder, 12, "some-other-format");
  const ToolRun refused = run_tool({"check", "--backend", "reference", "--case", other});
  CHECK(refused.exit_code == 1);
  CHECK(contains(refused.out, "some-other-format"));
}

TEST_CASE("check --case: a file that is not there or malformed") {
  CHECK(run_tool({"check", "--case", "/does/not/exist"}).exit_code == 2);
  const ScratchFolder folder;
  const ToolRun run = run_tool({"check", "--case", folder.write("broken", "abc")});
  CHECK(run.exit_code == 3);
  CHECK(contains(run.err, "malformed_file"));
}

TEST_CASE("check: a backend that cannot be used, a filter that finds nothing") {
  const ToolRun by_option = run_tool({"check", "--backend", "doesnotexist"});
  CHECK(by_option.exit_code == 2);
  CHECK(contains(by_option.err, "unknown_backend"));
  CHECK(contains(by_option.err, "--backend"));
  const ToolRun by_variable = run_tool({"check"}, {"RANKFOLD_BACKEND=reference:9"});
  CHECK(by_variable.exit_code == 2);
  CHECK(contains(by_variable.err, "RANKFOLD_BACKEND"));
  // The option beats the variable.
  CHECK(run_tool({"check", "--backend", "reference", "--filter", "^backend/name$"},
                 {"RANKFOLD_BACKEND=doesnotexist"})
            .exit_code == 0);
  CHECK(run_tool({"check", "--filter", "no such case"}).exit_code == 2);
}
