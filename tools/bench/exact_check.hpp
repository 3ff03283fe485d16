// Is what the backend wrote right? Samples against float64 on the host, before anything is timed.
#pragma once

#include <string>

#include "cold_layers.hpp"

namespace rankfold::tools {

struct ExactCheck {
  int num_rows = 0;
  std::string failure;  ///< empty: right
};

/// The expected values of a point's samples, computed once and compared with any layer to which the
/// call was applied once since it was made or restored. Throws CommandError where memory cannot be
/// read.
class ExactSamples {
 public:
  ExactSamples(Patterns& patterns, const Workload& point, const LayerLayout& layout);
  ExactCheck check(LoraBackend& backend, Stream stream, const ColdLayers& layers, int layer) const;

 private:
  struct Row {
    std::int64_t row = 0;
    std::vector<double> before;
    std::vector<double> delta;  ///< empty: the row has no adapter
    std::vector<double> h;      ///< training forward
  };
  void add_forward_row(Patterns& patterns, std::int64_t row, const BatchRow& source);
  void add_backward_row(Patterns& patterns, std::int64_t row);
  void add_gradients(Patterns& patterns);
  std::string check_gradients(LoraBackend& backend, Stream stream, const std::byte* layer) const;

  Workload point_;
  LayerLayout layout_;
  std::vector<Row> rows_;
  std::vector<std::int32_t> ranks_;      ///< rows of dA and columns of dB that are compared
  std::vector<std::vector<double>> da_;  ///< [ranks_] x [in]
  std::vector<std::vector<double>> db_;  ///< [ranks_] x [out]
};

}  // namespace rankfold::tools
