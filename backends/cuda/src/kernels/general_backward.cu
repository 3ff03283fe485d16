#include "elements.cuh"
#include "general.hpp"
#include "launch.hpp"
#include "modules.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

namespace {

constexpr int kWarp = 32;
constexpr int kWarps = 8;      // rows of a block of ds
constexpr int kColumns = 256;  // threads of the others, a column each

// The rank that rows compute with: 0 where A or B is missing.
__device__ int paired_rank(const AdapterEntry& entry, int max_rank) {
  return entry.a != nullptr && entry.b != nullptr ? bounded_rank(entry, max_rank) : 0;
}

struct DsParams {
  const void* dy;
  std::int64_t dy_stride;
  const AdapterEntry* entries;
  Rows rows;
  std::int64_t num_rows;
  Hidden ds;
  std::int64_t out[kMaxSlices];
  int num_slices;
  int max_rank;
};

// A warp has a row and a slice: 32 lanes along the columns of dy for one rank after the other.
template <class TY, class TB>
__global__ void __launch_bounds__(kWarps* kWarp) ds_rows(DsParams p) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  std::int64_t first_column = 0;
  for (int s = 0; s < static_cast<int>(blockIdx.y); ++s) first_column += p.out[s];
  const int slice = static_cast<int>(blockIdx.y);
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kWarps;
  for (std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
       row < p.num_rows; row += step) {
    const Route found = route(p.rows, row);
    if (found.entry < 0) continue;
    const AdapterEntry& entry = p.entries[found.entry + slice];
    const int rank = paired_rank(entry, p.max_rank);
    const float f = strength(p.rows, found, row, entry.scaling);
    const TY* const dy = static_cast<const TY*>(p.dy) + row * p.dy_stride + first_column;
    const TB* const b = static_cast<const TB*>(entry.b);
    float* const ds = p.ds.data + row * p.ds.stride + slice * p.max_rank;
    for (int j = 0; j < rank; ++j) {
      float sum = 0.0f;
      for (std::int64_t n = lane; n < p.out[slice]; n += kWarp) {
        sum += widen(dy[n]) * widen(b[n * entry.b_row_stride + j]);
      }
      for (int half = kWarp / 2; half > 0; half /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, half);
      if (lane == 0) ds[j] = f * sum;
    }
  }
}

struct DxParams {
  Hidden ds;
  const AdapterEntry* entries;
  Rows rows;
  std::int64_t num_rows;
  void* dx;
  std::int64_t dx_stride;
  std::int64_t in;
  int num_slices;
  int max_rank;
  int overwrites;
  DropoutMask dropout;
};

template <class TX, class TA>
__global__ void __launch_bounds__(kColumns) dx_rows(DxParams p) {
  const std::int64_t k = static_cast<std::int64_t>(blockIdx.x) * kColumns + threadIdx.x;
  if (k >= p.in) return;
  for (std::int64_t row = blockIdx.y; row < p.num_rows; row += gridDim.y) {
    TX* const dx = static_cast<TX*>(p.dx) + row * p.dx_stride + k;
    const Route found = route(p.rows, row);
    float delta = 0.0f;
    bool touched = false;
    for (int slice = 0; found.entry >= 0 && slice < p.num_slices; ++slice) {
      const AdapterEntry& entry = p.entries[found.entry + slice];
      const int rank = paired_rank(entry, p.max_rank);
      if (rank == 0) continue;
      touched = true;
      if (p.dropout.drops && !keeps(p.dropout, row, k, slice)) continue;
      const float* const ds = p.ds.data + row * p.ds.stride + slice * p.max_rank;
      const TA* const a = static_cast<const TA*>(entry.a) + k;
      float sum = 0.0f;
      for (int j = 0; j < rank; ++j) sum += ds[j] * widen(a[j * entry.a_row_stride]);
      delta += p.dropout.drops ? sum * p.dropout.scale : sum;
    }
    if (p.overwrites) {
      *dx = narrow<TX>(delta);
    } else if (touched) {
      *dx = narrow<TX>(widen(*dx) + delta);
    }
  }
}

// What sums over the rows of a slot have in common.
struct SumParams {
  Hidden h;             // ds or h
  const void* rows_of;  // x, ids or dy
  std::int64_t row_stride;
  const AdapterEntry* entries;
  std::int64_t slot_stride;
  SlotRows slot_rows;
  Gradients grads;
  DropoutMask dropout;
  Rows rows;
  std::int64_t out[kMaxSlices];
  std::int64_t in;
  int num_slots;
  int num_slices;
  int max_rank;
  int is_i64;
};

struct Range {
  std::int64_t begin;
  std::int64_t end;
};
__device__ Range rows_of_slot(const SumParams& p, int slot) {
  return {slot > 0 ? p.slot_rows.ends[slot - 1] : 0, p.slot_rows.ends[slot]};
}
__device__ float* pointer(float* const* array, const SumParams& p, int slot, int slice) {
  return array == nullptr ? nullptr : array[static_cast<std::int64_t>(slot) * p.num_slices + slice];
}
__device__ void put(float* target, float sum, bool contributes, YMode mode) {
  if (mode == YMode::overwrite) {
    *target = contributes ? sum : 0.0f;
  } else if (contributes) {
    *target += sum;
  }
}

// The first slice with this slice's da pointer, which alone writes.
__device__ bool owns_da(const SumParams& p, int slot, int slice, const float* da) {
  for (int s = 0; s < slice; ++s) {
    if (pointer(p.grads.da, p, slot, s) == da) return false;
  }
  return true;
}

// A thread has an element (j, k) of da of a slot: rows in ascending order, slices that share it one
// after the other. grid: x columns, y (slot, slice).
template <class TX>
__global__ void __launch_bounds__(kColumns) da_elements(SumParams p) {
  const std::int64_t k = static_cast<std::int64_t>(blockIdx.x) * kColumns + threadIdx.x;
  if (k >= p.in) return;
  for (std::int64_t item = blockIdx.y; item < static_cast<std::int64_t>(p.num_slots) * p.num_slices;
       item += gridDim.y) {
    const int slot = static_cast<int>(item / p.num_slices),
              owner = static_cast<int>(item % p.num_slices);
    float* const da = pointer(p.grads.da, p, slot, owner);
    if (da == nullptr || !owns_da(p, slot, owner, da)) continue;
    const AdapterEntry* const entries = p.entries + slot * p.slot_stride;
    const Range range = rows_of_slot(p, slot);
    int ranks = 0;
    bool contributes = false;
    for (int s = owner; s < p.num_slices; ++s) {
      if (pointer(p.grads.da, p, slot, s) != da) continue;
      const int rank = bounded_rank(entries[s], p.max_rank);
      ranks = rank > ranks ? rank : ranks;
      contributes = contributes || paired_rank(entries[s], p.max_rank) > 0;
    }
    contributes = contributes && range.end > range.begin;
    for (int j = 0; j < ranks; ++j) {
      float total = 0.0f;
      for (int s = owner; contributes && s < p.num_slices; ++s) {
        if (pointer(p.grads.da, p, slot, s) != da || j >= paired_rank(entries[s], p.max_rank))
          continue;
        float sum = 0.0f;
        for (std::int64_t i = range.begin; i < range.end; ++i) {
          const std::int64_t row = p.slot_rows.order[i];
          const float x = widen(static_cast<const TX*>(p.rows_of)[row * p.row_stride + k]);
          sum += p.h.data[row * p.h.stride + s * p.max_rank + j] * dropped(p.dropout, x, row, k, s);
        }
        total += sum;
      }
      put(da + j * p.in + k, total, contributes, p.grads.mode);
    }
  }
}

// Columns of da by id. A block has a slot, a thread a rank: it alone writes its row of da, in row
// order. Columns without rows were cleared before.
__global__ void clear_da(SumParams p) {
  for (std::int64_t item = blockIdx.y; item < static_cast<std::int64_t>(p.num_slots) * p.num_slices;
       item += gridDim.y) {
    const int slot = static_cast<int>(item / p.num_slices),
              slice = static_cast<int>(item % p.num_slices);
    float* const da = pointer(p.grads.da, p, slot, slice);
    if (da == nullptr) continue;
    const std::int64_t count =
        bounded_rank(p.entries[slot * p.slot_stride + slice], p.max_rank) * p.in;
    const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
    for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
         i < count; i += step) {
      da[i] = 0.0f;
    }
  }
}

__device__ std::int64_t id_of(const SumParams& p, std::int64_t row) {
  const std::int64_t at = row * p.row_stride;
  return p.is_i64 ? static_cast<const std::int64_t*>(p.rows_of)[at]
                  : static_cast<const std::int32_t*>(p.rows_of)[at];
}

// A block has (slot, place i): if no earlier row of the slot has the id, it sums all that have, in
// order, and adds once. Threads are ranks.
__device__ void da_columns_body(const SumParams& p, std::int64_t num_rows) {
  for (std::int64_t place = blockIdx.x; place < num_rows; place += gridDim.x) {
    // Which slot the place belongs to.
    int low = 0, high = p.num_slots;
    while (low < high) {
      const int middle = (low + high) / 2;
      if (p.slot_rows.ends[middle] <= place) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    if (low >= p.num_slots) return;
    const int slot = low;
    const Range range = rows_of_slot(p, slot);
    const AdapterEntry& entry = p.entries[slot * p.slot_stride];
    const int rank = paired_rank(entry, p.max_rank);
    float* const da = pointer(p.grads.da, p, slot, 0);
    const std::int64_t id = id_of(p, p.slot_rows.order[place]);
    const std::int64_t limit = entry.in_limit < p.in ? entry.in_limit : p.in;
    if (da == nullptr || rank == 0 || id < 0 || id >= limit) continue;
    bool first = true;
    for (std::int64_t i = range.begin; i < place && first; ++i)
      first = id_of(p, p.slot_rows.order[i]) != id;
    if (!first) continue;
    for (int j = static_cast<int>(threadIdx.x); j < rank; j += blockDim.x) {
      float sum = 0.0f;
      for (std::int64_t i = place; i < range.end; ++i) {
        const std::int64_t row = p.slot_rows.order[i];
        if (id_of(p, row) == id) sum += p.h.data[row * p.h.stride + j];
      }
      da[j * p.in + id] += sum;
    }
  }
}

// A thread has a row n of db of a slot, and its dbias.
template <class TY>
__global__ void __launch_bounds__(kColumns) db_elements(SumParams p) {
  for (std::int64_t item = blockIdx.y; item < static_cast<std::int64_t>(p.num_slots) * p.num_slices;
       item += gridDim.y) {
    const int slot = static_cast<int>(item / p.num_slices),
              slice = static_cast<int>(item % p.num_slices);
    const std::int64_t n = static_cast<std::int64_t>(blockIdx.x) * kColumns + threadIdx.x;
    if (n >= p.out[slice]) continue;
    float* const db = pointer(p.grads.db, p, slot, slice);
    float* const dbias = pointer(p.grads.dbias, p, slot, slice);
    if (db == nullptr && dbias == nullptr) continue;
    std::int64_t column = n;
    for (int s = 0; s < slice; ++s) column += p.out[s];
    const AdapterEntry& entry = p.entries[slot * p.slot_stride + slice];
    const int rank = bounded_rank(entry, p.max_rank);
    const Range range = rows_of_slot(p, slot);
    const bool contributes = range.end > range.begin && paired_rank(entry, p.max_rank) > 0;
    const TY* const dy = static_cast<const TY*>(p.rows_of) + column;
    Route found;
    for (int j = -1; j < rank; ++j) {
      float* const target = j < 0 ? (dbias == nullptr ? nullptr : dbias + n)
                                  : (db == nullptr ? nullptr : db + n * rank + j);
      if (target == nullptr) continue;
      float sum = 0.0f;
      for (std::int64_t i = range.begin; contributes && i < range.end; ++i) {
        const std::int64_t row = p.slot_rows.order[i];
        found.token = row;
        const float g = strength(p.rows, found, row, entry.scaling) * widen(dy[row * p.row_stride]);
        sum += j < 0 ? g : g * p.h.data[row * p.h.stride + slice * p.max_rank + j];
      }
      put(target, sum, contributes, p.grads.mode);
    }
  }
}

SumParams sum_params(const Hidden& h, const ConstTensorView& rows_of, const AdapterTableView& table,
                     const SlotRows& slot_rows, const Gradients& grads) noexcept {
  SumParams params{};
  params.h = h;
  params.rows_of = rows_of.data;
  params.row_stride = rows_of.strides[0];
  params.is_i64 = rows_of.dtype == DType::i64;
  params.entries = table.entries;
  params.slot_stride = table.slot_stride;
  params.slot_rows = slot_rows;
  params.grads = grads;
  for (int s = 0; s < table.shape.num_slices; ++s) params.out[s] = table.shape.out[s];
  params.in = table.shape.in;
  params.num_slots = table.shape.num_slots;
  params.num_slices = table.shape.num_slices;
  params.max_rank = table.shape.max_rank;
  return params;
}

}  // namespace

Status general_ds(const ConstTensorView& dy, const AdapterTableView& table, const Rows& rows,
                  std::int64_t num_rows, const Hidden& ds, cudaStream_t stream) {
  const TableShape& shape = table.shape;
  if (num_rows == 0 || shape.max_rank == 0) return {};
  DsParams params{};
  params.dy = dy.data;
  params.dy_stride = dy.strides[0];
  params.entries = table.entries;
  params.rows = rows;
  params.num_rows = num_rows;
  params.ds = ds;
  for (int s = 0; s < shape.num_slices; ++s) params.out[s] = shape.out[s];
  params.num_slices = shape.num_slices;
  params.max_rank = shape.max_rank;
  return with_element(dy.dtype, [&]<class TY>(const TY*) {
    return with_element(shape.b_dtype, [&]<class TB>(const TB*) {
      return launch(&ds_rows<TY, TB>, grid_of(divide_up(num_rows, kWarps), shape.num_slices),
                    kWarps * kWarp, stream, params);
    });
  });
}

Status general_dx(const Hidden& ds, const AdapterTableView& table, const Rows& rows,
                  std::int64_t num_rows, const TensorView& dx, YMode mode,
                  const DropoutMask& dropout, cudaStream_t stream) {
  const TableShape& shape = table.shape;
  if (num_rows == 0 || shape.in == 0) return {};
  const DxParams params{ds,
                        table.entries,
                        rows,
                        num_rows,
                        dx.data,
                        dx.strides[0],
                        shape.in,
                        shape.num_slices,
                        shape.max_rank,
                        mode == YMode::overwrite,
                        dropout};
  return with_element(dx.dtype, [&]<class TX>(const TX*) {
    return with_element(shape.a_dtype, [&]<class TA>(const TA*) {
      return launch(&dx_rows<TX, TA>, grid_of(divide_up(shape.in, kColumns), num_rows), kColumns,
                    stream, params);
    });
  });
}

Status general_da(const Hidden& ds, const ConstTensorView& x, const AdapterTableView& table,
                  const SlotRows& slot_rows, const Gradients& grads, const DropoutMask& dropout,
                  cudaStream_t stream) {
  const TableShape& shape = table.shape;
  if (shape.in == 0 || shape.num_slots == 0) return {};
  SumParams params = sum_params(ds, x, table, slot_rows, grads);
  params.dropout = dropout;
  const dim3 grid =
      grid_of(divide_up(shape.in, kColumns), std::int64_t{shape.num_slots} * shape.num_slices);
  return with_element(x.dtype, [&]<class TX>(const TX*) {
    return launch(&da_elements<TX>, grid, kColumns, stream, params);
  });
}

namespace {
struct ColumnParams {
  SumParams sum;
  std::int64_t num_rows;
};
__global__ void da_columns_kernel(ColumnParams p) { da_columns_body(p.sum, p.num_rows); }
}  // namespace

Status general_da_columns(const Hidden& ds, const ConstTensorView& ids,
                          const AdapterTableView& table, const SlotRows& slot_rows,
                          const Gradients& grads, cudaStream_t stream) {
  const TableShape& shape = table.shape;
  if (shape.num_slots == 0) return {};
  const SumParams params = sum_params(ds, ids, table, slot_rows, grads);
  if (grads.mode == YMode::overwrite) {
    const dim3 grid = grid_of(64, std::int64_t{shape.num_slots} * shape.num_slices);
    if (Status status = launch(&clear_da, grid, kColumns, stream, params); !status.ok())
      return status;
  }
  const std::int64_t num_rows = ids.sizes[0];
  if (num_rows == 0) return {};
  return launch(&da_columns_kernel, grid_of(num_rows), 64, stream, ColumnParams{params, num_rows});
}

Status general_db(const Hidden& h, const ConstTensorView& dy, const AdapterTableView& table,
                  const Rows& rows, const SlotRows& slot_rows, const Gradients& grads,
                  cudaStream_t stream) {
  const TableShape& shape = table.shape;
  std::int64_t widest = 0;
  for (int s = 0; s < shape.num_slices; ++s) widest = std::max(widest, shape.out[s]);
  if (widest == 0 || shape.num_slots == 0) return {};
  SumParams params = sum_params(h, dy, table, slot_rows, grads);
  params.rows = rows;
  const dim3 grid =
      grid_of(divide_up(widest, kColumns), std::int64_t{shape.num_slots} * shape.num_slices);
  return with_element(dy.dtype, [&]<class TY>(const TY*) {
    return launch(&db_elements<TY>, grid, kColumns, stream, params);
  });
}

RANKFOLD_CUDA_MODULE(general_backward)

}  // namespace cuda
RANKFOLD_NAMESPACE_END
