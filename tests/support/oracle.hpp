// The exact answer: serial float64 loops, written from the contract and from no backend.
#pragma once

#include <cstdint>
#include <vector>

#include "host_call.hpp"

namespace rankfold::testing {

/// What the contract says of an element of an output.
enum class Region : std::uint8_t {
  unspecified,  ///< of h: rows without adapter, columns past the rank
  unchanged,    ///< its bits from before
  zero,         ///< +0 (overwriting, without adapter)
  computed,
};

/// An output, row-major; all vectors have rows * columns elements.
struct Expected {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::vector<double> exact;      ///< before the one rounding
  std::vector<double> delta;      ///< what was added to y; h itself for h
  std::vector<double> magnitude;  ///< f |x| |A|^T |B|^T / sqrt(in * rank): scale of cancelling data
  std::vector<Region> region;
};

struct OracleResult {
  Expected h;  ///< where the operation makes it
  Expected y;
  Expected dx, ds;                      ///< of backward, where asked for
  std::vector<Expected> da, db, dbias;  ///< [entries], likewise; of a shared da: the first's alone
  double max_h_sum = 0;                 ///< largest sum |x| |A| of an element of h
  double max_y_sum = 0;                 ///< largest sum |h| |B| of an element of y
  /// Largest sum of magnitudes behind an element of dx, ds or a gradient.
  double max_gradient_sum = 0;
};

/// Float64 of the given inputs. Reads only what the contract lets an operation read.
OracleResult compute(const HostCall& call);

}  // namespace rankfold::testing
