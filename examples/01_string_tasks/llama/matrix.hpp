// The Eigen types of the example. Row-major: a row is a token, or an output of a weight.
#pragma once

#include <Eigen/Core>

namespace llama {

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using RowVector = Eigen::Matrix<float, 1, Eigen::Dynamic>;

}  // namespace llama
