#include "../launch.hpp"
#include "decode.hpp"
#include "decode_rows.cuh"
#include "modules.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

namespace {

struct SumParams {
  const AdapterEntry* entries;
  std::int64_t slot_stride;
  Grouping grouping;
  SplitHidden h;
  float* out;
  std::int64_t out_stride;
  int kind;
  int num_slices;
  int max_rank;
};

__global__ void sum_rows(const __grid_constant__ SumParams p) {
  __shared__ int rows[kDecodeRows];
  const RowBlock block =
      find_decode_block<Lookup::any>(p.grouping, p.kind, static_cast<int>(blockIdx.x));
  if (block.slot < 0) return;
  const int row =
      decode_row<Lookup::any>(p.grouping, p.kind, block, static_cast<int>(threadIdx.x) % 32);
  if (threadIdx.x < kDecodeRows) rows[threadIdx.x] = row;
  __syncthreads();
  const int columns = p.num_slices * p.max_rank;
  for (int item = static_cast<int>(threadIdx.x); item < block.count * columns;
       item += static_cast<int>(blockDim.x)) {
    const int column = item % columns;
    const AdapterEntry& entry = p.entries[block.slot * p.slot_stride + column / p.max_rank];
    if (entry.a == nullptr || column % p.max_rank >= entry.rank) continue;
    const std::int64_t at = rows[item / columns];
    float sum = 0.0f;
    for (int split = 0; split < p.h.splits; ++split) {
      sum += p.h.data[split * p.h.split_stride + at * p.h.row_stride + column];
    }
    p.out[at * p.out_stride + column] = sum;
  }
}

}  // namespace

Status sum_splits(const SplitHidden& h, const AdapterTableView& table, const Grouping& grouping,
                  Grouping::Kind kind, std::int64_t blocks, const SplitHidden& out,
                  cudaStream_t stream) {
  if (blocks == 0 || table.shape.max_rank == 0 || table.shape.num_slots == 0) return {};
  return launch(&sum_rows, grid_of(blocks), 128, stream,
                SumParams{table.entries, table.slot_stride, grouping, h, out.data, out.row_stride,
                          static_cast<int>(kind), table.shape.num_slices, table.shape.max_rank});
}

RANKFOLD_CUDA_MODULE(decode_sum)

}  // namespace cuda
RANKFOLD_NAMESPACE_END
