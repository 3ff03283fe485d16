// Data for calls: counter-based, so that a value depends only on seed, tensor and index, not on the
// shape of anything else or on the order of filling.
#pragma once

#include <cstdint>
#include <string>

#include "host_call.hpp"
#include "oracle.hpp"

namespace rankfold::testing {

/// SplitMix64 of (seed, stream, index): Steele, Lea, Flood, OOPSLA 2014.
std::uint64_t random_bits(std::uint64_t seed, std::uint64_t stream, std::uint64_t index) noexcept;
/// In [-1, 1), a multiple of 2^-24.
double random_unit(std::uint64_t seed, std::uint64_t stream, std::uint64_t index) noexcept;
/// In [low, high].
std::int64_t random_between(std::uint64_t seed, std::uint64_t stream, std::uint64_t index,
                            std::int64_t low, std::int64_t high) noexcept;

/// RANKFOLD_TEST_SEED, or 1. A value that is no number is an error of the caller: `ok` is false.
std::uint64_t default_seed(bool* ok = nullptr);

enum class Fill {
  exact,       ///< small integers: every right answer has one bit pattern, ties among them
  random,      ///< uniform; sums of about 1
  cancelling,  ///< terms that cancel to about 1/64: a rank vector in 16 bits loses the answer
};

/// Numbers of the tensors of a call, for random_bits and for names in messages.
enum class TensorId : std::uint64_t {
  x = 1,
  y = 2,
  h = 3,
  ids = 4,
  dy = 5,
  dx = 6,
  a = 0x100000,
  b = 0x200000,
  bias = 0x300000,
  da = 0x400000,
  db = 0x500000,
  dbias = 0x600000
};

/// Fills the tensors of a call, which have their sizes and dtypes; ranks and scalings are set.
/// Outputs that are overwritten hold NaN. `x_scale` multiplies x (not exact).
/// Returns the oracle of the filled call.
OracleResult fill_call(HostCall& call, Fill fill, std::uint64_t seed, double x_scale = 1.0);

/// Empty, or which condition of the exact fill the call breaks (fill.cpp names them).
std::string broken_exact_condition(const HostCall& call, const OracleResult& oracle);

/// Elements of y whose exact value lies in the middle of two neighbours, by the way they must go.
struct Ties {
  std::int64_t to_larger = 0;
  std::int64_t to_smaller = 0;
};
Ties count_ties(const HostCall& call, const OracleResult& oracle);

}  // namespace rankfold::testing
