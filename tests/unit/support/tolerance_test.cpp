// The judge under test: what it must let pass and what it must not.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "fill.hpp"
#include "tolerance.hpp"

namespace rankfold::testing {

namespace {

constexpr std::int64_t kRows = 40, kColumns = 100;

// Exact values of about 1 with deltas of about `delta`.
Expected make_expected(double delta) {
  Expected expected;
  expected.rows = kRows;
  expected.columns = kColumns;
  for (std::uint64_t i = 0; i < kRows * kColumns; ++i) {
    expected.exact.push_back(random_unit(7, 1, i) + 0.3);
    expected.delta.push_back(delta * random_unit(7, 2, i));
    expected.magnitude.push_back(0);
    expected.region.push_back(Region::computed);
  }
  return expected;
}

HostTensor rounded(const Expected& expected, DType dtype) {
  HostTensor got(dtype, {kRows, kColumns});
  for (std::int64_t i = 0; i < got.count(); ++i) {
    got.set(i, expected.exact[static_cast<std::size_t>(i)]);
  }
  return got;
}

void move_by_ulps(HostTensor& got, const Expected& expected, std::int64_t i, double ulps) {
  const double exact = expected.exact[static_cast<std::size_t>(i)];
  got.set(i, round_to(got.dtype, exact) + ulps * ulp_at(got.dtype, exact));
}

bool passes(const Expected& expected, const HostTensor& got, Tolerance tolerance = Tolerance::spec,
            double relative = 0) {
  return judge(expected, got, got, tolerance, relative).passed;
}

}  // namespace

TEST_CASE("16 bits: the rounded value and its neighbours pass") {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    const Expected expected = make_expected(1);
    HostTensor got = rounded(expected, dtype);
    CHECK(passes(expected, got));
    CHECK(passes(expected, got, Tolerance::exact));
    // One neighbour: less than 1 ulp off on the side where the exact value lies.
    for (std::int64_t i = 0; i < got.count(); ++i) {
      const double exact = expected.exact[static_cast<std::size_t>(i)];
      move_by_ulps(got, expected, i, got.get(i) < exact ? 1 : -1);
    }
    CHECK(passes(expected, got));
    CHECK_FALSE(passes(expected, got, Tolerance::exact));
  }
}

TEST_CASE("16 bits: one value off by 2 ulp fails") {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    const Expected expected = make_expected(1);
    for (const double ulps : {2.0, -2.0}) {
      HostTensor got = rounded(expected, dtype);
      move_by_ulps(got, expected, 1234, ulps);
      CHECK_FALSE(passes(expected, got));
      CHECK(judge(expected, got, got, Tolerance::spec).max_error > 1.4);
    }
  }
}

TEST_CASE("16 bits: a few may be off by 1 ulp and a little of the delta, more may not") {
  // f16 near 1: an ulp is 2^-10; deltas of 40 allow 1e-4 * 23 beside it.
  const Expected expected = make_expected(40);
  HostTensor got = rounded(expected, DType::f16);
  for (std::int64_t i = 0; i < 4; ++i) move_by_ulps(got, expected, i * 900, 2);
  CHECK(passes(expected, got));  // 4 of 4,000 are 0.1 %
  move_by_ulps(got, expected, 50, 2);
  CHECK_FALSE(passes(expected, got));
}

TEST_CASE("NaN, infinity and values that may not change") {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    Expected expected = make_expected(1);
    const HostTensor good = rounded(expected, dtype);
    for (const Tolerance tolerance : {Tolerance::spec, Tolerance::exact, Tolerance::relative}) {
      CHECK(passes(expected, good, tolerance, 1e-2));
      for (const double bad : {std::nan(""), HUGE_VAL, -HUGE_VAL}) {
        HostTensor got = good;
        got.set(17, bad);
        CHECK_FALSE(passes(expected, got, tolerance, 1e-2));
      }
    }
    expected.exact[17] = std::nan("");
    CHECK_FALSE(passes(expected, good));
    HostTensor got = good;
    got.set(17, std::nan(""));
    CHECK(passes(expected, got));

    expected.region[5] = Region::unchanged;
    HostTensor before = got;
    CHECK(judge(expected, before, got, Tolerance::spec).passed);
    before.bytes[5 * size_of(dtype)] ^= std::byte{1};
    CHECK_FALSE(judge(expected, before, got, Tolerance::spec).passed);

    expected.region[5] = Region::zero;
    CHECK_FALSE(judge(expected, got, got, Tolerance::spec).passed);
    got.set(5, 0.0);
    CHECK(judge(expected, got, got, Tolerance::spec).passed);
    got.set(5, -0.0);
    CHECK_FALSE(judge(expected, got, got, Tolerance::spec).passed);

    expected.region[5] = Region::unspecified;
    got.set(5, std::nan(""));
    CHECK(judge(expected, got, got, Tolerance::spec).passed);
  }
}

TEST_CASE("infinity and NaN are no numbers that a tolerance may cover") {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    const double nan = std::nan("");
    struct Pair {
      double exact, got;
      bool spec, exactly;
    };
    for (const Pair& pair : {Pair{HUGE_VAL, HUGE_VAL, true, true},
                             {HUGE_VAL, -HUGE_VAL, false, false},
                             {-HUGE_VAL, HUGE_VAL, false, false},
                             {HUGE_VAL, nan, true, false},
                             {HUGE_VAL, 1, false, false},
                             {nan, nan, true, true},
                             {nan, HUGE_VAL, false, false},
                             {nan, 1, false, false},
                             {1e39, HUGE_VAL, true, true},
                             {1e39, -HUGE_VAL, false, false},
                             {1e39, nan, false, false},
                             {1, HUGE_VAL, false, false}}) {
      CAPTURE(pair.exact);
      CAPTURE(pair.got);
      Expected expected = make_expected(1);
      HostTensor got = rounded(expected, dtype);
      expected.exact[17] = pair.exact;
      got.set(17, pair.got);
      CHECK(passes(expected, got) == pair.spec);
      CHECK(passes(expected, got, Tolerance::exact) == pair.exactly);
      // A delta that is not finite allows nothing more.
      expected.delta[17] = expected.magnitude[17] = -HUGE_VAL;
      CHECK(passes(expected, got) == pair.spec);
    }
  }
}

TEST_CASE("f32: an error like that of TF32 fails, float32 rounding passes") {
  Expected expected = make_expected(1);
  for (std::size_t i = 0; i < expected.exact.size(); ++i) expected.exact[i] = expected.delta[i];
  HostTensor got = rounded(expected, DType::f32);
  CHECK(passes(expected, got));
  for (std::int64_t i = 0; i < got.count(); ++i) {
    got.set(i, expected.exact[static_cast<std::size_t>(i)] * (1 + 0x1p-12));
  }
  CHECK_FALSE(passes(expected, got));
  for (std::int64_t i = 0; i < got.count(); ++i) {
    got.set(i, expected.exact[static_cast<std::size_t>(i)] * (1 + 0x1p-18));
  }
  CHECK(passes(expected, got));
}

TEST_CASE("f32: cancelling data is judged by the size of what cancels, and by nothing more") {
  Expected expected = make_expected(1e-3);
  for (std::size_t i = 0; i < expected.exact.size(); ++i) expected.exact[i] = expected.delta[i];
  HostTensor got = rounded(expected, DType::f32);
  for (std::int64_t i = 0; i < got.count(); ++i) got.set(i, got.get(i) + 4e-6);
  CHECK_FALSE(passes(expected, got));
  expected.magnitude.assign(expected.magnitude.size(), 1.0);  // allows 1e-5 an element
  CHECK(passes(expected, got));
  for (std::int64_t i = 0; i < got.count(); ++i) got.set(i, got.get(i) + 8e-6);
  CHECK_FALSE(passes(expected, got));
}

TEST_CASE("a relative tolerance is one of the Frobenius norm") {
  const Expected expected = make_expected(1);
  HostTensor got = rounded(expected, DType::f32);
  for (std::int64_t i = 0; i < got.count(); ++i) got.set(i, got.get(i) * 1.001);
  CHECK(passes(expected, got, Tolerance::relative, 1.01e-3));
  CHECK_FALSE(passes(expected, got, Tolerance::relative, 0.99e-3));
}

TEST_CASE("values beyond the largest of a dtype") {
  Expected expected = make_expected(1);
  expected.exact[3] = 70000;
  const HostTensor good = rounded(expected, DType::f16);
  CHECK(std::isinf(good.get(3)));
  CHECK(passes(expected, good));
  CHECK(passes(expected, good, Tolerance::exact));
  HostTensor got = good;
  got.set(3, 60000);
  CHECK_FALSE(passes(expected, got));
}

TEST_CASE("sizes that differ fail") {
  const Expected expected = make_expected(1);
  CHECK_FALSE(passes(expected, HostTensor(DType::f32, {kRows, kColumns - 1})));
  CHECK_FALSE(judge_bits(HostTensor(DType::f32, {2}), HostTensor(DType::f32, {3}), "h").passed);
  CHECK_FALSE(judge_bits(HostTensor(DType::f32, {2}), HostTensor(DType::f16, {2}), "h").passed);
}

}  // namespace rankfold::testing
