#include "tolerance.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace rankfold::testing {

namespace {

std::string place(const Expected& expected, std::size_t index) {
  char text[96];
  const auto at = static_cast<std::int64_t>(index);
  std::snprintf(text, sizeof text, "row %lld, column %lld",
                static_cast<long long>(at / std::max<std::int64_t>(expected.columns, 1)),
                static_cast<long long>(at % std::max<std::int64_t>(expected.columns, 1)));
  return text;
}

std::string compare_text(const char* what, const Expected& expected, std::size_t index,
                         double exact, double got) {
  char text[256];
  std::snprintf(text, sizeof text, "%s at %s: got %.9g, exact %.9g", what,
                place(expected, index).c_str(), got, exact);
  return text;
}

Judgement failed(std::string message, double error) { return {false, std::move(message), error}; }

// Whether a value is finite, infinite or NaN where it should be. No tolerance covers this: a delta
// that is not finite would make one that allows everything. NaN may stand for infinity, which a
// method that splits numbers into parts turns into it.
bool right_kind(DType dtype, double exact, double value) {
  if (std::isnan(exact)) return std::isnan(value);
  if (std::isinf(exact)) return std::isnan(value) || value == exact;
  return std::isfinite(value) || value == round_to(dtype, exact);  // infinity beyond the largest
}

// What needs no tolerance: sizes, untouched elements, and values that are not finite.
Judgement judge_regions(const Expected& expected, const HostTensor& before, const HostTensor& got) {
  const std::size_t count = expected.exact.size();
  if (static_cast<std::size_t>(got.count()) != count) {
    return failed("the output has " + std::to_string(got.count()) + " elements, expected " +
                      std::to_string(count),
                  INFINITY);
  }
  for (std::size_t i = 0; i < count; ++i) {
    const auto at = static_cast<std::int64_t>(i);
    const double value = got.get(at);
    switch (expected.region[i]) {
      case Region::unspecified:
        break;
      case Region::unchanged:
        if (!got.same_bits(at, before)) {
          return failed(compare_text("changed although nothing may touch it", expected, i,
                                     before.get(at), value),
                        INFINITY);
        }
        break;
      case Region::zero:
        if (value != 0 || std::signbit(value)) {
          return failed(compare_text("not zero when overwriting", expected, i, 0.0, value),
                        INFINITY);
        }
        break;
      case Region::computed:
        if (!right_kind(got.dtype, expected.exact[i], value)) {
          const char* const what = std::isnan(value)   ? "NaN"
                                   : std::isinf(value) ? "infinite"
                                                       : "finite";
          return failed(compare_text(what, expected, i, expected.exact[i], value), INFINITY);
        }
        break;
    }
  }
  return {};
}

bool is_judged(const Expected& expected, std::size_t i) {
  return expected.region[i] == Region::computed && std::isfinite(expected.exact[i]);
}

Judgement judge_exact(const Expected& expected, const HostTensor& got) {
  for (std::size_t i = 0; i < expected.exact.size(); ++i) {
    if (expected.region[i] != Region::computed || std::isnan(expected.exact[i])) continue;
    const double value = got.get(static_cast<std::int64_t>(i));
    const double wanted = round_to(got.dtype, expected.exact[i]);
    // A sum that cancels to zero may carry either sign.
    if (value != wanted) {
      const double ulps = std::fabs(value - wanted) / ulp_at(got.dtype, wanted);
      return failed(
          compare_text("not the exact value rounded once", expected, i, expected.exact[i], value),
          ulps);
    }
  }
  return {};
}

std::vector<double> row_rms(const Expected& expected) {
  std::vector<double> rms(static_cast<std::size_t>(expected.rows), 0.0);
  const auto columns = static_cast<std::size_t>(expected.columns);
  for (std::size_t row = 0; row < rms.size(); ++row) {
    double sum = 0;
    for (std::size_t i = row * columns; i < (row + 1) * columns; ++i) {
      if (is_judged(expected, i)) sum += expected.delta[i] * expected.delta[i];
    }
    rms[row] = columns == 0 ? 0.0 : std::sqrt(sum / static_cast<double>(columns));
  }
  return rms;
}

Judgement judge_16_bit(const Expected& expected, const HostTensor& got) {
  const std::vector<double> rms = row_rms(expected);
  std::size_t judged = 0, outliers = 0, worst = 0;
  double max_error = 0;
  for (std::size_t i = 0; i < expected.exact.size(); ++i) {
    if (!is_judged(expected, i)) continue;
    ++judged;
    const double exact = expected.exact[i];
    const double value = got.get(static_cast<std::int64_t>(i));
    if (value == round_to(got.dtype, exact)) continue;  // infinity beyond the largest, too
    const double ulp = ulp_at(got.dtype, exact);
    const double error = std::fabs(value - exact);
    if (error > kTolerances.ulps * ulp) ++outliers;
    if (error / ulp > max_error) {
      max_error = error / ulp;
      worst = i;
    }
    const double row_delta = rms[i / static_cast<std::size_t>(expected.columns)];
    if (error > kTolerances.ulps * ulp + kTolerances.row_delta * row_delta) {
      return failed(
          compare_text("more than 1 ulp + 1e-4 rms(row's delta)", expected, i, exact, value) +
              " (" + std::to_string(error / ulp) + " ulp)",
          error / ulp);
    }
  }
  const double allowed = std::max(kTolerances.min_outliers,
                                  kTolerances.outlier_fraction * static_cast<double>(judged));
  if (static_cast<double>(outliers) > allowed) {
    return failed(std::to_string(outliers) + " of " + std::to_string(judged) +
                      " elements are more than 1 ulp off, allowed " + std::to_string(allowed) +
                      "; " +
                      compare_text("the worst", expected, worst, expected.exact[worst],
                                   got.get(static_cast<std::int64_t>(worst))),
                  max_error);
  }
  return {true, "", max_error};
}

struct Norms {
  double error = 0, exact = 0, delta = 0, magnitude = 0;
  std::size_t worst = 0;
};

Norms norms(const Expected& expected, const HostTensor& got) {
  Norms sums;
  double worst = -1;
  for (std::size_t i = 0; i < expected.exact.size(); ++i) {
    const double value = got.get(static_cast<std::int64_t>(i));
    if (!is_judged(expected, i) || std::isinf(value)) continue;  // infinity is right or refused
    const double error = std::fabs(value - expected.exact[i]);
    if (error > worst) {
      worst = error;
      sums.worst = i;
    }
    sums.error += error * error;
    sums.exact += expected.exact[i] * expected.exact[i];
    sums.delta += expected.delta[i] * expected.delta[i];
    // An input that is infinite must not allow everything.
    if (std::isfinite(expected.magnitude[i])) {
      sums.magnitude += expected.magnitude[i] * expected.magnitude[i];
    }
  }
  sums.error = std::sqrt(sums.error);
  sums.exact = std::sqrt(sums.exact);
  sums.delta = std::sqrt(sums.delta);
  sums.magnitude = std::sqrt(sums.magnitude);
  return sums;
}

Judgement judge_frobenius(const Expected& expected, const HostTensor& got, double allowed,
                          const Norms& sums) {
  const double share = sums.error == 0 ? 0.0 : sums.error / allowed;
  if (sums.error <= allowed) return {true, "", share};
  char text[160];
  std::snprintf(text, sizeof text, "Frobenius error %.3g, allowed %.3g; ", sums.error, allowed);
  return failed(text + compare_text("the worst", expected, sums.worst, expected.exact[sums.worst],
                                    got.get(static_cast<std::int64_t>(sums.worst))),
                share);
}

}  // namespace

Judgement judge(const Expected& expected, const HostTensor& before, const HostTensor& got,
                Tolerance tolerance, double relative_tolerance) {
  if (Judgement regions = judge_regions(expected, before, got); !regions.passed) return regions;
  if (tolerance == Tolerance::exact) return judge_exact(expected, got);
  if (tolerance == Tolerance::spec && (got.dtype == DType::f16 || got.dtype == DType::bf16)) {
    return judge_16_bit(expected, got);
  }
  const Norms sums = norms(expected, got);
  const double allowed = tolerance == Tolerance::relative
                             ? relative_tolerance * sums.exact
                             : kTolerances.f32_delta * std::max(sums.delta, sums.magnitude) +
                                   kTolerances.f32_exact * sums.exact;
  Judgement judgement = judge_frobenius(expected, got, allowed, sums);
  if (tolerance == Tolerance::relative && sums.exact > 0) {
    judgement.max_error = sums.error / sums.exact;
  }
  return judgement;
}

Judgement judge_bits(const HostTensor& expected, const HostTensor& got, const std::string& name) {
  if (expected.dtype != got.dtype || expected.count() != got.count()) {
    return failed(name + " has another dtype or size than expected", INFINITY);
  }
  for (std::int64_t i = 0; i < expected.count(); ++i) {
    if (got.same_bits(i, expected)) continue;
    char text[160];
    std::snprintf(text, sizeof text, "%s[%lld] is %.9g, expected %.9g bit for bit", name.c_str(),
                  static_cast<long long>(i), got.get(i), expected.get(i));
    return failed(text, INFINITY);
  }
  return {};
}

}  // namespace rankfold::testing
