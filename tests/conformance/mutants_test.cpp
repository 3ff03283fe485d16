// The proof that the conformance cases can fail: they accept a plain backend, and find every one of
// its deliberately wrong variants.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "conformance.hpp"
#include "naive_backend.hpp"

namespace rankfold::conformance {

TEST_CASE("the plain backend passes every case") {
  NaiveBackend backend;
  RunOptions options;
  options.quick = true;
  const auto summary = run_cases(backend, "", options, [](const CaseResult& result) {
    if (result.verdict == Verdict::failed) FAIL_CHECK(result.name << ": " << result.message);
  });
  REQUIRE(summary.ok());
  CHECK(summary->failed == 0);
  CHECK(summary->passed > 1000);
}

TEST_CASE("every wrong variant is found") {
  for (const NamedMutation& mutation : all_mutations()) {
    const std::string name = mutation.name;
    CAPTURE(name);
    NaiveBackend backend(mutation.mutation);
    std::string first;
    const auto summary = run_cases(backend, mutation.filter, {}, [&](const CaseResult& result) {
      if (result.verdict == Verdict::failed && first.empty()) {
        first = result.name + ": " + result.message;
        CHECK(result.repeat.find("rankfold check --backend naive --filter '^") == 0);
        CHECK(result.repeat.find(" --seed ") != std::string::npos);
      }
    });
    REQUIRE(summary.ok());
    CHECK(summary->failed > 0);
    MESSAGE(name << " found by " << summary->failed << ", first " << first);
  }
}

TEST_CASE("drawn calls pass on the plain backend and not on a wrong one") {
  NaiveBackend backend;
  const Summary summary = run_drawn_cases(backend, 0, 60, {}, [](const CaseResult& result) {
    if (result.verdict == Verdict::failed) FAIL_CHECK(result.name << ": " << result.message);
  });
  CHECK(summary.passed == 61);  // and the backend's name
  NaiveBackend wrong(Mutation::forgets_token_weight);
  std::string message, repeat;
  const Summary judged = run_drawn_cases(wrong, 0, 40, {}, [&](const CaseResult& result) {
    if (result.verdict != Verdict::failed) return;
    message = result.message;
    repeat = result.repeat;
  });
  CHECK(judged.failed > 0);
  CHECK(message.find(", ranks ") != std::string::npos);
  CHECK(repeat.find("rankfold check --backend naive --drawn 1 --first ") == 0);
}

TEST_CASE("shards run each selected case once") {
  NaiveBackend backend;
  std::vector<std::string> whole, parts;
  const auto run = [&](int shard, int num_shards, std::vector<std::string>& names) {
    RunOptions options;
    options.shard = shard;
    options.num_shards = num_shards;
    (void)run_cases(backend, "^group_tokens/", options, [&](const CaseResult& result) {
      if (result.name != "backend/name") names.push_back(result.name);
    });
  };
  run(0, 1, whole);
  for (int shard = 0; shard < 3; ++shard) {
    const std::size_t before = parts.size();
    run(shard, 3, parts);
    CHECK(parts.size() - before >= whole.size() / 3);
  }
  std::sort(whole.begin(), whole.end());
  std::sort(parts.begin(), parts.end());
  CHECK(whole.size() > 10);
  CHECK(parts == whole);
}

TEST_CASE("the first case compares the backend's name with the one asked for") {
  NaiveBackend backend;
  RunOptions options;
  options.backend_name = "cuda:1";
  int failed = 0;
  const auto summary =
      run_cases(backend, "^nothing has this name$", options, [&](const CaseResult& result) {
        CHECK(result.name == "backend/name");
        failed += result.verdict == Verdict::failed;
      });
  REQUIRE(summary.ok());
  CHECK(failed == 1);
  CHECK_FALSE(run_cases(backend, "(", options, nullptr).ok());
  CHECK(run_case(backend, "no/such/case", options).verdict == Verdict::failed);
}

}  // namespace rankfold::conformance
