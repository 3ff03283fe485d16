// Is what the backend wrote right? Sampled rows against float64, before anything is timed.
#pragma once

#include <string>

#include "cold_layers.hpp"

namespace rankfold::tools {

struct RowCheck {
  int num_rows = 0;
  std::string failure;  ///< empty: right
};

/// Compares rows of the layer's y, to which the call was applied once, with the exact result by the
/// rule for 16-bit y: within one unit in the last place, a thousandth of the elements within that
/// and 1e-4 of the row's delta; rows without adapter bit-unchanged.
RowCheck check_rows(LoraBackend& backend, Stream stream, const Workload& point, DType dtype,
                    float scale, const ColdLayers& layers, int layer);

}  // namespace rankfold::tools
