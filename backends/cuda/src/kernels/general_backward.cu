#include "elements.cuh"
#include "general_sums.cuh"
#include "launch.hpp"
#include "modules.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

namespace {

using namespace general_sums;
constexpr int kWarp = 32;
constexpr int kWarps = 8;      // rows of a block of ds
constexpr int kColumns = 256;  // threads of the others, a column each

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
