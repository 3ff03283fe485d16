// A small batch of routed rows with its own bank of experts, and what the operations should make of
// it in float64.
#pragma once

#include <cstdint>
#include <vector>

#include "batch.hpp"

namespace rankfold::reference_test {

enum class SharedA { none, by_slices, by_experts, by_both };

struct ExpertSpec {
  std::int64_t tokens = 12;
  std::int32_t top_k = 3;
  std::int64_t in = 40;
  std::vector<std::int64_t> out = {24};
  std::int32_t slots = 3;
  std::int32_t experts = 5;
  std::int32_t max_rank = 8;
  ExpertMode mode = ExpertMode::gather;
  XRows x_rows = XRows::token;
  DType x = DType::f32, y = DType::f32, weights = DType::f32;
  SharedA shared = SharedA::none;
  bool same_ranks = false;  ///< every entry has max_rank; needed where A is shared
  bool strengths = false;   ///< row_weights and token_weights
  bool integers = false;    ///< exact data
  std::int32_t expert_base = 0;
  std::uint32_t seed = 1;
};

/// Ids are drawn from two below to two above the local experts, slots from -1 to num_slots. In mode
/// grouped the rows of local experts are sorted, the others stand behind them, of tokens that are
/// not there.
struct ExpertBatch {
  explicit ExpertBatch(const ExpertSpec& spec);
  /// Draws `ids` and `slots` again from what the vectors hold now: offsets and tokens of the rows.
  void route();

  ExpertSpec spec;
  Elements x, y;
  std::vector<std::int32_t> slots;       ///< by token
  std::vector<std::int32_t> ids;         ///< by token and choice
  std::vector<std::int32_t> offsets;     ///< grouped
  std::vector<std::int32_t> row_tokens;  ///< grouped
  std::vector<float> row_weights, token_weights;
  std::vector<Elements> a, b;  ///< by entry, as entries
  std::vector<AdapterEntry> entries;

  std::int64_t rows() const { return spec.tokens * spec.top_k; }
  std::int64_t out_columns() const;
  std::int64_t h_columns() const {
    return static_cast<std::int64_t>(spec.out.size()) * spec.max_rank;
  }
  AdapterTableView table() const;
  ExpertAddressing addressing() const;
  ApplyExpertsArgs apply(const Elements& into) const;
  ShrinkExpertsArgs shrink(std::vector<float>& h) const;
  ExpandExpertsArgs expand(const std::vector<float>& h, const Elements& into) const;

  /// The first slice's entry of a row, or -1.
  std::int64_t entry_of(std::int64_t row) const;
  std::int64_t token_of(std::int64_t row) const;
  std::vector<double> oracle_h() const;  ///< [rows, h_columns()]
  std::vector<double> oracle_y(YMode mode = YMode::accumulate) const;
  /// What `base` of close() is.
  std::vector<double> base(YMode mode = YMode::accumulate) const;
};

}  // namespace rankfold::reference_test
