// What the two passes of backward leave: partial sums are added, in the order of blocks and chunks,
// and what no row contributed to is cleared.
#include "backward_tiles.cuh"
#include "elements.cuh"
#include "launch_tiles.cuh"
#include "modules.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

namespace {

using tiles::paired_rank;
constexpr int kThreads = 256;

__device__ __forceinline__ float4 load_4(const float* p) {
  return *reinterpret_cast<const float4*>(p);
}
__device__ __forceinline__ void add(float4& sum, const float4& v) {
  sum.x += v.x;
  sum.y += v.y;
  sum.z += v.z;
  sum.w += v.w;
}
/// The sum of `count` quadruples `step` floats apart, in order; eight are on their way at a time.
__device__ __forceinline__ float4 sum_4(const float* from, std::int64_t step, int count) {
  float4 sum = make_float4(0, 0, 0, 0);
  int i = 0;
  for (; i + 8 <= count; i += 8) {
    float4 v[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) v[j] = load_4(from + (i + j) * step);
#pragma unroll
    for (int j = 0; j < 8; ++j) add(sum, v[j]);
  }
  if (i + 4 <= count) {
    float4 v[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) v[j] = load_4(from + (i + j) * step);
#pragma unroll
    for (int j = 0; j < 4; ++j) add(sum, v[j]);
    i += 4;
  }
  for (; i < count; ++i) add(sum, load_4(from + i * step));
  return sum;
}

__device__ void put_4(float* to, const float4& v, int count, bool accumulates) {
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
  const AdapterEntry* entries;
  std::int64_t slot_stride;
  const float* token_weights;
  SlotRuns runs;
  int ranks;
  int num_slices;
  int max_rank;
  int first_block[kMaxSlices + 1];
};

// A thread has four ranks of a row and slice.
__global__ void __launch_bounds__(kThreads) sum_ds(const __grid_constant__ DsParams p) {
  const int quads = p.ranks / 4;
  const std::int64_t item = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
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
  if (!works) return;
  const int first = p.first_block[slice];
  const float4 sum =
      sum_4(p.partials + (static_cast<std::int64_t>(first) * p.runs.num_rows + place) * p.ranks + j,
            static_cast<std::int64_t>(p.runs.num_rows) * p.ranks, p.first_block[slice + 1] - first);
  const float4 v = make_float4(f * sum.x, f * sum.y, f * sum.z, f * sum.w);
  put_4(p.whole + place * p.whole_stride + slice * p.max_rank + j, v, min(4, rank - j), false);
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
  std::int64_t first_column[kMaxSlices + 1];
};

struct SlotSums {
  std::int64_t rows;
  std::int64_t first_partial;
  int chunks;
};
__device__ SlotSums sums_of_slot(const SlotRuns& g, int chunk_rows, int slot) {
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

__device__ void finish_db(const GradientParams& p, int slot, const SlotSums& sums,
                          std::int64_t item) {
  const int quads = p.ranks / 4, j = static_cast<int>(item % quads) * 4;
  const std::int64_t column = item / quads;
  int slice = 0;
  while (slice + 1 < p.num_slices && column >= p.first_column[slice + 1]) ++slice;
  float* const db = p.grads.db[static_cast<std::int64_t>(slot) * p.num_slices + slice];
  const AdapterEntry& entry = p.entries[slot * p.slot_stride + slice];
  const int rank = bounded_rank(entry, p.max_rank);
  if (db == nullptr || j >= rank) return;
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

__device__ void finish_da(const GradientParams& p, int slot, const SlotSums& sums,
                          std::int64_t item) {
  const std::int64_t quads = p.padded_in / 4, k = item % quads * 4;
  const int v = static_cast<int>(item / quads), slice = v / p.max_rank, j = v % p.max_rank;
  float* const* const all = p.grads.da + static_cast<std::int64_t>(slot) * p.num_slices;
  float* const da = all[slice];
  if (da == nullptr) return;
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

__device__ void finish_dbias(const GradientParams& p, int slot, const SlotSums& sums,
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

// grid: x items of a slot, y slots.
__global__ void __launch_bounds__(kThreads)
    sum_gradients(const __grid_constant__ GradientParams p) {
  const std::int64_t item = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  for (int slot = static_cast<int>(blockIdx.y); slot < p.runs.num_slots;
       slot += static_cast<int>(gridDim.y)) {
    // All lanes scan, whatever they sum.
    if (p.db_items + p.dbias_items > 0) {
      const SlotSums sums = sums_of_slot(p.runs, p.dy_chunk, slot);
      const std::int64_t column = item - p.db_items - p.da_items;
      if (item < p.db_items) finish_db(p, slot, sums, item);
      if (column >= 0 && column < p.dbias_items) finish_dbias(p, slot, sums, column);
    }
    if (p.da_items > 0) {
      const SlotSums sums = sums_of_slot(p.runs, p.x_chunk, slot);
      if (item >= p.db_items && item < p.db_items + p.da_items)
        finish_da(p, slot, sums, item - p.db_items);
    }
  }
}

struct PackParams {
  const float* h;
  std::int64_t stride;
  float* packed;
  std::int64_t num_rows;
  int num_slices;
  int max_rank;
};

// h with slices that begin on 16 bytes.
__global__ void __launch_bounds__(kThreads) pack_rows(const __grid_constant__ PackParams p) {
  const int width = (p.max_rank + 3) / 4 * 4, columns = p.num_slices * p.max_rank;
  const std::int64_t item = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const std::int64_t row = item / columns;
  const int v = static_cast<int>(item % columns);
  if (row >= p.num_rows) return;
  p.packed[row * p.num_slices * width + v / p.max_rank * width + v % p.max_rank] =
      p.h[row * p.stride + v];
}

struct ClearParams {
  std::uint16_t* dx;
  std::int64_t dx_stride;
  std::int64_t in;
  const AdapterEntry* entries;
  Rows rows;
  std::int64_t num_rows;
  int max_rank;
};

// Rows of dx that no adapter touches, when overwriting. A warp has a row.
__global__ void __launch_bounds__(kThreads) clear_untouched(const __grid_constant__ ClearParams p) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * (kThreads / 32);
  for (std::int64_t row =
           static_cast<std::int64_t>(blockIdx.x) * (kThreads / 32) + threadIdx.x / 32;
       row < p.num_rows; row += step) {
    const Route found = route(p.rows, row);
    bool touched = false;
    for (int s = 0; found.entry >= 0 && s < p.rows.num_slices; ++s) {
      touched = touched || paired_rank(p.entries[found.entry + s], p.max_rank) > 0;
    }
    if (touched) continue;
    for (std::int64_t k = threadIdx.x % 32; k < p.in; k += 32) p.dx[row * p.dx_stride + k] = 0;
  }
}

}  // namespace

Status finish_ds(const TensorBackward& call, cudaStream_t stream) {
  const TableShape& shape = call.args->table.shape;
  if ((call.outputs & (kOutputDs | kOutputDx | kOutputDa)) == 0 || call.runs.num_rows == 0)
    return {};
  DsParams p{};
  p.partials = call.partials.ds;
  p.whole = call.partials.whole_ds;
  p.whole_stride = whole_ds_stride(shape);
  if ((call.outputs & kOutputDs) != 0) {
    p.ds = call.ds.data;
    p.ds_stride = call.ds.stride;
  }
  p.entries = call.args->table.entries;
  p.slot_stride = call.args->table.slot_stride;
  p.token_weights = call.args->addressing.token_weights;
  p.runs = call.runs;
  p.ranks = call.tiling.ranks;
  p.num_slices = shape.num_slices;
  p.max_rank = shape.max_rank;
  for (int s = 0; s < shape.num_slices; ++s) {
    p.first_block[s + 1] =
        p.first_block[s] + static_cast<int>(divide_up(shape.out[s], kDyBlockColumns));
  }
  const std::int64_t items = std::int64_t{p.runs.num_rows} * p.num_slices * (p.ranks / 4);
  return launch_tiles(&sum_ds, divide_up(items, kThreads), kThreads, 0, true, stream, p);
}

Status finish_gradients(const TensorBackward& call, cudaStream_t stream) {
  const BackwardArgs& args = *call.args;
  const TableShape& shape = args.table.shape;
  GradientParams p{};
  p.entries = args.table.entries;
  p.slot_stride = args.table.slot_stride;
  p.runs = call.runs;
  p.grads = args.grads;
  p.db_partials = call.partials.db;
  p.da_partials = call.partials.da;
  p.total_out = total_out(shape);
  p.in = shape.in;
  p.padded_in = divide_up(shape.in, 4) * 4;
  p.ranks = call.tiling.ranks;
  p.num_slices = shape.num_slices;
  p.max_rank = shape.max_rank;
  p.dy_chunk = call.tiling.dy_chunk;
  p.x_chunk = call.tiling.x_chunk;
  p.db_items = args.grads.db != nullptr ? p.total_out * (p.ranks / 4) : 0;
  p.da_items = args.grads.da != nullptr ? p.padded_in / 4 * p.num_slices * p.max_rank : 0;
  for (int s = 0; s < shape.num_slices; ++s)
    p.first_column[s + 1] = p.first_column[s] + shape.out[s];
  p.dbias_partials = call.partials.dbias;
  p.dbias_items = args.grads.dbias != nullptr ? p.total_out : 0;
  const std::int64_t items = p.db_items + p.da_items + p.dbias_items;
  if (items == 0 || shape.num_slots == 0) return {};
  return launch_tiles(&sum_gradients, divide_up(items, kThreads), kThreads, 0, true, stream, p,
                      shape.num_slots);
}

Status clear_rows(const TensorBackward& call, cudaStream_t stream) {
  const BackwardArgs& args = *call.args;
  if (!call.makes_dx || args.options.y_mode != YMode::overwrite || call.runs.num_rows == 0)
    return {};
  const ClearParams p{static_cast<std::uint16_t*>(args.dx.data),
                      args.dx.strides[0],
                      args.table.shape.in,
                      args.table.entries,
                      call.rows,
                      call.runs.num_rows,
                      args.table.shape.max_rank};
  return launch_tiles(&clear_untouched, divide_up(call.runs.num_rows, kThreads / 32), kThreads, 0,
                      false, stream, p);
}

Status pack_h(TensorBackward& call, cudaStream_t stream) {
  const TableShape& shape = call.args->table.shape;
  call.h_slice = shape.max_rank;
  if ((call.outputs & kOutputDb) == 0 || call.runs.num_rows == 0) return {};
  if (is_aligned(call.h.data, 4 * call.h.stride, 16) && shape.max_rank % 4 == 0) return {};
  const PackParams p{call.h.data,        call.h.stride,    call.partials.packed_h,
                     call.runs.num_rows, shape.num_slices, shape.max_rank};
  call.h_slice = (shape.max_rank + 3) / 4 * 4;
  call.h = {call.partials.packed_h, std::int64_t{shape.num_slices} * call.h_slice, 0};
  const std::int64_t items = p.num_rows * shape.num_slices * shape.max_rank;
  return launch_tiles(&pack_rows, divide_up(items, kThreads), kThreads, 0, false, stream, p);
}

Status tensor_backward(TensorBackward call, cudaStream_t stream) {
  if (Status status = pack_h(call, stream); !status.ok()) return status;
  using Step = Status (*)(const TensorBackward&, cudaStream_t);
  // Rows are cleared first: what overlaps follows the kernel that it depends on.
  for (const Step step : {&clear_rows, &backward_bias, &backward_over_dy, &finish_ds,
                          &backward_over_x, &finish_gradients}) {
    if (Status status = step(call, stream); !status.ok()) return status;
  }
  return {};
}

RANKFOLD_CUDA_MODULE(backward_finish)

}  // namespace cuda
RANKFOLD_NAMESPACE_END
