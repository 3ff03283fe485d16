// What the files of fills share.
#pragma once

#include <cstdint>

#include "fill.hpp"

namespace rankfold::testing {

struct Source {
  std::uint64_t seed;
  std::uint64_t stream;
  double unit(std::int64_t i) const {
    return random_unit(seed, stream, static_cast<std::uint64_t>(i));
  }
  /// An integer in [-limit, limit], zero unless one of `one_in` draws hits.
  double integer(std::int64_t i, std::int64_t limit, std::int64_t one_in) const {
    const auto at = static_cast<std::uint64_t>(i);
    if (one_in > 1 && random_between(seed, stream ^ 0x5a5au, at, 0, one_in - 1) != 0) return 0;
    return static_cast<double>(random_between(seed, stream, at, -limit, limit));
  }
};

inline Source source(std::uint64_t seed, TensorId id, std::size_t entry = 0) {
  return {seed, static_cast<std::uint64_t>(id) + entry};
}

template <class Value>
void fill_tensor(HostTensor& tensor, Value value) {
  const std::int64_t count = tensor.count();
  for (std::int64_t i = 0; i < count; ++i) tensor.set(i, value(i));
}

/// A, B and bias of all entries, and ids.
void fill_weights(HostCall& call, Fill fill, std::uint64_t seed);
/// x and the h that an operation reads, NaN where it may not look.
void fill_inputs(HostCall& call, Fill fill, std::uint64_t seed, double x_scale);
/// The smallest step of any f.
double smallest_factor(const HostCall& call);

/// Chooses what stands in an output before the call by what is added to it, and adds it to the
/// exact values. Overwriting calls get NaN.
void fill_before(HostTensor& output, YMode mode, Fill fill, const Source& values, double grid,
                 Expected& expected);

/// The same for backward and backward_embedding.
OracleResult fill_backward(HostCall& call, Fill fill, std::uint64_t seed);

}  // namespace rankfold::testing
