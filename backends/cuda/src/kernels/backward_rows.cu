// The steps of the tensor-core backward in order, and what prepares and clears rows for them.
#include "backward_tiles.cuh"
#include "launch_tiles.cuh"
#include "modules.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

namespace {

using tiles::paired_rank;
constexpr int kThreads = 256;

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

struct SplitParams {
  const float* h;
  std::int64_t stride;
  __nv_bfloat16* split;
  const AdapterEntry* entry;
  const float* token_weights;
  std::int64_t num_rows;
  int max_rank;
  int wide;  // rows begin at multiples of 16 bytes
};

// f h as high and low parts. A thread has four ranks of a row.
__global__ void __launch_bounds__(kThreads) split_h(const __grid_constant__ SplitParams p) {
  constexpr int kQuads = kTileMaxRank / 4;
  const std::int64_t item = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const std::int64_t row = item / kQuads;
  const int j = static_cast<int>(item % kQuads) * 4;
  if (row >= p.num_rows) return;
  const float* const from = p.h + row * p.stride + j;
  float v[4] = {};
  if (p.wide && j + 4 <= p.max_rank) {
    const float4 four = *reinterpret_cast<const float4*>(from);
    v[0] = four.x, v[1] = four.y, v[2] = four.z, v[3] = four.w;
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] = j + i < p.max_rank ? from[i] : 0.0f;
  }
  float f = p.entry->scaling;
  const int rank = paired_rank(*p.entry, p.max_rank);
  if (p.token_weights != nullptr) f *= p.token_weights[row];
#pragma unroll
  for (int i = 0; i < 4; ++i) v[i] = j + i < rank ? f * v[i] : 0.0f;
  release_next();
  tiles::put_parts(p.split, row, j, make_float4(v[0], v[1], v[2], v[3]));
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

// Whether all is of one slot and slice, bf16, and the copy engine takes it. Not where bits must not
// follow the addressing: ds is summed in another order.
bool takes_uniform(const TensorBackward& call) noexcept {
  const BackwardArgs& args = *call.args;
  const TableShape& shape = args.table.shape;
  const std::int64_t rows = call.runs.num_rows;
  const auto describable = [&](const auto& view, std::int64_t columns) {
    return is_describable(view.data, rows, columns, view.strides[0]);
  };
  const auto has_parts = [&](const float* parts) {
    return is_describable(parts, rows, 2 * kTileMaxRank, 2 * kTileMaxRank);
  };
  return args.dy.dtype == DType::bf16 && args.options.batch_invariant == BatchInvariant::off &&
         keeps_parts(shape) && call.runs.order == nullptr && describable(args.dy, shape.out[0]) &&
         has_parts(call.partials.packed_h) && has_parts(call.partials.whole_ds) && shape.in > 0 &&
         (args.grads.da == nullptr || describable(args.x, shape.in)) &&
         (!call.makes_dx || describable(args.dx, shape.in));
}

}  // namespace

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
  if (call.is_uniform) {
    const int slot = call.runs.uniform_slot;
    if (slot < 0 || slot >= shape.num_slots) return {};
    const SplitParams p{call.h.data,
                        call.h.stride,
                        reinterpret_cast<__nv_bfloat16*>(call.partials.packed_h),
                        call.args->table.entries + slot * call.args->table.slot_stride,
                        call.args->addressing.token_weights,
                        call.runs.num_rows,
                        shape.max_rank,
                        is_aligned(call.h.data, 4 * call.h.stride, 16)};
    return launch_tiles(&split_h, divide_up(p.num_rows * (kTileMaxRank / 4), kThreads), kThreads, 0,
                        false, stream, p);
  }
  if (is_aligned(call.h.data, 4 * call.h.stride, 16) && shape.max_rank % 4 == 0) return {};
  const PackParams p{call.h.data,        call.h.stride,    call.partials.packed_h,
                     call.runs.num_rows, shape.num_slices, shape.max_rank};
  call.h_slice = (shape.max_rank + 3) / 4 * 4;
  call.h = {call.partials.packed_h, std::int64_t{shape.num_slices} * call.h_slice, 0};
  const std::int64_t items = p.num_rows * shape.num_slices * shape.max_rank;
  return launch_tiles(&pack_rows, divide_up(items, kThreads), kThreads, 0, false, stream, p);
}

Status tensor_backward(TensorBackward call, cudaStream_t stream) {
  call.is_uniform = takes_uniform(call);
  if (!call.is_uniform) {
    BackwardTiling& tiling = call.tiling;
    const TableShape& shape = call.args->table.shape;
    if (tiling.dy_columns != kDyBlockColumns)
      tiling.dy_blocks = static_cast<int>(divide_up(shape.out[0], kDyBlockColumns));
    if (tiling.x_columns != kXBlockColumns)
      tiling.x_blocks = static_cast<int>(divide_up(shape.in, kXBlockColumns));
    tiling.dy_columns = kDyBlockColumns;
    tiling.x_columns = kXBlockColumns;
  }
  if (Status status = pack_h(call, stream); !status.ok()) return status;
  // One slice: the sums of dA need no other kernel.
  call.sums_da = !call.is_uniform && call.runs.order == nullptr &&
                 call.args->table.shape.num_slices == 1 && call.args->grads.da != nullptr &&
                 call.runs.num_rows > 0 && call.runs.uniform_slot >= 0 &&
                 call.runs.uniform_slot < call.args->table.shape.num_slots;
  using Step = Status (*)(const TensorBackward&, cudaStream_t);
  // Rows are cleared first: what overlaps follows the kernel that it depends on.
  for (const Step step : {&clear_rows, &backward_bias, &backward_over_dy, &finish_ds,
                          &backward_over_x, &finish_gradients}) {
    if (Status status = step(call, stream); !status.ok()) return status;
  }
  return {};
}

RANKFOLD_CUDA_MODULE(backward_rows)

}  // namespace cuda
RANKFOLD_NAMESPACE_END
