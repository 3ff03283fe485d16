// A small product of float32 matrices that stand in the cache: what the gradients are made of.
#pragma once

#include <cstdint>

#include "ahead.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace reference {

/// c[i, j] = or += sum over k of p[i, k] q[k, j]. The sum starts at zero, runs upwards in k by
/// fused multiply-add, and is added to c once. Columns are computed in whole vectors of eight: q
/// must be readable, and c writable, up to the next multiple of eight. p is never read past `rows`
/// and `depth`.
struct Product {
  const float* p;  ///< p[i, k] is at p + i * p_row + k * p_step, one of which is 1
  std::int64_t p_row;
  std::int64_t p_step;
  const float* q;
  std::int64_t q_stride;
  float* c;
  std::int64_t c_stride;
  std::int64_t rows;
  std::int64_t depth;
  std::int64_t columns;
  bool accumulate;  ///< += rather than =
};

/// `ahead` is asked for meanwhile.
void multiply(const Product& product, Ahead& ahead) noexcept;

}  // namespace reference
RANKFOLD_NAMESPACE_END
