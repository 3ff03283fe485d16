// Data for backward and backward_embedding.
#include <algorithm>
#include <cmath>
#include <limits>

#include "fill_parts.hpp"

namespace rankfold::testing {

OracleResult fill_backward(HostCall& call, Fill fill, std::uint64_t seed) {
  const auto poison = [](HostTensor& tensor) {
    fill_tensor(tensor, [](std::int64_t) { return std::numeric_limits<double>::quiet_NaN(); });
  };
  const auto clear = [](HostTensor& tensor) {
    fill_tensor(tensor, [](std::int64_t) { return 0.0; });
  };
  const Source dy = source(seed, TensorId::dy);
  // Sums over many rows of exact numbers stay exact as long as most of dy is zero.
  const std::int64_t every = std::max<std::int64_t>(1, call.dy.rows() / 64);
  fill_tensor(call.dy, [&](std::int64_t i) {
    return fill == Fill::exact ? dy.integer(i, 2, every) : dy.unit(i);
  });
  poison(call.ds);
  clear(call.dx);
  for (HostGradient& gradient : call.gradients) {
    for (HostTensor* tensor : {&gradient.da, &gradient.db, &gradient.dbias}) clear(*tensor);
  }
  // What is added does not depend on what stands there: computed with zeros, then chosen to it.
  OracleResult oracle = compute(call);
  const double grid = smallest_factor(call);
  if (call.dx.given()) {
    fill_before(call.dx, call.options.y_mode, fill, source(seed, TensorId::dx), grid, oracle.dx);
  }
  for (std::size_t e = 0; e < call.gradients.size(); ++e) {
    const auto fill_one = [&](HostTensor& tensor, TensorId id, Expected& expected) {
      if (!tensor.given()) return;
      fill_before(tensor, call.gradient_mode, fill, source(seed, id, e), grid, expected);
    };
    fill_one(call.gradients[e].da, TensorId::da, oracle.da[e]);
    fill_one(call.gradients[e].db, TensorId::db, oracle.db[e]);
    fill_one(call.gradients[e].dbias, TensorId::dbias, oracle.dbias[e]);
  }
  return oracle;
}

}  // namespace rankfold::testing
