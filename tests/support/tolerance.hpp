// The judge: how far an output may be from the exact value. The only place that knows tolerances.
#pragma once

#include <string>

#include "host_call.hpp"
#include "oracle.hpp"

namespace rankfold::testing {

/// The numbers of the contract.
struct ToleranceTable {
  double ulps = 1.0;  ///< f16, bf16: for all but outlier_fraction of the elements
  double outlier_fraction = 1e-3;
  double min_outliers = 1.0;
  double row_delta = 1e-4;     ///< f16, bf16: times rms(row's delta), beside 1 ulp, for all
  double f32_delta = 1e-5;     ///< f32: times ||delta||_F
  double f32_exact = 0x1p-24;  ///< f32: times ||exact||_F
};
inline constexpr ToleranceTable kTolerances{};

struct Judgement {
  bool passed = true;
  std::string message;  ///< what is wrong, where; empty when passed
  double max_error =
      0;  ///< f16, bf16: in ulp; f32: share of the allowed error; relative: the error
};

/// Judges `got` by the contract. `before` holds the bits of elements that must be unchanged.
/// relative_tolerance is used with Tolerance::relative alone.
Judgement judge(const Expected& expected, const HostTensor& before, const HostTensor& got,
                Tolerance tolerance, double relative_tolerance = 0);

/// Bits equal, element for element; `name` stands in the message.
Judgement judge_bits(const HostTensor& expected, const HostTensor& got, const std::string& name);

}  // namespace rankfold::testing
