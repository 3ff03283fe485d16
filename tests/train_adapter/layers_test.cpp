// Every layer's derivative against central differences in double.
#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <vector>

#include "train/layers.hpp"
#include "train/random.hpp"

using train::Column;
using train::Mat;
using train::Row;

namespace {

using Matrix = Mat<double>;

Matrix random_matrix(train::Random& random, Eigen::Index rows, Eigen::Index columns) {
  Matrix out(rows, columns);
  for (Eigen::Index i = 0; i < out.size(); ++i)
    out.data()[i] = static_cast<double>(random.between(-1.5f, 1.5f));
  return out;
}

// The derivative of a number by every element of x, by central differences.
Matrix differences(const std::function<double(const Matrix&)>& function, const Matrix& x) {
  constexpr double kStep = 1e-5;
  Matrix out(x.rows(), x.cols());
  Matrix moved = x;
  for (Eigen::Index i = 0; i < x.size(); ++i) {
    moved.data()[i] = x.data()[i] + kStep;
    const double up = function(moved);
    moved.data()[i] = x.data()[i] - kStep;
    out.data()[i] = (up - function(moved)) / (2 * kStep);
    moved.data()[i] = x.data()[i];
  }
  return out;
}

// Central differences err by step^2 and by rounding / step: 1e-9 here, and a hundred times that is
// far below any wrong term.
void check_equal(const Matrix& got, const Matrix& wanted) {
  REQUIRE(got.rows() == wanted.rows());
  REQUIRE(got.cols() == wanted.cols());
  CHECK((got - wanted).norm() <= 1e-7 * wanted.norm());
  CHECK(wanted.norm() > 1e-3);
}

}  // namespace

TEST_CASE("derivative: RMSNorm") {
  train::Random random(1);
  const Matrix x = random_matrix(random, 5, 7);
  const Matrix d_y = random_matrix(random, 5, 7);
  const Row<double> weight = random_matrix(random, 1, 7);
  const auto loss = [&](const Matrix& at) {
    return train::rms_norm(at, weight, 1e-3).y.cwiseProduct(d_y).sum();
  };
  const auto normed = train::rms_norm(x, weight, 1e-3);
  check_equal(train::rms_norm_backward(d_y, x, weight, normed.scale), differences(loss, x));
}

TEST_CASE("derivative: rotary embedding") {
  train::Random random(2);
  const Matrix x = random_matrix(random, 4, 12);  // three heads of four
  const Matrix d_y = random_matrix(random, 4, 12);
  const Matrix angles = random_matrix(random, 4, 2);
  const Matrix cos = angles.array().cos();
  const Matrix sin = angles.array().sin();
  const auto loss = [&](const Matrix& at) {
    Matrix y = at;
    train::rotate<double>(y, cos, sin);
    return y.cwiseProduct(d_y).sum();
  };
  Matrix d_x = d_y;
  train::rotate<double>(d_x, cos, -sin);
  check_equal(d_x, differences(loss, x));
}

TEST_CASE("derivative: causal attention with shared keys and values") {
  train::Random random(3);
  const train::HeadShape shape{4, 2, 3};
  const Matrix q = random_matrix(random, 6, 12);
  const Matrix k = random_matrix(random, 6, 6);
  const Matrix v = random_matrix(random, 6, 6);
  const Matrix d_out = random_matrix(random, 6, 12);
  const auto loss = [&](const Matrix& at_q, const Matrix& at_k, const Matrix& at_v) {
    Matrix out(6, 12);
    Matrix probabilities;
    train::attend<double>(at_q, at_k, at_v, shape, out, probabilities);
    return out.cwiseProduct(d_out).sum();
  };
  Matrix out(6, 12);
  Matrix probabilities;
  train::attend<double>(q, k, v, shape, out, probabilities);
  Matrix d_q(6, 12);
  Matrix d_k = Matrix::Zero(6, 6);
  Matrix d_v = Matrix::Zero(6, 6);
  train::attend_backward<double>(d_out, q, k, v, shape, probabilities, d_q, d_k, d_v);
  check_equal(d_q, differences([&](const Matrix& at) { return loss(at, k, v); }, q));
  check_equal(d_k, differences([&](const Matrix& at) { return loss(q, at, v); }, k));
  check_equal(d_v, differences([&](const Matrix& at) { return loss(q, k, at); }, v));
}

TEST_CASE("derivative: SwiGLU") {
  train::Random random(4);
  const Matrix gate_up = random_matrix(random, 5, 8);
  const Matrix d_y = random_matrix(random, 5, 4);
  const auto loss = [&](const Matrix& at) { return train::swiglu(at).cwiseProduct(d_y).sum(); };
  check_equal(train::swiglu_backward(d_y, gate_up), differences(loss, gate_up));
}

TEST_CASE("derivative: cross entropy") {
  train::Random random(5);
  const Matrix logits = random_matrix(random, 3, 9);
  const std::vector<std::int32_t> wanted = {8, 0, 4};
  const auto loss = [&](const Matrix& at) {
    Matrix copy = at;
    return train::cross_entropy<double>(copy, wanted, 0.25);
  };
  Matrix d_logits = logits;
  train::cross_entropy<double>(d_logits, wanted, 0.25);
  check_equal(d_logits, differences(loss, logits));
  // The loss itself, from its definition.
  double sum = 0;
  for (int row = 0; row < 3; ++row) {
    const double all = logits.row(row).array().exp().sum();
    sum -= 0.25 * std::log(std::exp(logits(row, wanted[static_cast<std::size_t>(row)])) / all);
  }
  CHECK(loss(logits) == doctest::Approx(sum).epsilon(1e-12));
}
