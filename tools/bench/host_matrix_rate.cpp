// The one file of the command that knows Eigen: the yardstick of multiplications.
#include <Eigen/Core>
#include <thread>
#include <vector>

#include "host_passes.hpp"
#include "timing.hpp"

namespace rankfold::tools {

double host_matrix_rate() {
  constexpr Eigen::Index kSize = 1536;
  using Matrix = Eigen::MatrixXf;
  const int threads = host_threads();
  const Matrix a = Matrix::Random(kSize, kSize);
  const Matrix b = Matrix::Random(kSize, kSize);
  Matrix c = Matrix::Zero(kSize, kSize);
  const auto columns = [&](int index) {
    const Eigen::Index begin = kSize * index / threads;
    const Eigen::Index count = kSize * (index + 1) / threads - begin;
    c.middleCols(begin, count).noalias() = a * b.middleCols(begin, count);
  };
  const Timing timing = time_replays(1,
                                     [&] {
                                       std::vector<std::thread> others;
                                       for (int i = 1; i < threads; ++i)
                                         others.emplace_back(columns, i);
                                       columns(0);
                                       for (std::thread& other : others) other.join();
                                     },
                                     {.seconds = 1.0});
  return 2.0 * kSize * kSize * kSize / timing.median;
}

}  // namespace rankfold::tools
