// The conformance cases "sanitize/..." launch every kernel of the backend at least once: what
// compute-sanitizer sees of them, it sees of all.
#include <doctest/doctest.h>

#include "conformance/conformance.hpp"
#include "device.hpp"
#include "kernel_registry.hpp"
#include "kernels/modules.hpp"

using namespace rankfold;
using namespace rankfold::cuda_test;

TEST_CASE("every kernel is loaded with the backend, none by its first launch") {
  (void)device();
  CHECK(cuda::load_kernels() == static_cast<int>(kernel_uses().size()));
}

TEST_CASE("the cases for sanitizers reach every kernel") {
  const auto summary = conformance::run_cases(device(), "^sanitize/", {.backend_name = "cuda"},
                                              [](const auto& result) {
                                                if (result.verdict == conformance::Verdict::failed)
                                                  FAIL_CHECK(result.name, ": ", result.message);
                                              });
  REQUIRE(summary.ok());
  CHECK(summary->failed == 0);
  CHECK(summary->passed > 100);
  const std::vector<KernelUse> uses = kernel_uses();
  int num_missed = 0;
  for (const KernelUse& use : uses) {
    const bool is_anchor =
        use.name.find("_module_anchor") != std::string::npos;  // kernels/modules.hpp
    if (use.launches > 0 || is_anchor) continue;
    ++num_missed;
    MESSAGE("not reached: ", use.name);
  }
  MESSAGE(uses.size(), " kernels, ", num_missed, " not reached by ", summary->passed, " cases");
  CHECK(!uses.empty());
  CHECK(num_missed == 0);
}
