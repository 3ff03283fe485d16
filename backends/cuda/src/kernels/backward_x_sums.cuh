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
  std::int32_t* counts;  // of blocks of columns, or null: others sum dA
};

/// dA of one slice, in blocks of kXBlockColumns from first_column on.
struct DaBlock {
  const float* partials;  // [chunks, max_rank, padded_in]
  float* da;              // of the slot
  YMode mode;
  int chunks;
  int max_rank;
  int first_column;
  std::int64_t in;
  std::int64_t padded_in;
};
/// Chunks of rows of one slot.
__device__ __forceinline__ int divide_chunks(const SlotRuns& g, int chunk_rows) {
  return (g.num_rows + chunk_rows - 1) / chunk_rows;
}
/// Calls f(j, k, count) for the quadruples of columns k of the first `rank` rows, count of them
/// in the matrix.
template <class F>
__device__ __forceinline__ void for_da_quads(const DaBlock& p, int rank, F f) {
  constexpr int kQuads = kXBlockColumns / 4;
#pragma unroll 2
  for (int i = static_cast<int>(threadIdx.x); i < rank * kQuads; i += kThreads) {
    const std::int64_t k = p.first_column + i % kQuads * 4;
    if (k < p.in) f(i / kQuads, k, static_cast<int>(p.in - k < 4 ? p.in - k : 4));
  }
}
/// Of an adapter that computes nothing: zeros where they are asked for.
__device__ inline void clear_da(const DaBlock& p, int rank) {
  if (p.mode != YMode::overwrite) return;
  for_da_quads(p, rank, [&](int j, std::int64_t k, int count) {
    for (int e = 0; e < count; ++e) p.da[j * p.in + k + e] = 0.0f;
  });
}
/// After partial sums were written, by all threads: the last block to come here sums all, in the
/// order of the chunks.
__device__ inline void sum_da(const DaBlock& p, int rank, std::int32_t* count) {
  __threadfence();
  __syncthreads();
  const bool is_last = threadIdx.x == 0 && atomicAdd(count, 1) + 1 == p.chunks;
  if (!__syncthreads_or(is_last)) return;
  __threadfence();
  const std::int64_t step = p.max_rank * p.padded_in;
  for_da_quads(p, rank, [&](int j, std::int64_t k, int there) {
    const float* const from = p.partials + j * p.padded_in + k;
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 4
    for (int chunk = 0; chunk < p.chunks; ++chunk) {
      const float4 v = __ldcg(reinterpret_cast<const float4*>(from + chunk * step));
      sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
    }
    float* const to = p.da + j * p.in + k;
    const float values[4] = {sum.x, sum.y, sum.z, sum.w};
    for (int e = 0; e < there; ++e)
      to[e] = p.mode == YMode::overwrite ? values[e] : to[e] + values[e];
  });
}

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
