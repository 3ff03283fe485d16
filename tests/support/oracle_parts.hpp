// What the oracle's files share.
#pragma once

#include <vector>

#include "oracle.hpp"

namespace rankfold::testing {

/// All elements 0 and of one region.
Expected make_expected(std::int64_t rows, std::int64_t columns, Region region);

/// Weights of an entry, widened once.
struct Weights {
  bool touched = false;  ///< rank above 0
  std::int32_t rank = 0;
  std::int64_t in_limit = 0;
  std::vector<double> a, b, bias;
};
std::vector<Weights> widen_entries(const HostCall& call);

/// The rank vector of one row and one entry, with the sums of magnitudes.
struct RankVector {
  std::vector<double> value, sum;
};

/// One row of x as A sees it for a slice: with dropout. Dropped elements are not there at all, so
/// that whatever they hold is multiplied by nothing.
struct XRow {
  std::vector<double> value;
  std::vector<bool> kept;
};
XRow dropped_row(const HostCall& call, const std::vector<double>& x, std::int64_t row,
                 std::int64_t x_row, std::int64_t slice);

RankVector shrink_row(const Weights& weights, const XRow& x);
/// An id outside [0, in_limit) gives zeros.
RankVector gather_row(const HostCall& call, const Weights& weights, std::int64_t row);
/// Of the h that the call is given.
RankVector given_row(const HostCall& call, const Weights& weights, const std::vector<double>& h,
                     std::int64_t row, std::int64_t slice);

/// Number of terms behind an element of h: what the scale of cancelling data is divided by.
double terms_of_h(const HostCall& call);

/// backward and backward_embedding.
OracleResult compute_backward(const HostCall& call);

}  // namespace rankfold::testing
