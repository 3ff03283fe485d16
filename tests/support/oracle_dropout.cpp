#include "oracle_dropout.hpp"

#include <cmath>

namespace rankfold::testing {

std::array<std::uint32_t, 4> philox4x32_10(std::array<std::uint32_t, 4> counter,
                                           std::array<std::uint32_t, 2> key) noexcept {
  constexpr std::array<std::uint64_t, 2> kFactors = {0xd2511f53u, 0xcd9e8d57u};
  constexpr std::array<std::uint32_t, 2> kSteps = {0x9e3779b9u, 0xbb67ae85u};
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t even = kFactors[0] * counter[0];
    const std::uint64_t odd = kFactors[1] * counter[2];
    const auto high = [](std::uint64_t value) { return static_cast<std::uint32_t>(value >> 32); };
    const auto low = [](std::uint64_t value) { return static_cast<std::uint32_t>(value); };
    counter = {high(odd) ^ counter[1] ^ key[0], low(odd), high(even) ^ counter[3] ^ key[1],
               low(even)};
    key = {key[0] + kSteps[0], key[1] + kSteps[1]};
  }
  return counter;
}

std::vector<double> dropout_factors(const Dropout& dropout, std::int64_t row, std::int64_t slice,
                                    std::int64_t columns) {
  std::vector<double> factors(static_cast<std::size_t>(columns), 1.0);
  if (dropout.p == 0.0f) return factors;
  const double threshold = std::floor(std::ldexp(static_cast<double>(dropout.p), 32));
  const double kept = 1.0f / (1.0f - dropout.p);  // in float32
  std::array<std::uint32_t, 4> block{};
  for (std::int64_t column = 0; column < columns; ++column) {
    if (column % 4 == 0) {
      block =
          philox4x32_10({static_cast<std::uint32_t>(column / 4),
                         static_cast<std::uint32_t>(static_cast<std::uint64_t>(row) +
                                                    static_cast<std::uint64_t>(dropout.row_base)),
                         static_cast<std::uint32_t>(slice), 0},
                        {static_cast<std::uint32_t>(dropout.seed),
                         static_cast<std::uint32_t>(dropout.seed >> 32)});
    }
    const bool keeps = block[static_cast<std::size_t>(column % 4)] >= threshold;
    factors[static_cast<std::size_t>(column)] = keeps ? kept : 0.0;
  }
  return factors;
}

}  // namespace rankfold::testing
