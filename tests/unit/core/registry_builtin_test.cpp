// The registry with the backends of this build, as the umbrella library adds them.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "rankfold/rankfold.hpp"
#include "rankfold/reference.hpp"

using namespace rankfold;

namespace {

std::string message(const char* specification) {
  return registry().get(specification).status().message();
}

}  // namespace

TEST_CASE("this build has the reference, and knows what it leaves out") {
  std::vector<BackendListing> lines(8);
  const int count = registry().list(lines.data(), 8);
  REQUIRE(count >= 3);
  const auto line = [&](const std::string& name) -> const BackendListing& {
    const auto found = std::find_if(lines.begin(), lines.begin() + count,
                                    [&](const BackendListing& l) { return name == l.name; });
    REQUIRE(found != lines.begin() + count);
    return *found;
  };
  CHECK(line("reference").built == 1);
  CHECK(line("reference").description.usable == 1);
  for (const char* name : {"cuda", "kokkos"}) {
    const BackendListing& missing = line(name);
    if (missing.built) continue;
    CHECK(std::string(missing.description.reason).find("not in this build: ") == 0);
    CHECK(message(name).find("configure with -DRANKFOLD_") != std::string::npos);
  }
}

TEST_CASE("the reference opens under its name and its alias") {
  LoraBackend& reference = get_backend("reference");
  CHECK(std::string(reference.name()) == "reference");
  CHECK(&reference == &get_backend("CPU:0"));
  CHECK(std::string(rankfold::reference::descriptor().name) == "reference");
  CHECK(message("reference:7").find("there is no device 7") != std::string::npos);
  CHECK_THROWS_AS(get_backend("doesnotexist"), Error);
}

TEST_CASE("RANKFOLD_BACKEND decides the process's backend") {
  // ctest runs this with the variable set to "CPU".
  const auto backend = try_backend();
  REQUIRE(backend.ok());
  CHECK(&rankfold::backend() == *backend);
}
