// Sums of what the blocks of backward's passes leave, in the order of blocks and chunks, a thread
// each: of ds, and of the gradients, which are cleared where no row contributed.
#pragma once

#include "backward_tiles.cuh"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {
namespace sums {

using tiles::paired_rank;
using tiles::put_parts;
inline constexpr int kThreads = 256;

__device__ __forceinline__ float4 load_4(const float* p) {
  return *reinterpret_cast<const float4*>(p);
}
__device__ __forceinline__ void add(float4& sum, const float4& v) {
  sum.x += v.x;
  sum.y += v.y;
  sum.z += v.z;
  sum.w += v.w;
}
/// Adds kCount quadruples `step` floats apart, all on their way before the first is added.
template <int kCount>
__device__ __forceinline__ void add_quads(float4& sum, const float* from, std::int64_t step) {
  float4 v[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) v[i] = load_4(from + i * step);
#pragma unroll
  for (int i = 0; i < kCount; ++i) add(sum, v[i]);
}
/// The sum of `count` quadruples, in order.
__device__ __forceinline__ float4 sum_4(const float* from, std::int64_t step, int count) {
  float4 sum = make_float4(0, 0, 0, 0);
  int i = 0;
  for (; i + 16 <= count; i += 16) add_quads<16>(sum, from + i * step, step);
  if (i + 8 <= count) {
    add_quads<8>(sum, from + i * step, step);
    i += 8;
  }
  if (i + 4 <= count) {
    add_quads<4>(sum, from + i * step, step);
    i += 4;
  }
  for (; i < count; ++i) add(sum, load_4(from + i * step));
  return sum;
}

__device__ inline void put_4(float* to, const float4& v, int count, bool accumulates) {
  const float values[4] = {v.x, v.y, v.z, v.w};
  if (count == 4 && (reinterpret_cast<std::uintptr_t>(to) & 15) == 0) {
    float4 sum = v;
    if (accumulates) add(sum, load_4(to));
    *reinterpret_cast<float4*>(to) = sum;
    return;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (i < count) to[i] = accumulates ? to[i] + values[i] : values[i];
  }
}

struct DsParams {
  const float* partials;
  float* whole;  // by place, for the second pass
  int whole_stride;
  float* ds;  // by row, for the caller, or null
  std::int64_t ds_stride;
  __nv_bfloat16* split;  // instead of whole: 64 high parts and 64 low ones a row, or null
  const AdapterEntry* entries;
  std::int64_t slot_stride;
  const float* token_weights;
  SlotRuns runs;
  int ranks;
  int num_slices;
  int max_rank;
  std::int32_t* counts;  // num_counts to be cleared, or null
  int num_counts;
  int first_block[kMaxSlices + 1];
};

/// Four ranks of a row and slice.
__device__ __forceinline__ void sum_ds_item(const DsParams& p, std::int64_t item) {
  if (p.counts != nullptr && blockIdx.x == 0) {
    for (int i = static_cast<int>(threadIdx.x); i < p.num_counts; i += kThreads) p.counts[i] = 0;
  }
  const int quads = p.ranks / 4;
  const int quad = static_cast<int>(item % quads),
            slice = static_cast<int>(item / quads % p.num_slices);
  const std::int64_t place = item / quads / p.num_slices;
  int slot = p.runs.uniform_slot;
  if (p.runs.ends != nullptr) {
    int low = 0, high = p.runs.num_slots;
    while (low < high) {
      const int middle = (low + high) / 2;
      if (p.runs.ends[middle] <= place) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    slot = low;
  }
  const bool exists = place < p.runs.num_rows && slot >= 0 && slot < p.runs.num_slots;
  const AdapterEntry entry = exists ? p.entries[slot * p.slot_stride + slice] : AdapterEntry{};
  const int rank = paired_rank(entry, p.max_rank), j = quad * 4;
  const bool works = exists && j < rank;
  const std::int64_t row = !works || p.runs.order == nullptr ? place : p.runs.order[place];
  const float f =
      !works || p.token_weights == nullptr ? entry.scaling : entry.scaling * p.token_weights[row];
  // Up to here nothing was read that the kernel before writes.
  wait_for_previous();
  release_next();
  if (p.split != nullptr && exists && !works) put_parts(p.split, place, j, make_float4(0, 0, 0, 0));
  if (!works) return;
  const int first = p.first_block[slice];
  const float4 sum =
      sum_4(p.partials + (static_cast<std::int64_t>(first) * p.runs.num_rows + place) * p.ranks + j,
            static_cast<std::int64_t>(p.runs.num_rows) * p.ranks, p.first_block[slice + 1] - first);
  const float4 v = make_float4(f * sum.x, f * sum.y, f * sum.z, f * sum.w);
  if (p.split != nullptr) {
    put_parts(p.split, place, j,
              make_float4(v.x, j + 1 < rank ? v.y : 0.0f, j + 2 < rank ? v.z : 0.0f,
                          j + 3 < rank ? v.w : 0.0f));
  } else {
    put_4(p.whole + place * p.whole_stride + slice * p.max_rank + j, v, min(4, rank - j), false);
  }
  if (p.ds != nullptr)
    put_4(p.ds + row * p.ds_stride + slice * p.max_rank + j, v, min(4, rank - j), false);
}

struct GradientParams {
  const AdapterEntry* entries;
  std::int64_t slot_stride;
  SlotRuns runs;
  Gradients grads;
  const float* db_partials;
  const float* da_partials;
  const float* dbias_partials;
  std::int64_t total_out;
  std::int64_t in;
  std::int64_t padded_in;
  std::int64_t db_items;  // quadruples of ranks; then come quadruples of columns of da
  std::int64_t da_items;
  std::int64_t dbias_items;  // columns
  int dy_chunk;
  int x_chunk;
  int ranks;
  int num_slices;
  int max_rank;
  int done_slot = -1;  // its dB is there, and its dA if
  bool is_da_done = false;
  std::int64_t first_column[kMaxSlices + 1];
};

struct SlotSums {
  std::int64_t rows;
  std::int64_t first_partial;
  int chunks;
};
__device__ inline SlotSums sums_of_slot(const SlotRuns& g, int chunk_rows, int slot) {
  SlotSums found{};
  if (g.ends == nullptr) {
    found.rows = slot == g.uniform_slot ? g.num_rows : 0;
  } else {
    found.rows = tiles::chunks_of_slot(g, chunk_rows, slot).rows;
  }
  found.chunks = static_cast<int>((found.rows + chunk_rows - 1) / chunk_rows);
  if (g.ends == nullptr || found.chunks <= 1) return found;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int before = 0;
  for (int base = 0; base < slot; base += 32) {
    if (base + lane < slot) before += tiles::chunks_of_slot(g, chunk_rows, base + lane).partials;
  }
  found.first_partial = __reduce_add_sync(0xffffffffu, before);
  return found;
}

__device__ inline void finish_db(const GradientParams& p, int slot, const SlotSums& sums,
                                 std::int64_t item) {
  const int quads = p.ranks / 4, j = static_cast<int>(item % quads) * 4;
  const std::int64_t column = item / quads;
  int slice = 0;
  while (slice + 1 < p.num_slices && column >= p.first_column[slice + 1]) ++slice;
  float* const db = p.grads.db[static_cast<std::int64_t>(slot) * p.num_slices + slice];
  const AdapterEntry& entry = p.entries[slot * p.slot_stride + slice];
  const int rank = bounded_rank(entry, p.max_rank);
  if (db == nullptr || j >= rank || slot == p.done_slot) return;
  float* const to = db + (column - p.first_column[slice]) * rank + j;
  const int count = min(4, rank - j);
  const bool accumulates = p.grads.mode == YMode::accumulate;
  if (sums.rows == 0 || paired_rank(entry, p.max_rank) == 0) {
    if (!accumulates) put_4(to, make_float4(0, 0, 0, 0), count, false);
  } else if (sums.chunks > 1) {
    wait_for_previous();  // not before: what was read so far no kernel of the call writes
    const std::int64_t step = p.total_out * p.ranks;
    put_4(
        to,
        sum_4(p.db_partials + sums.first_partial * step + column * p.ranks + j, step, sums.chunks),
        count, accumulates);
  }
}

__device__ inline void finish_da(const GradientParams& p, int slot, const SlotSums& sums,
                                 std::int64_t item) {
  const std::int64_t quads = p.padded_in / 4, k = item % quads * 4;
  const int v = static_cast<int>(item / quads), slice = v / p.max_rank, j = v % p.max_rank;
  float* const* const all = p.grads.da + static_cast<std::int64_t>(slot) * p.num_slices;
  float* const da = all[slice];
  if (da == nullptr || (p.is_da_done && slot == p.done_slot)) return;
  const AdapterEntry* const entries = p.entries + slot * p.slot_stride;
  int written = 0;
  bool any = false;
  for (int s = 0; s < p.num_slices; ++s) {
    any = any || paired_rank(entries[s], p.max_rank) > 0;
    if (all[s] != da) continue;
    if (s < slice) return;  // a slice before this one has the same da, and writes it
    written = max(written, bounded_rank(entries[s], p.max_rank));
  }
  if (j >= written) return;
  float* const to = da + j * p.in + k;
  const int count = static_cast<int>(p.in - k < 4 ? p.in - k : 4);
  const bool accumulates = p.grads.mode == YMode::accumulate;
  float4 total = make_float4(0, 0, 0, 0);
  if (sums.rows == 0 || !any) {
    if (!accumulates) put_4(to, total, count, false);
    return;
  }
  if (sums.chunks <= 1) return;
  wait_for_previous();
  bool contributes = false;
  const std::int64_t step = static_cast<std::int64_t>(p.num_slices) * p.max_rank * p.padded_in;
  for (int s = slice; s < p.num_slices; ++s) {
    if (all[s] != da || j >= paired_rank(entries[s], p.max_rank)) continue;
    contributes = true;
    add(total,
        sum_4(p.da_partials + sums.first_partial * step + (s * p.max_rank + j) * p.padded_in + k,
              step, sums.chunks));
  }
  if (contributes || !accumulates) put_4(to, total, count, accumulates);
}

__device__ inline void finish_dbias(const GradientParams& p, int slot, const SlotSums& sums,
                                    std::int64_t column) {
  int slice = 0;
  while (slice + 1 < p.num_slices && column >= p.first_column[slice + 1]) ++slice;
  float* const dbias = p.grads.dbias[static_cast<std::int64_t>(slot) * p.num_slices + slice];
  if (dbias == nullptr) return;
  float* const to = dbias + (column - p.first_column[slice]);
  const bool accumulates = p.grads.mode == YMode::accumulate;
  if (sums.rows == 0 || paired_rank(p.entries[slot * p.slot_stride + slice], p.max_rank) == 0) {
    if (!accumulates) *to = 0.0f;
  } else if (sums.chunks > 1) {
    wait_for_previous();
    const std::int64_t step = (p.total_out + 3) / 4 * 4;
    float sum = 0.0f;
    for (int i = 0; i < sums.chunks; ++i)
      sum += p.dbias_partials[(sums.first_partial + i) * step + column];
    *to = accumulates ? *to + sum : sum;
  }
}

}  // namespace sums
}  // namespace cuda
RANKFOLD_NAMESPACE_END
