#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "bench/judge.hpp"
#include "bench/pattern.hpp"
#include "rankfold/registry.hpp"

using namespace rankfold::tools;
using rankfold::DType;

namespace {

std::uint16_t bits(float value) { return rankfold::to_bfloat16(value).bits; }

}  // namespace

TEST_CASE("rows: one unit is right, more than that and the row's share is wrong") {
  const std::vector<double> before(2000, 1.0);
  const std::vector<double> delta(2000, 0.5);
  std::vector<std::uint16_t> got(2000, bits(1.5f));
  RowJudge right("y", DType::bf16);
  CHECK(right.add(0, before, delta, got));
  got[7] = bits(1.5f + 0x1p-7f);  // a unit at 1.5
  CHECK(right.add(1, before, delta, got));
  CHECK(right.failure().empty());
  got[7] = bits(1.5f + 0x1p-6f);
  RowJudge wrong("y", DType::bf16);
  CHECK_FALSE(wrong.add(3, before, delta, got));
  CHECK(wrong.failure().find("row 3, column 7") != std::string::npos);
  got[7] = 0x7fc0;  // NaN
  RowJudge nan("y", DType::bf16);
  CHECK_FALSE(nan.add(0, before, delta, got));
}

TEST_CASE("rows: a little more than a unit is right for a thousandth alone") {
  // Exact values just over a unit from the answer, by less than 1e-4 of the delta.
  const std::vector<double> before(2000, 0.0);
  std::vector<double> delta(2000, 1.5);
  const std::vector<std::uint16_t> got(2000, bits(1.5f));
  for (int i = 0; i < 2; ++i) delta[static_cast<std::size_t>(i)] = 1.5 + 0x1p-7 + 1e-5;
  RowJudge few("y", DType::bf16);
  CHECK(few.add(0, before, delta, got));
  CHECK(few.failure().empty());
  for (int i = 0; i < 3; ++i) delta[static_cast<std::size_t>(i)] = 1.5 + 0x1p-7 + 1e-5;
  RowJudge many("y", DType::bf16);
  CHECK(many.add(0, before, delta, got));
  CHECK(many.failure().find("3 of 2000") != std::string::npos);
}

TEST_CASE("norms: float32 passes, a product in 10 bits of mantissa does not") {
  NormJudge right("da");
  NormJudge wrong("da");
  for (int i = 1; i < 1000; ++i) {
    const double exact = 1.0 / i;
    right.add(exact, static_cast<float>(exact));
    wrong.add(exact, exact * (1 + 0x1p-12));
  }
  CHECK(right.failure().empty());
  CHECK(wrong.failure().find("da") != std::string::npos);
}

TEST_CASE("units in the last place") {
  CHECK(unit_in_last_place(1.0, DType::bf16) == 0x1p-7);
  CHECK(unit_in_last_place(-1.99, DType::bf16) == 0x1p-7);
  CHECK(unit_in_last_place(2.0, DType::f16) == 0x1p-9);
  CHECK(unit_in_last_place(0.0, DType::f16) == 0x1p-24);
}

TEST_CASE("pattern: what the device holds is what the host reads") {
  rankfold::LoraBackend& backend = rankfold::get_backend("reference");
  auto stream = rankfold::OwnedStream::create(backend).value();
  Patterns patterns(backend);
  constexpr std::int64_t kCount = 2'500'000;  // more than two periods
  std::vector<std::uint16_t> device(kCount);
  std::vector<double> host(kCount);
  patterns.fill(device.data(), Fill::b, DType::f16, 1'999'998, kCount, stream);
  REQUIRE(stream.synchronize().ok());
  patterns.read(Fill::b, DType::f16, 1'999'998, 0, kCount, host.data());
  std::int64_t different = 0;
  double largest = 0;
  for (std::size_t i = 0; i < host.size(); ++i) {
    different += widen(device[i], DType::f16) != host[i];
    largest = std::max(largest, std::abs(host[i]));
  }
  CHECK(different == 0);
  CHECK(largest <= 0.5);
  CHECK(largest > 0.49);
  double part[3];
  patterns.read(Fill::b, DType::f16, 1'999'998, 2'000'000, 3, part);
  CHECK(part[2] == host[2'000'002]);
}
