// dbias of the tensor-core backward: dy once more, as few adapters have a bias.
#include "backward_tiles.cuh"
#include "elements.cuh"
#include "launch_tiles.cuh"
#include "modules.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

namespace {

constexpr int kThreads = 128;  // a column each
constexpr int kRowsAtOnce = 16;

struct BiasParams {
  const void* dy;
  std::int64_t dy_stride;
  const AdapterEntry* entries;
  std::int64_t slot_stride;
  const float* token_weights;
  SlotRuns runs;
  float* partials;
  float* const* dbias;
  YMode mode;
  int chunk_rows;
  int num_slices;
  int max_rank;
  int num_blocks;
  std::int64_t total_out;
  std::int64_t first_column[kMaxSlices + 1];
};

// A thread has a column, and the rows of a chunk in order.
template <class T>
__global__ void __launch_bounds__(kThreads) sum_bias(const __grid_constant__ BiasParams p) {
  const tiles::RowChunk chunk = tiles::find_chunk(
      p.runs, p.chunk_rows, static_cast<int>(blockIdx.x / static_cast<unsigned>(p.num_blocks)));
  const std::int64_t column =
      static_cast<std::int64_t>(blockIdx.x % static_cast<unsigned>(p.num_blocks)) * kThreads +
      threadIdx.x;
  if (chunk.slot < 0 || column >= p.total_out) return;
  int slice = 0;
  while (slice + 1 < p.num_slices && column >= p.first_column[slice + 1]) ++slice;
  const AdapterEntry& entry = p.entries[chunk.slot * p.slot_stride + slice];
  float* const dbias = p.dbias[static_cast<std::int64_t>(chunk.slot) * p.num_slices + slice];
  if (dbias == nullptr || tiles::paired_rank(entry, p.max_rank) == 0) return;
  const T* const dy = static_cast<const T*>(p.dy) + column;
  float sum = 0.0f;
  for (int place = 0; place < chunk.count; place += kRowsAtOnce) {
    float values[kRowsAtOnce], factors[kRowsAtOnce];
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; ++i) {
      values[i] = 0.0f;
      factors[i] = 0.0f;
      if (place + i >= chunk.count) continue;
      const int at = chunk.first + place + i;
      const std::int64_t row = p.runs.order == nullptr ? at : p.runs.order[at];
      values[i] = widen(dy[row * p.dy_stride]);
      factors[i] =
          p.token_weights == nullptr ? entry.scaling : entry.scaling * p.token_weights[row];
    }
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; ++i) sum += factors[i] * values[i];
  }
  if (chunk.partial >= 0) {
    p.partials[chunk.partial * ((p.total_out + 3) / 4 * 4) + column] = sum;
    return;
  }
  float* const to = dbias + (column - p.first_column[slice]);
  *to = p.mode == YMode::overwrite ? sum : *to + sum;
}

}  // namespace

Status backward_bias(const TensorBackward& call, cudaStream_t stream) {
  const BackwardArgs& args = *call.args;
  const TableShape& shape = args.table.shape;
  if (args.grads.dbias == nullptr || call.tiling.dy_chunks == 0 || total_out(shape) == 0) return {};
  BiasParams p{};
  p.dy = args.dy.data;
  p.dy_stride = args.dy.strides[0];
  p.entries = args.table.entries;
  p.slot_stride = args.table.slot_stride;
  p.token_weights = args.addressing.token_weights;
  p.runs = call.runs;
  p.partials = call.partials.dbias;
  p.dbias = args.grads.dbias;
  p.mode = args.grads.mode;
  p.chunk_rows = call.tiling.dy_chunk;
  p.num_slices = shape.num_slices;
  p.max_rank = shape.max_rank;
  p.total_out = total_out(shape);
  p.num_blocks = static_cast<int>(divide_up(p.total_out, kThreads));
  for (int s = 0; s < shape.num_slices; ++s)
    p.first_column[s + 1] = p.first_column[s] + shape.out[s];
  return with_half(args.dy.dtype, [&]<class T>(const T*) {
    return launch_tiles(&sum_bias<T>, call.tiling.dy_chunks * p.num_blocks, kThreads, 0, false,
                        stream, p);
  });
}

RANKFOLD_CUDA_MODULE(backward_bias)

}  // namespace cuda
RANKFOLD_NAMESPACE_END
