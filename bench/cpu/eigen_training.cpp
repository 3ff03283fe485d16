#include "eigen_training.hpp"

#include <Eigen/Core>
#include <thread>
#include <vector>

namespace rankfold::bench {

namespace {

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

template <class T>
struct Element {
  using Type = float;
};
template <>
struct Element<BFloat16> {
  using Type = Eigen::bfloat16;
};
template <class T>
using Stored =
    Eigen::Matrix<typename Element<T>::Type, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

template <class T>
Eigen::Map<const Stored<T>> view(const T* data, Eigen::Index rows, Eigen::Index columns) {
  return {reinterpret_cast<const typename Element<T>::Type*>(data), rows, columns};
}
template <class T>
Eigen::Map<Stored<T>> view(T* data, Eigen::Index rows, Eigen::Index columns) {
  return {reinterpret_cast<typename Element<T>::Type*>(data), rows, columns};
}

// work(part, first row, rows)
template <class Work>
void share_rows(int threads, const Work& work) {
  std::vector<std::thread> team;
  const std::int64_t share = (kTrainRows + threads - 1) / threads;
  const auto part = [&](int i) {
    const std::int64_t begin = std::min(kTrainRows, i * share);
    work(i, begin, std::min(share, kTrainRows - begin));
  };
  for (int i = 1; i < threads; ++i) team.emplace_back(part, i);
  part(0);
  for (std::thread& thread : team) thread.join();
}

}  // namespace

template <class T>
void eigen_forward(const EigenTraining<T>& data) {
  const Matrix a = view(data.a, kTrainRank, kTrainWidth).template cast<float>();
  const Matrix b = view(data.b, kTrainWidth, kTrainRank).template cast<float>();
  share_rows(data.threads, [&](int, std::int64_t begin, std::int64_t rows) {
    const std::int64_t at = begin * kTrainWidth;
    const Matrix x = view(data.x + at, rows, kTrainWidth).template cast<float>();
    auto h = view(data.h + begin * kTrainRank, rows, kTrainRank);
    auto y = view(data.y + at, rows, kTrainWidth);
    h.noalias() = x * a.transpose();
    Matrix sum = y.template cast<float>();
    sum.noalias() += kTrainScaling * h * b.transpose();
    y = sum.template cast<typename Element<T>::Type>();
  });
}

template <class T>
void eigen_backward(const EigenTraining<T>& data) {
  const Matrix a = view(data.a, kTrainRank, kTrainWidth).template cast<float>();
  const Matrix b = view(data.b, kTrainWidth, kTrainRank).template cast<float>();
  std::vector<Matrix> das(static_cast<std::size_t>(data.threads));
  std::vector<Matrix> dbs(static_cast<std::size_t>(data.threads));
  share_rows(data.threads, [&](int part, std::int64_t begin, std::int64_t rows) {
    const std::int64_t at = begin * kTrainWidth;
    const Matrix dy = view(data.dy + at, rows, kTrainWidth).template cast<float>();
    const Matrix x = view(data.x + at, rows, kTrainWidth).template cast<float>();
    const auto h = view(static_cast<const float*>(data.h) + begin * kTrainRank, rows, kTrainRank);
    auto dx = view(data.dx + at, rows, kTrainWidth);
    const Matrix ds = kTrainScaling * dy * b;
    Matrix sum = dx.template cast<float>();
    sum.noalias() += ds * a;
    dx = sum.template cast<typename Element<T>::Type>();
    das[static_cast<std::size_t>(part)].noalias() = ds.transpose() * x;
    dbs[static_cast<std::size_t>(part)].noalias() = kTrainScaling * dy.transpose() * h;
  });
  auto da = view(data.da, kTrainRank, kTrainWidth);
  auto db = view(data.db, kTrainWidth, kTrainRank);
  da = das[0];
  db = dbs[0];
  for (std::size_t i = 1; i < das.size(); ++i) {
    da += das[i];
    db += dbs[i];
  }
}

template void eigen_forward(const EigenTraining<float>&);
template void eigen_forward(const EigenTraining<BFloat16>&);
template void eigen_backward(const EigenTraining<float>&);
template void eigen_backward(const EigenTraining<BFloat16>&);

}  // namespace rankfold::bench
