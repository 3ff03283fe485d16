#include <Eigen/Core>

#include "point.hpp"

namespace rankfold::bench {

namespace {

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Narrow = Eigen::Matrix<Eigen::bfloat16, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

Eigen::Map<const Narrow> view(const BFloat16* data, Eigen::Index rows, Eigen::Index columns) {
  return {reinterpret_cast<const Eigen::bfloat16*>(data), rows, columns};
}

}  // namespace

void eigen_step(const PointSpec& spec, const WeightPool& pool, std::int64_t first_adapter,
                const std::vector<BFloat16>& x, float scaling, std::vector<BFloat16>& y) {
  const std::int64_t rows = spec.tokens / spec.adapters;
  for (std::int64_t i = 0; i < spec.adapters; ++i) {
    const Matrix a = view(pool.a(spec.rank, first_adapter + i), spec.rank, kHidden).cast<float>();
    const Matrix b = view(pool.b(spec.rank, first_adapter + i), kHidden, spec.rank).cast<float>();
    const std::int64_t at = i * rows * kHidden;
    const Matrix rows_of_x = view(x.data() + at, rows, kHidden).cast<float>();
    Eigen::Map<Narrow> rows_of_y(reinterpret_cast<Eigen::bfloat16*>(y.data() + at), rows, kHidden);
    const Matrix h = rows_of_x * a.transpose();
    Matrix sum = rows_of_y.cast<float>();
    sum.noalias() += scaling * (h * b.transpose());
    rows_of_y = sum.cast<Eigen::bfloat16>();
  }
}

}  // namespace rankfold::bench
