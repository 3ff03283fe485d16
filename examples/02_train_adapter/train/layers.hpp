// The layers of a Llama and their derivatives, in plain Eigen. Each function here does one thing,
// knows no weights of its own and no adapter, and has its derivative beside it. Rows are tokens;
// d_x is the derivative of the loss by x. Templates, so that finite differences can be taken in
// double.
#pragma once

#include <Eigen/Core>
#include <cmath>
#include <cstdint>
#include <span>

namespace train {

template <class Scalar>
using Mat = Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
template <class Scalar>
using Row = Eigen::Matrix<Scalar, 1, Eigen::Dynamic>;
template <class Scalar>
using Column = Eigen::Matrix<Scalar, Eigen::Dynamic, 1>;

// ---- RMSNorm: y = x scale weight, scale = 1 / sqrt(mean(x^2) + eps) of the row

template <class Scalar>
struct Normed {
  Mat<Scalar> y;
  Column<Scalar> scale;
};

template <class Scalar>
Normed<Scalar> rms_norm(const Mat<Scalar>& x, const Row<Scalar>& weight, Scalar eps) {
  const auto columns = static_cast<Scalar>(x.cols());
  const Column<Scalar> scale = (x.rowwise().squaredNorm().array() / columns + eps).sqrt().inverse();
  return {(scale.asDiagonal() * x) * weight.asDiagonal(), scale};
}

/// d_x = scale (u - x scale^2 mean(u x)), u = d_y weight.
template <class Scalar>
Mat<Scalar> rms_norm_backward(const Mat<Scalar>& d_y, const Mat<Scalar>& x,
                              const Row<Scalar>& weight, const Column<Scalar>& scale) {
  const Mat<Scalar> u = d_y * weight.asDiagonal();
  const auto columns = static_cast<Scalar>(x.cols());
  const Column<Scalar> share =
      u.cwiseProduct(x).rowwise().sum().array() * scale.array().cube() / columns;
  return scale.asDiagonal() * u - share.asDiagonal() * x;
}

// ---- Rotary embedding: the pairs (i, i + head_dim / 2) of every head turn by the row's angles

/// cos, sin: [rows, head_dim / 2]. Its derivative is the turn back: rotate() with -sin.
template <class Scalar>
void rotate(Eigen::Ref<Mat<Scalar>> heads, const Mat<Scalar>& cos, const Mat<Scalar>& sin) {
  const Eigen::Index half = cos.cols();
  for (Eigen::Index column = 0; column < heads.cols(); column += 2 * half) {
    auto low = heads.middleCols(column, half).array();
    auto high = heads.middleCols(column + half, half).array();
    const Mat<Scalar> turned = low * cos.array() - high * sin.array();
    high = high * cos.array() + low * sin.array();
    low = turned.array();
  }
}

// ---- Causal attention of one sequence, from its first token on

struct HeadShape {
  std::int64_t num_heads = 0;
  std::int64_t num_kv_heads = 0;  ///< heads of queries in a row share one of keys and values
  std::int64_t head_dim = 0;
};

template <class Scalar>
using View = Eigen::Ref<const Mat<Scalar>, 0, Eigen::OuterStride<>>;
template <class Scalar>
using MutableView = Eigen::Ref<Mat<Scalar>, 0, Eigen::OuterStride<>>;

/// out = softmax(q k^T / sqrt(head_dim)) v for each head. probabilities: [num_heads n, n], kept for
/// the derivative.
template <class Scalar>
void attend(View<Scalar> q, View<Scalar> k, View<Scalar> v, const HeadShape& shape,
            MutableView<Scalar> out, Mat<Scalar>& probabilities) {
  const Eigen::Index n = q.rows();
  const Eigen::Index dim = shape.head_dim;
  const Eigen::Index sharing = shape.num_heads / shape.num_kv_heads;
  const Scalar scale = Scalar(1) / std::sqrt(static_cast<Scalar>(dim));
  probabilities.resize(shape.num_heads * n, n);
  for (Eigen::Index head = 0; head < shape.num_heads; ++head) {
    const Eigen::Index shared = head / sharing * dim;
    auto scores = probabilities.middleRows(head * n, n);
    scores.noalias() =
        q.middleCols(head * dim, dim) * k.middleCols(shared, dim).transpose() * scale;
    for (Eigen::Index row = 0; row < n; ++row) {
      scores.row(row).tail(n - row - 1).setZero();  // nobody looks ahead
      auto visible = scores.row(row).head(row + 1).array();
      visible = (visible - visible.maxCoeff()).exp();
      visible /= visible.sum();
    }
    out.middleCols(head * dim, dim).noalias() = scores * v.middleCols(shared, dim);
  }
}

/// Overwrites d_q, adds to d_k and d_v (several heads share them).
template <class Scalar>
void attend_backward(View<Scalar> d_out, View<Scalar> q, View<Scalar> k, View<Scalar> v,
                     const HeadShape& shape, const Mat<Scalar>& probabilities,
                     MutableView<Scalar> d_q, MutableView<Scalar> d_k, MutableView<Scalar> d_v) {
  const Eigen::Index n = q.rows();
  const Eigen::Index dim = shape.head_dim;
  const Eigen::Index sharing = shape.num_heads / shape.num_kv_heads;
  const Scalar scale = Scalar(1) / std::sqrt(static_cast<Scalar>(dim));
  for (Eigen::Index head = 0; head < shape.num_heads; ++head) {
    const Eigen::Index own = head * dim;
    const Eigen::Index shared = head / sharing * dim;
    const auto p = probabilities.middleRows(head * n, n);
    const auto d_head = d_out.middleCols(own, dim);
    d_v.middleCols(shared, dim).noalias() += p.transpose() * d_head;
    const Mat<Scalar> d_p = d_head * v.middleCols(shared, dim).transpose();
    const Column<Scalar> mean = d_p.cwiseProduct(p).rowwise().sum();
    // Where p is 0 (ahead of the row) so is d_scores.
    const Mat<Scalar> d_scores = (p.array() * (d_p.colwise() - mean).array() * scale).matrix();
    d_q.middleCols(own, dim).noalias() = d_scores * k.middleCols(shared, dim);
    d_k.middleCols(shared, dim).noalias() += d_scores.transpose() * q.middleCols(own, dim);
  }
}

// ---- SwiGLU: silu(gate) up, gate and up side by side in one matrix

template <class Scalar>
Mat<Scalar> swiglu(const Mat<Scalar>& gate_up) {
  const Eigen::Index width = gate_up.cols() / 2;
  const auto gate = gate_up.leftCols(width).array();
  return (gate / (Scalar(1) + (-gate).exp()) * gate_up.rightCols(width).array()).matrix();
}

template <class Scalar>
Mat<Scalar> swiglu_backward(const Mat<Scalar>& d_y, const Mat<Scalar>& gate_up) {
  const Eigen::Index width = gate_up.cols() / 2;
  const auto gate = gate_up.leftCols(width).array();
  const auto up = gate_up.rightCols(width).array();
  const Mat<Scalar> sigmoid = (Scalar(1) + (-gate).exp()).inverse().matrix();
  const auto s = sigmoid.array();
  Mat<Scalar> d_gate_up(gate_up.rows(), gate_up.cols());
  d_gate_up.leftCols(width) =
      (d_y.array() * up * s * (Scalar(1) + gate * (Scalar(1) - s))).matrix();
  d_gate_up.rightCols(width) = (d_y.array() * gate * s).matrix();
  return d_gate_up;
}

// ---- Cross entropy: -log softmax(logits)[wanted], times weight, summed over the rows

/// Returns the loss; logits become their derivative.
template <class Scalar>
Scalar cross_entropy(Mat<Scalar>& logits, std::span<const std::int32_t> wanted, Scalar weight) {
  Scalar loss = 0;
  for (Eigen::Index row = 0; row < logits.rows(); ++row) {
    auto values = logits.row(row).array();
    const Eigen::Index right = wanted[static_cast<std::size_t>(row)];
    values -= values.maxCoeff();
    const Scalar log_sum = std::log(values.exp().sum());
    loss += weight * (log_sum - values[right]);
    values = (values - log_sum).exp() * weight;
    logits(row, right) -= weight;
  }
  return loss;
}

}  // namespace train
