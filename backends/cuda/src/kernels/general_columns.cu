// da of embeddings: columns by id, in row order.
#include "general_sums.cuh"
#include "launch.hpp"
#include "modules.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

namespace {

using namespace general_sums;
constexpr int kThreads = 256;

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
    if (Status status = launch(&clear_da, grid, kThreads, stream, params); !status.ok())
      return status;
  }
  const std::int64_t num_rows = ids.sizes[0];
  if (num_rows == 0) return {};
  return launch(&da_columns_kernel, grid_of(num_rows), 64, stream, ColumnParams{params, num_rows});
}

RANKFOLD_CUDA_MODULE(general_columns)

}  // namespace cuda
RANKFOLD_NAMESPACE_END
