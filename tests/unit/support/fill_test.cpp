// The data of the cases: reproducible, exact where exact is said, with ties that go both ways.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdlib>
#include <string>

#include "call_spec.hpp"
#include "case.hpp"
#include "fill.hpp"

namespace rankfold::testing {

TEST_CASE("a value depends on seed, stream and index alone") {
  CHECK(random_bits(1, 2, 3) == random_bits(1, 2, 3));
  CHECK(random_bits(1, 2, 3) != random_bits(1, 2, 4));
  CHECK(random_bits(1, 2, 3) != random_bits(1, 3, 3));
  CHECK(random_bits(1, 2, 3) != random_bits(2, 2, 3));
  double sum = 0, squares = 0;
  for (std::uint64_t i = 0; i < 100000; ++i) {
    const double value = random_unit(5, 6, i);
    REQUIRE(value >= -1);
    REQUIRE(value < 1);
    sum += value;
    squares += value * value;
  }
  CHECK(std::fabs(sum) < 1000);
  CHECK(squares / 100000 == doctest::Approx(1.0 / 3).epsilon(0.01));
}

TEST_CASE("RANKFOLD_TEST_SEED overrides the seed") {
  bool ok = false;
  ::setenv("RANKFOLD_TEST_SEED", "4711", 1);
  CHECK(default_seed(&ok) == 4711);
  CHECK(ok);
  ::setenv("RANKFOLD_TEST_SEED", "47x", 1);
  default_seed(&ok);
  CHECK_FALSE(ok);
  ::unsetenv("RANKFOLD_TEST_SEED");
  CHECK(default_seed(&ok) == 1);
}

TEST_CASE("exact calls of 16 bits have ties that go up and down, for several seeds") {
  for (const std::uint64_t seed : {1u, 2u, 12345u}) {
    int with_ties = 0, calls = 0;
    for (const conformance::Case& one : conformance::all_cases()) {
      if (!one.build || one.info.slow) continue;
      const conformance::FilledCall filled = one.build(seed);  // throws where it is not exact
      const HostCall& call = filled.call;
      if (call.tolerance != Tolerance::exact || !makes_y(call.op)) continue;
      if (call.y.dtype == DType::f32 || call.options.y_mode == YMode::overwrite) continue;
      std::int64_t computed = 0;
      for (const Region region : filled.oracle.y.region) computed += region == Region::computed;
      if (computed < 300) continue;
      const Ties ties = count_ties(call, filled.oracle);
      const std::string name = one.info.name;
      CAPTURE(name);
      CAPTURE(seed);
      CHECK(ties.to_larger > 0);
      CHECK(ties.to_smaller > 0);
      with_ties += ties.to_larger > 0 && ties.to_smaller > 0;
      ++calls;
    }
    CHECK(calls > 100);
    CHECK(with_ties == calls);
  }
}

TEST_CASE("conditions of the exact fill are noticed when they break") {
  conformance::CallSpec spec;
  conformance::FilledCall filled = conformance::build(spec, 1);
  CHECK(broken_exact_condition(filled.call, filled.oracle).empty());

  HostCall call = filled.call;
  call.entries[0].scaling = 0.3f;
  CHECK_FALSE(broken_exact_condition(call, compute(call)).empty());
  call.entries[0].scaling = 0.03125f;
  CHECK_FALSE(broken_exact_condition(call, compute(call)).empty());

  call = filled.call;
  for (std::int64_t i = 0; i < call.x.count(); ++i) call.x.set(i, 4096);
  CHECK(broken_exact_condition(call, compute(call)).find("2^15") != std::string::npos);

  call = filled.call;
  for (HostEntry& entry : call.entries) {
    for (std::int64_t i = 0; i < entry.b.count(); ++i) entry.b.set(i, 1 << 20);
  }
  CHECK(broken_exact_condition(call, compute(call)).find("2^23") != std::string::npos);
}

TEST_CASE("cancelling calls cancel") {
  conformance::CallSpec spec;
  spec.fill = Fill::cancelling;
  spec.in = 256;
  spec.ranks = {256};
  const conformance::FilledCall filled = conformance::build(spec, 1);
  double delta = 0, magnitude = 0;
  for (std::size_t i = 0; i < filled.oracle.y.delta.size(); ++i) {
    delta += filled.oracle.y.delta[i] * filled.oracle.y.delta[i];
    magnitude += filled.oracle.y.magnitude[i] * filled.oracle.y.magnitude[i];
  }
  CHECK(std::sqrt(delta) * 20 < std::sqrt(magnitude));
  CHECK(delta > 0);
}

}  // namespace rankfold::testing
