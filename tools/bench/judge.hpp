// Differences from exact values, judged by the rules of the contract: what is within them is right.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rankfold/dtype.hpp"

namespace rankfold::tools {

/// 16-bit outputs: within one unit in the last place, a thousandth of the elements within that and
/// 1e-4 of the row's delta (root mean square). One judge for all rows of a tensor.
class RowJudge {
 public:
  RowJudge(std::string tensor, DType dtype) : tensor_(std::move(tensor)), dtype_(dtype) {}
  /// exact = before + delta. False: failure() says what is wrong.
  bool add(std::int64_t row, const std::vector<double>& before, const std::vector<double>& delta,
           const std::vector<std::uint16_t>& got);
  /// After the last row; empty: right.
  std::string failure() const;

 private:
  std::string tensor_;
  DType dtype_;
  std::int64_t num_elements_ = 0;
  std::int64_t num_beyond_ = 0;
  std::string first_beyond_;
  std::string failure_;
};

/// float32 outputs: ||got - exact|| <= (1e-5 + 2^-24) ||exact||, Frobenius norms over what was
/// added.
class NormJudge {
 public:
  explicit NormJudge(std::string tensor) : tensor_(std::move(tensor)) {}
  void add(double exact, double got) {
    error_ += (got - exact) * (got - exact);
    norm_ += exact * exact;
  }
  std::string failure() const;

 private:
  std::string tensor_;
  double error_ = 0;
  double norm_ = 0;
};

/// Distance of two neighbours of the format at |value|.
double unit_in_last_place(double value, DType dtype);

}  // namespace rankfold::tools
