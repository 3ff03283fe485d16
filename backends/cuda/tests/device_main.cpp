// main of the tests that need a GPU. Exit 77, skipped: there is none that the backend can use,
// unless RANKFOLD_REQUIRE_BACKEND is cuda.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "rankfold/cuda.hpp"

int main(int argc, char** argv) {
  rankfold::BackendDescription description;
  rankfold::cuda::descriptor().describe(&description);
  if (description.usable == 0) {
    const char* const required = std::getenv("RANKFOLD_REQUIRE_BACKEND");
    const bool is_required = required != nullptr && std::strcmp(required, "cuda") == 0;
    std::printf("%s: %s\n",
                is_required ? "FAILED, RANKFOLD_REQUIRE_BACKEND asks for it" : "skipped",
                description.reason);
    return is_required ? 1 : 77;
  }
  std::printf("device 0: %s\n", description.devices[0].name);
  return doctest::Context(argc, argv).run();
}
