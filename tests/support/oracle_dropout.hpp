// Dropout for the oracle, written from the contract and apart from any backend.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "rankfold/arguments.hpp"

namespace rankfold::testing {

/// Ten rounds of Philox4x32 (Salmon et al., SC 2011).
std::array<std::uint32_t, 4> philox4x32_10(std::array<std::uint32_t, 4> counter,
                                           std::array<std::uint32_t, 2> key) noexcept;

/// By what elements [0, columns) of a row of x are multiplied for one slice: 0 or float32
/// 1 / (1 - p). Row and column enter the counter modulo 2^32.
std::vector<double> dropout_factors(const Dropout& dropout, std::int64_t row, std::int64_t slice,
                                    std::int64_t columns);

}  // namespace rankfold::testing
