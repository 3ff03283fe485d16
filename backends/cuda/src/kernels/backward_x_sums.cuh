// What the second pass of backward is given, and what it does with its sums of dA.
#pragma once

#include "backward_tiles.cuh"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {
namespace tiles {

/// Columns of ds are counted through the slices: v = slice * max_rank + j. A launch has those from
/// first_v on.
struct XParams {
  CUtensorMap x_tiles;
  CUtensorMap dx_tiles;
  CUtensorMap dx_strips;  // 16 rows, to be written
  const void* x;
  std::int64_t x_stride;
  void* dx;
  std::int64_t dx_stride;
  const AdapterEntry* entries;
  std::int64_t slot_stride;
  const float* ds;
  std::int64_t ds_stride;
  SlotRuns runs;
  float* da_partials;
  float* const* da;
  YMode mode;
  int reads_dx;
  int chunk_rows;
  int num_slices;
  int max_rank;
  int first_v;
  int total_v;
  int num_blocks;
  int x_aligned;
  int dx_aligned;
  std::int64_t in;
  std::int64_t padded_in;
};

__device__ inline float* da_of(const XParams& p, int slot, int slice) {
  return p.da == nullptr ? nullptr : p.da[static_cast<std::int64_t>(slot) * p.num_slices + slice];
}

/// To the partial sums, or, of a slot's only chunk, to da.
template <int kRanks, int kGroups, int kSums>
__device__ __forceinline__ void store_da(const XParams& p, const RowChunk& chunk,
                                         const AdapterEntry* entries, std::int64_t block_column,
                                         const float (&da_sums)[kGroups][kSums]) {
  const int group = static_cast<int>(threadIdx.x) / kGroup,
            own = static_cast<int>(threadIdx.x) % kGroup;
  // Calls f(v, k, sum) for what the thread has.
  const auto for_sums = [&](auto f) {
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
#pragma unroll
      for (int i = 0; i < kRanks / 2; ++i) {
        const int v = p.first_v + g * kRanks + i / 4 * 8 + own % 4 * 2 + i % 2;
        const std::int64_t k =
            block_column + group * 64 + own / 32 * 16 + own % 32 / 4 + i / 2 % 2 * 8;
        if (v < p.total_v && k < p.in) f(v, k, da_sums[g][i]);
      }
    }
  };
  if (chunk.partial >= 0) {
    for_sums([&](int v, std::int64_t k, float sum) {
      p.da_partials[(static_cast<std::int64_t>(chunk.partial) * p.total_v + v) * p.padded_in + k] =
          sum;
    });
    return;
  }
  // The slot's only chunk: slices in order, as several may have one da.
  const int last_slice = min(p.first_v + kGroups * kRanks - 1, p.total_v - 1) / p.max_rank;
  for (int s = p.first_v / p.max_rank; s <= last_slice; ++s) {
    float* const da = da_of(p, chunk.slot, s);
    bool owns = true;
    int written = 0;  // rows of da
    for (int other = 0; other < p.num_slices; ++other) {
      if (da_of(p, chunk.slot, other) != da) continue;
      if (other < s) owns = false;
      written = max(written, bounded_rank(entries[other], p.max_rank));
    }
    const int rank = paired_rank(entries[s], p.max_rank);
    for_sums([&](int v, std::int64_t k, float sum) {
      const int j = v - s * p.max_rank;
      if (da == nullptr || j < 0 || j >= p.max_rank) return;
      float* const to = da + j * p.in + k;
      if (owns && p.mode == YMode::overwrite) {
        if (j < written) *to = j < rank ? sum : 0.0f;
      } else if (j < rank) {
        *to += sum;
      }
    });
    __syncthreads();
  }
}

}  // namespace tiles
}  // namespace cuda
RANKFOLD_NAMESPACE_END
