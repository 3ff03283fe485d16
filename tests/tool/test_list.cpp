#include <doctest/doctest.h>

#include <set>

#include "run_tool.hpp"

using nlohmann::json;
using rankfold::test::contains;
using rankfold::test::run_tool;
using rankfold::test::ToolRun;

namespace {

const json* find(const json& document, const std::string& name) {
  for (const json& backend : document["backends"]) {
    if (backend["name"] == name) return &backend;
  }
  return nullptr;
}

}  // namespace

TEST_CASE("list: the backends, which one auto takes, and what is left out") {
  const ToolRun run = run_tool({"list"});
  CHECK(run.exit_code == 0);
  CHECK(run.err.empty());
  CHECK(contains(run.out, "reference"));
  CHECK(contains(run.out, "RANKFOLD_BACKEND is not set"));

  const json document = run_tool({"list", "--json"}).json();
  const json* reference = find(document, "reference");
  REQUIRE(reference != nullptr);
  CHECK((*reference)["built"] == true);
  CHECK((*reference)["usable"] == true);
  REQUIRE((*reference)["devices"].size() >= 1);
  CHECK((*reference)["devices"][0]["index"] == 0);
  CHECK_FALSE((*reference)["devices"][0]["name"].get<std::string>().empty());
  int taken = 0;
  for (const json& backend : document["backends"]) {
    taken += backend["taken_by_auto"] == true ? 1 : 0;
    CAPTURE(backend["name"].get<std::string>());
    // A better one that is passed over says why.
    if (backend["usable"] == false) CHECK_FALSE(backend["reason"].get<std::string>().empty());
    if (backend["built"] == false) {
      CHECK(contains(backend["reason"].get<std::string>(), "RANKFOLD_"));
    }
  }
  CHECK(taken == 1);
  REQUIRE(find(document, document["auto"]) != nullptr);
  CHECK(find(document, "cuda") != nullptr);
  CHECK(find(document, "kokkos") != nullptr);
  CHECK(document["variable"]["value"].is_null());
  CHECK(document["variable"]["error"].is_null());
}

TEST_CASE("list --kernels: strategies, conditions and configurations") {
  const json document = run_tool({"list", "--kernels", "--json"}).json();
  const json* reference = find(document, "reference");
  REQUIRE(reference != nullptr);
  std::set<std::string> ops;
  for (const json& line : (*reference)["strategies"]) {
    ops.insert(line["op"]);
    CHECK(line["strategy"] != "?");
    CHECK_FALSE(line["conditions"].get<std::string>().empty());
    CHECK(line["configurations"].is_array());
  }
  for (const char* op : {"shrink", "expand", "apply_linear", "gather_shrink", "apply_embedding"}) {
    CAPTURE(std::string(op));
    CHECK(ops.count(op) == 1);
  }
  const ToolRun run = run_tool({"list", "--kernels"});
  CHECK(run.exit_code == 0);
  CHECK(contains(run.out, "strategies of reference"));
  CHECK(contains(run.out, "apply_linear"));
  CHECK(run_tool({"list", "--json"}).json()["backends"][0].contains("strategies") == false);
}

TEST_CASE("list: RANKFOLD_BACKEND as it is understood") {
  for (const char* value : {"reference", "cpu", "CPU", "Reference:0"}) {
    CAPTURE(std::string(value));
    const ToolRun run = run_tool({"list"}, {std::string("RANKFOLD_BACKEND=") + value});
    CHECK(run.exit_code == 0);
    CHECK(contains(run.out, std::string("\"") + value + "\": reference:0 is taken"));
  }
  for (const char* value : {"", "auto", "AUTO"}) {
    CAPTURE(std::string(value));
    CHECK(run_tool({"list"}, {std::string("RANKFOLD_BACKEND=") + value}).exit_code == 0);
  }
}

TEST_CASE("list: the errors of RANKFOLD_BACKEND, each with the variable, the value and the cure") {
  struct Line {
    const char* value;
    const char* code;
    const char* cure;
  };
  const json backends = run_tool({"list", "--json"}).json();
  const bool has_cuda = (*find(backends, "cuda"))["built"] == true;
  const Line lines[] = {
      {"doesnotexist", "unknown_backend", "reference"},
      {"reference:7", "unavailable", "index 0"},
      {"cuda:1x", "invalid_argument", "NAME:DEVICE"},
      {"auto:1", "invalid_argument", "NAME:DEVICE"},
      {"cuda", has_cuda ? "unavailable" : "not_compiled",
       has_cuda ? "unset the variable" : "RANKFOLD_CUDA=ON"},
  };
  for (const Line& line : lines) {
    CAPTURE(std::string(line.value));
    const std::vector<std::string> variable = {std::string("RANKFOLD_BACKEND=") + line.value};
    const ToolRun run = run_tool({"list"}, variable);
    if (has_cuda && run.exit_code == 0) continue;  // a machine with a GPU
    CHECK(run.exit_code == 2);
    CHECK(contains(run.err, line.code));
    CHECK(contains(run.err, "RANKFOLD_BACKEND"));
    CHECK(contains(run.err, line.value));
    CHECK(contains(run.err, line.cure));
    CHECK(contains(run.out, "reference"));  // what there is stands there all the same

    const ToolRun as_json = run_tool({"list", "--json"}, variable);
    CHECK(as_json.exit_code == 2);
    const json error = as_json.json()["variable"]["error"];
    CHECK(error["code"] == line.code);
    CHECK(as_json.json()["variable"]["selects"].is_null());
  }
}
