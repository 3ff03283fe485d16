// The reference backend gives the same bits at any number of TBB threads.
#include <doctest/doctest.h>
#include <tbb/global_control.h>

#include <map>
#include <string>

#include "conformance.hpp"
#include "rankfold/registry.hpp"

namespace rankfold::conformance {

TEST_CASE("same bits with 1, 2, 3 and 7 threads") {
  const auto backend = registry().get("reference");
  REQUIRE_MESSAGE(backend.ok(), backend.status().message());
  const char* const filter =
      "/(random|cancelling|accumulation|many_adapters)|^apply_linear/shape|^group_tokens";
  std::map<std::string, std::uint64_t> first;
  for (const std::size_t threads : {1, 2, 3, 7}) {
    const tbb::global_control limit(tbb::global_control::max_allowed_parallelism, threads);
    const auto summary = run_cases(**backend, filter, {}, [&](const CaseResult& result) {
      const std::string name = result.name;
      CAPTURE(name);
      CHECK_MESSAGE(result.verdict == Verdict::passed, result.message);
      const auto known = first.emplace(result.name, result.digest).first;
      CHECK_MESSAGE(known->second == result.digest, threads, " threads");
    });
    REQUIRE(summary.ok());
  }
  CHECK(first.size() > 200);
}

}  // namespace rankfold::conformance
