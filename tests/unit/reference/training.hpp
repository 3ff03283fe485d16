// A batch to train on, its gradients' memory, and what forward and backward should make of it in
// float64: loops of their own, with a Philox of their own.
#pragma once

#include <cstdint>
#include <vector>

#include "batch.hpp"

namespace rankfold::reference_test {

/// Outputs of a backward as a set.
inline constexpr unsigned kDx = 1, kDa = 2, kDb = 4, kDbias = 8, kDs = 16, kAll = 31;

struct TrainingSpec {
  BatchSpec batch = {};
  DType dx = DType::f32;
  unsigned outputs = kAll;
  bool give_h = false;  ///< random, and NaN wherever nobody may read
  YMode dx_mode = YMode::accumulate;
  YMode grads_mode = YMode::overwrite;
  float p = 0.0f;
  std::uint64_t seed = 0x0123456789abcdefu;
  std::int64_t row_base = 0;
  bool share_a = false;   ///< all slices of a slot use the A of slice 0, with ranks of their own
  bool share_da = false;  ///< and one da pointer
  bool embedding = false;
};

/// Everything that a backward writes, as float64 or as it was written.
struct Results {
  std::vector<double> dx, ds;
  std::vector<std::vector<double>> da, db, dbias;  // [slot * slices + slice]
};

struct Training {
  explicit Training(const TrainingSpec& spec);

  TrainingSpec spec;
  Batch batch;
  Elements dy, dx, y;
  std::vector<float> h, ds;
  std::vector<std::vector<float>> da, db, dbias;
  std::vector<float*> da_pointers, db_pointers, dbias_pointers;

  std::int64_t slices() const { return static_cast<std::int64_t>(batch.spec.out.size()); }
  std::int64_t h_columns() const { return slices() * batch.spec.max_rank; }
  ForwardArgs forward();
  ForwardEmbeddingArgs forward_embedding();
  BackwardArgs backward();
  BackwardEmbeddingArgs backward_embedding();
  Status run_forward(StreamMode mode = StreamMode::inline_);
  Status run_backward(StreamMode mode = StreamMode::inline_);

  /// x after dropout, or the one-hot of an id.
  double input(std::int64_t row, std::int64_t slice, std::int64_t column) const;
  double mask(std::int64_t row, std::int64_t slice, std::int64_t column) const;
  std::vector<double> exact_h() const;  ///< zero where nothing is defined
  std::vector<double> exact_y() const;
  Results before() const;  ///< what stands in the outputs
  Results exact() const;   ///< what should stand there after a backward

  /// Whether every output is within the contract's tolerances of `exact`, and what was left out
  /// unchanged. Says by doctest what is not.
  void check(const Results& exact, const Results& before) const;
};

/// The contract's tolerance of y and dx, whose narrow elements may also miss by 1e-4 of the root
/// mean square of their row's delta, and all but one in a thousand by one unit in the last place.
bool close_rows(const Elements& got, const std::vector<double>& exact,
                const std::vector<double>& base, std::int64_t columns);

/// Philox4x32-10 in the plainest form.
void plain_philox(const std::uint32_t (&counter)[4], const std::uint32_t (&key)[2],
                  std::uint32_t (&result)[4]);

}  // namespace rankfold::reference_test
