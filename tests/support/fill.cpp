#include "fill.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "fill_parts.hpp"

namespace rankfold::testing {

std::uint64_t random_bits(std::uint64_t seed, std::uint64_t stream, std::uint64_t index) noexcept {
  const auto mix = [](std::uint64_t z) {
    z += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  };
  return mix(mix(mix(seed) ^ stream) ^ index);
}

double random_unit(std::uint64_t seed, std::uint64_t stream, std::uint64_t index) noexcept {
  return static_cast<double>(random_bits(seed, stream, index) >> 39) * 0x1p-24 - 1.0;
}

std::int64_t random_between(std::uint64_t seed, std::uint64_t stream, std::uint64_t index,
                            std::int64_t low, std::int64_t high) noexcept {
  const auto width = static_cast<std::uint64_t>(high - low + 1);
  return low + static_cast<std::int64_t>(random_bits(seed, stream, index) % width);
}

std::uint64_t default_seed(bool* ok) {
  std::uint64_t seed = 1;
  bool good = true;
  if (const char* text = std::getenv("RANKFOLD_TEST_SEED"); text != nullptr && *text != '\0') {
    const char* const end = text + std::strlen(text);
    const auto parsed = std::from_chars(text, end, seed);
    good = parsed.ec == std::errc{} && parsed.ptr == end;
    if (!good) seed = 1;
  }
  if (ok != nullptr) *ok = good;
  return seed;
}

namespace {

// Integers so sparse that the sums of the contract hold: about 512 terms an element of h.
void fill_exact_weights(HostCall& call, std::uint64_t seed) {
  for (std::size_t e = 0; e < call.entries.size(); ++e) {
    HostEntry& entry = call.entries[e];
    const std::int64_t every_a =
        has_ids(call.op) ? 1 : std::max<std::int64_t>(1, call.shape.in / 512);
    const std::int64_t every_b = std::max(1, entry.rank / 64);
    const Source a = source(seed, TensorId::a, e), b = source(seed, TensorId::b, e),
                 bias = source(seed, TensorId::bias, e);
    const std::int64_t limit_a = has_ids(call.op) ? 40 : 2;
    fill_tensor(entry.a, [&](std::int64_t i) { return a.integer(i, limit_a, every_a); });
    fill_tensor(entry.b, [&](std::int64_t i) { return b.integer(i, 2, every_b); });
    fill_tensor(entry.bias, [&](std::int64_t i) { return bias.integer(i, 8, 1); });
  }
}

void fill_random_weights(HostCall& call, std::uint64_t seed, bool cancelling) {
  const double a_scale =
      has_ids(call.op) ? 1.0
                       : 1.0 / std::sqrt(std::max<double>(1, static_cast<double>(call.shape.in)));
  for (std::size_t e = 0; e < call.entries.size(); ++e) {
    HostEntry& entry = call.entries[e];
    const Source a = source(seed, TensorId::a, e), b = source(seed, TensorId::b, e),
                 bias = source(seed, TensorId::bias, e);
    const double b_scale = 1.0 / std::sqrt(std::max(1, entry.rank));
    fill_tensor(entry.a, [&](std::int64_t i) { return 2 * a_scale * a.unit(i); });
    fill_tensor(entry.b, [&](std::int64_t i) { return 2 * b_scale * b.unit(i); });
    fill_tensor(entry.bias, [&](std::int64_t i) { return 0.5 * bias.unit(i); });
    if (!cancelling) continue;
    // Every second row of A is almost the negative of the one before, with the same column of B.
    const std::int64_t in = entry.a.columns(), rank = entry.rank;
    for (std::int64_t j = 1; entry.a.given() && j < rank; j += 2) {
      for (std::int64_t k = 0; k < in; ++k) {
        const double above = entry.a.get((j - 1) * in + k);
        entry.a.set(j * in + k, (k + j) % 16 == 1 ? -above * 1.0625 : -above);
      }
    }
    for (std::int64_t o = 0; entry.b.given() && o < entry.b.rows(); ++o) {
      for (std::int64_t j = 1; j < rank; j += 2) {
        entry.b.set(o * rank + j, entry.b.get(o * rank + j - 1));
      }
    }
  }
}

void fill_ids(HostCall& call, std::uint64_t seed) {
  const Source ids = source(seed, TensorId::ids);
  fill_tensor(call.ids, [&](std::int64_t i) {
    return static_cast<double>(random_between(ids.seed, ids.stream, static_cast<std::uint64_t>(i),
                                              0, std::max<std::int64_t>(0, call.shape.in - 1)));
  });
}

// NaN where the operation may not look: h of rows without adapter and columns past the rank.
void poison_unread_h(HostCall& call) {
  const std::vector<RowRoute> routes = routes_of(call);
  const std::int64_t columns = call.h.columns();
  for (std::int64_t row = 0; row < call.h.rows(); ++row) {
    const RowRoute& route = routes[static_cast<std::size_t>(row)];
    for (std::int64_t column = 0; column < columns; ++column) {
      const std::int64_t slice = column / call.shape.max_rank;
      const bool read =
          route.slot >= 0 && column % call.shape.max_rank <
                                 call.entries[static_cast<std::size_t>(entry_index(
                                                  call.shape, route.slot, route.expert, slice))]
                                     .rank;
      if (!read) call.h.set(row * columns + column, std::numeric_limits<double>::quiet_NaN());
    }
  }
}

}  // namespace

double smallest_factor(const HostCall& call) {
  double smallest = 1.0;
  for (const HostEntry& entry : call.entries) {
    if (entry.rank > 0) smallest = std::min<double>(smallest, std::fabs(entry.scaling));
  }
  double weight = 1.0;
  for (const float value : call.addressing.token_weights) {
    weight = std::min<double>(weight, std::fabs(value));
  }
  double row_weight = 1.0;
  for (const float value : call.experts.row_weights) {
    row_weight = std::min<double>(row_weight, std::fabs(value));
  }
  return smallest * weight * row_weight;
}

namespace {

// y so that y + delta lies in the middle of two neighbours: with L the lowest bit of delta, sums
// are odd multiples of L where the distance of neighbours is 2 L. 0 where that does not fit.
double tie_y(const Source& source, std::int64_t i, DType dtype, double delta) {
  if (delta == 0) return 0;
  double lowest = std::ldexp(1.0, std::ilogb(delta));
  while (std::fmod(delta, lowest) != 0) lowest /= 2;
  const double binade = lowest * (dtype == DType::f16 ? 2048 : 256);
  for (std::int64_t attempt = 0; attempt < 8; ++attempt) {
    const double place = 1.5 + 0.4 * source.unit(i + ((attempt + 1) << 40));
    const double odd = 2 * std::floor(place * binade / (2 * lowest)) + 1;
    const double y = (attempt % 2 == 0 ? odd : -odd) * lowest - delta;
    if (round_to(dtype, y) == y && std::isfinite(round_to(dtype, y + delta)) &&
        is_tie(dtype, y + delta)) {
      return y;
    }
  }
  return 0;
}

// Multiples of the grid; every third makes a tie where it can.
double exact_y(const Source& source, std::int64_t i, double grid, DType dtype, double delta) {
  const double tie = i % 3 == 0 && dtype != DType::f32 ? tie_y(source, i, dtype, delta) : 0;
  return tie != 0 ? tie : source.integer(i, 64, 1) * grid + 0.0;
}

}  // namespace

void fill_before(HostTensor& output, YMode mode, Fill fill, const Source& values, double grid,
                 Expected& expected) {
  if (mode == YMode::overwrite) {
    fill_tensor(output, [](std::int64_t) { return std::numeric_limits<double>::quiet_NaN(); });
    return;
  }
  double sum = 0;
  for (const double delta : expected.delta) sum += delta * delta;
  const double rms = sum > 0 ? std::sqrt(sum / static_cast<double>(expected.delta.size())) : 1.0;
  for (std::int64_t i = 0; i < output.count(); ++i) {
    const double delta = expected.delta[static_cast<std::size_t>(i)];
    if (fill == Fill::exact) {
      output.set(i, exact_y(values, i, grid, output.dtype, delta));
      continue;
    }
    // Mostly of delta's sign: where y takes delta away almost entirely, the float32 sums of any
    // backend are more than an ulp of the rest off, and only a few elements may be.
    const bool free = fill == Fill::random && i % 4 == 0;
    const double value = rms * values.unit(i);
    output.set(i, free ? value : std::copysign(value, delta));
  }
  for (std::int64_t i = 0; i < output.count(); ++i) {
    const auto at = static_cast<std::size_t>(i);
    if (expected.region[at] == Region::computed) {
      expected.exact[at] = output.get(i) + expected.delta[at];
    }
  }
}

void fill_weights(HostCall& call, Fill fill, std::uint64_t seed) {
  if (fill == Fill::exact) {
    fill_exact_weights(call, seed);
  } else {
    fill_random_weights(call, seed, fill == Fill::cancelling);
  }
  fill_ids(call, seed);
}

void fill_inputs(HostCall& call, Fill fill, std::uint64_t seed, double x_scale) {
  const Source x = source(seed, TensorId::x), h = source(seed, TensorId::h);
  if (fill == Fill::exact) {
    fill_tensor(call.x, [&](std::int64_t i) { return x.integer(i, 2, 1); });
    fill_tensor(call.h, [&](std::int64_t i) { return h.integer(i, 50, 1); });
  } else {
    fill_tensor(call.x, [&](std::int64_t i) { return x_scale * x.unit(i); });
    fill_tensor(call.h, [&](std::int64_t i) {
      // Pairs that almost cancel, as the weights' pairs do.
      const std::int64_t j = fill == Fill::cancelling ? i % call.h.columns() : 0;
      const double base = x_scale * h.unit(i - j % 2);
      return j % 2 == 0 ? base : -base * (1 + 0x1p-6 * h.unit(i));
    });
  }
  if (reads_h(call.op)) poison_unread_h(call);
}

OracleResult fill_call(HostCall& call, Fill fill, std::uint64_t seed, double x_scale) {
  fill_weights(call, fill, seed);
  fill_inputs(call, fill, seed, x_scale);
  if (is_backward(call.op)) return fill_backward(call, fill, seed);
  if (makes_h(call.op)) {
    fill_tensor(call.h, [](std::int64_t) { return std::numeric_limits<double>::quiet_NaN(); });
  }
  if (!makes_y(call.op)) return compute(call);
  // The delta does not depend on y: computed with zeros, then y is chosen to it.
  fill_tensor(call.y, [](std::int64_t) { return 0.0; });
  OracleResult oracle = compute(call);
  fill_before(call.y, call.options.y_mode, fill, source(seed, TensorId::y), smallest_factor(call),
              oracle.y);
  return oracle;
}

namespace {

// Empty, or what of an output is not exact in float32 or overflows it.
std::string broken_sum(const Expected& expected, DType dtype) {
  for (std::size_t i = 0; i < expected.exact.size(); ++i) {
    if (expected.region[i] != Region::computed) continue;
    if (round_to(DType::f32, expected.exact[i]) != expected.exact[i]) {
      return "a sum is not exact in float32";
    }
    if (std::isinf(round_to(dtype, expected.exact[i]))) return "a sum overflows the output";
  }
  return {};
}

}  // namespace

std::string broken_exact_condition(const HostCall& call, const OracleResult& oracle) {
  if (oracle.max_h_sum > 0x1p15) return "sum |x||A| exceeds 2^15";
  if (oracle.max_y_sum > 0x1p23) return "partial sums of h B^T exceed 2^23";
  const auto power_of_two = [](double value) {
    int exponent = 0;
    return std::frexp(std::fabs(value), &exponent) == 0.5 && exponent > -4;
  };
  for (const HostEntry& entry : call.entries) {
    if (entry.rank > 0 && !power_of_two(entry.scaling))
      return "a scaling is no power of two >= 2^-4";
  }
  for (const float weight : call.addressing.token_weights) {
    if (!power_of_two(weight)) return "a token weight is no power of two >= 2^-4";
  }
  for (const float weight : call.experts.row_weights) {
    if (!power_of_two(weight)) return "a row weight is no power of two >= 2^-4";
  }
  // In units of the smallest f, with room for what stood there before.
  if (oracle.max_gradient_sum / smallest_factor(call) > 0x1p23) {
    return "partial sums of gradients exceed 2^23";
  }
  std::string broken = broken_sum(oracle.y, call.y.dtype);
  if (broken.empty()) broken = broken_sum(oracle.dx, call.dx.dtype);
  for (const auto* gradients : {&oracle.da, &oracle.db, &oracle.dbias}) {
    for (const Expected& gradient : *gradients) {
      if (broken.empty()) broken = broken_sum(gradient, DType::f32);
    }
  }
  return broken;
}

Ties count_ties(const HostCall& call, const OracleResult& oracle) {
  Ties ties;
  for (std::size_t i = 0; i < oracle.y.exact.size(); ++i) {
    const double exact = oracle.y.exact[i];
    if (oracle.y.region[i] != Region::computed || call.y.dtype == DType::f32) continue;
    if (!is_tie(call.y.dtype, exact)) continue;
    ++(std::fabs(round_to(call.y.dtype, exact)) > std::fabs(exact) ? ties.to_larger
                                                                   : ties.to_smaller);
  }
  return ties;
}

}  // namespace rankfold::testing
