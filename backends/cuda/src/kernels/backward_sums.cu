// What the two passes of backward leave is added up.
#include "backward_sums.cuh"
#include "launch_tiles.cuh"
#include "modules.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

namespace {

using namespace sums;

__global__ void __launch_bounds__(kThreads) sum_ds(const __grid_constant__ DsParams p) {
  sum_ds_item(p, static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x);
}

// What the first kernel sums besides ds, for uniform rows.
struct FirstParams {
  DsParams ds;
  GradientParams gradients;
  int ds_blocks;
};

// Uniform rows: dB besides, as long as its partial sums are in the cache.
__global__ void __launch_bounds__(kThreads) sum_ds_and_db(const __grid_constant__ FirstParams p) {
  const int block = static_cast<int>(blockIdx.x);
  if (block < p.ds_blocks) {
    sum_ds_item(p.ds, static_cast<std::int64_t>(block) * kThreads + threadIdx.x);
    return;
  }
  const std::int64_t item = static_cast<std::int64_t>(block - p.ds_blocks) * kThreads + threadIdx.x;
  const int slot = p.gradients.runs.uniform_slot;
  release_next();
  if (item < p.gradients.db_items)
    finish_db(p.gradients, slot, sums_of_slot(p.gradients.runs, p.gradients.dy_chunk, slot), item);
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

DsParams ds_params(const TensorBackward& call) {
  const TableShape& shape = call.args->table.shape;
  DsParams p{};
  p.partials = call.partials.ds;
  p.whole = call.partials.whole_ds;
  p.whole_stride = whole_ds_stride(shape);
  if (call.is_uniform) p.split = reinterpret_cast<__nv_bfloat16*>(call.partials.whole_ds);
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
  if (call.sums_da) p.counts = call.partials.counts;
  p.num_counts = call.tiling.x_blocks;
  for (int s = 0; s < shape.num_slices; ++s) {
    p.first_block[s + 1] =
        p.first_block[s] + static_cast<int>(divide_up(shape.out[s], call.tiling.dy_columns));
  }
  return p;
}

GradientParams gradient_params(const TensorBackward& call) {
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
  return p;
}

// Whether the kernels for uniform rows have left anything: they are not launched for a slot that is
// none.
bool has_slot(const TensorBackward& call) {
  const int slot = call.runs.uniform_slot;
  return slot >= 0 && slot < call.args->table.shape.num_slots;
}
// dB is summed with ds.
bool sums_db_first(const TensorBackward& call) {
  return call.runs.order == nullptr && call.runs.num_rows > 0 && has_slot(call) &&
         call.args->grads.db != nullptr;
}

}  // namespace

Status finish_ds(const TensorBackward& call, cudaStream_t stream) {
  const bool sums_db = sums_db_first(call);
  const bool makes_ds = (call.outputs & (kOutputDs | kOutputDx | kOutputDa)) != 0;
  const TableShape& shape = call.args->table.shape;
  const std::int64_t items =
      makes_ds ? std::int64_t{call.runs.num_rows} * shape.num_slices * (call.tiling.ranks / 4) : 0;
  if ((items == 0 && !sums_db) || (call.is_uniform && !has_slot(call))) return {};
  const std::int64_t ds_blocks = divide_up(items, kThreads);
  if (!sums_db) return launch_tiles(&sum_ds, ds_blocks, kThreads, 0, true, stream, ds_params(call));
  const FirstParams p{ds_params(call), gradient_params(call), static_cast<int>(ds_blocks)};
  return launch_tiles(&sum_ds_and_db, ds_blocks + divide_up(p.gradients.db_items, kThreads),
                      kThreads, 0, true, stream, p);
}

Status finish_gradients(const TensorBackward& call, cudaStream_t stream) {
  GradientParams p = gradient_params(call);
  if (sums_db_first(call)) {
    p.done_slot = call.runs.uniform_slot;
    if (p.runs.num_slots == 1) p.db_items = 0;
  }
  if (call.sums_da) {
    p.done_slot = call.runs.uniform_slot;
    p.is_da_done = true;
    if (p.runs.num_slots == 1) p.da_items = 0;
  }
  const std::int64_t items = p.db_items + p.da_items + p.dbias_items;
  if (items == 0 || p.runs.num_slots == 0) return {};
  // Nothing of this call may be before it: then it must not begin beside what the host runs.
  const bool overlaps = call.runs.num_rows > 0 && (!call.is_uniform || has_slot(call));
  return launch_tiles(&sum_gradients, divide_up(items, kThreads), kThreads, 0, overlaps, stream, p,
                      p.runs.num_slots);
}

RANKFOLD_CUDA_MODULE(backward_sums)

}  // namespace cuda
RANKFOLD_NAMESPACE_END
