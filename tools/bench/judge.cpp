#include "judge.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "pattern.hpp"

namespace rankfold::tools {

double unit_in_last_place(double value, DType dtype) {
  const int digits = dtype == DType::f16 ? 11 : 8;
  const int least = dtype == DType::f16 ? -14 : -126;
  const int exponent = value == 0 ? least : std::max(std::ilogb(value), least);
  return std::ldexp(1.0, exponent - digits + 1);
}

bool RowJudge::add(std::int64_t row, const std::vector<double>& before,
                   const std::vector<double>& delta, const std::vector<std::uint16_t>& got) {
  double squares = 0;
  for (const double value : delta) squares += value * value;
  const double rms =
      std::sqrt(squares / static_cast<double>(std::max<std::size_t>(delta.size(), 1)));
  for (std::size_t i = 0; i < delta.size(); ++i) {
    const double exact = before[i] + delta[i];
    const double value = widen(got[i], dtype_);
    const double error = std::abs(value - exact);
    const double unit = unit_in_last_place(exact, dtype_);
    ++num_elements_;
    if (error <= unit) continue;
    ++num_beyond_;
    const std::string text =
        fmt::format("{}: row {}, column {}: got {}, exact {}", tensor_, row, i, value, exact);
    if (!(error <= unit + 1e-4 * rms)) {  // NaN, too
      failure_ = text;
      return false;
    }
    if (first_beyond_.empty()) first_beyond_ = text;
  }
  return true;
}

std::string RowJudge::failure() const {
  if (!failure_.empty()) return failure_;
  if (num_beyond_ <= std::max<std::int64_t>(1, num_elements_ / 1000)) return {};
  return fmt::format("{} of {} elements are off by more than one unit; {}", num_beyond_,
                     num_elements_, first_beyond_);
}

std::string NormJudge::failure() const {
  const double allowed = (1e-5 + 0x1p-24) * std::sqrt(norm_);
  const double error = std::sqrt(error_);
  if (error <= allowed) return {};
  return fmt::format("{}: off by {:.3g} (Frobenius), allowed {:.3g}", tensor_, error, allowed);
}

}  // namespace rankfold::tools
