// Points beside the grid: widths, ranks, batches and dtypes that no tile was made for.
#pragma once

#include <vector>

#include "workloads.hpp"

namespace rankfold::tools {

inline constexpr int kNumOffGrid = 60;

/// Always the same points. in and out from 1021, 1536, 2560, 3072, 3584, 5120, 7168, 18944; rank
/// from 4, 12, 24, 48, 128; tokens from 2, 7, 40, 100, 513, 3000; f16, bf16, and f32 adapters on
/// bf16; one adapter, one a row, a few of uneven use, half the rows without any, mixed ranks. One
/// to three slices.
std::vector<Workload> off_grid_points();

}  // namespace rankfold::tools
