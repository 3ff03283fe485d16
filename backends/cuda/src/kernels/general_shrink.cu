#include "elements.cuh"
#include "general.hpp"
#include "launch.hpp"
#include "modules.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

namespace {

constexpr int kWarp = 32;
constexpr int kWarps = 8;  // rows of a block
constexpr int kRanks = 8;  // of A that a warp reads beside each element of x

struct ShrinkParams {
  const void* x;
  std::int64_t x_stride;
  const AdapterEntry* entries;
  Rows rows;
  RowRange range;
  Hidden h;
  DropoutMask dropout;
  std::int64_t in;
  int max_rank;
  int num_slices;
};

// A warp has a row and eight ranks of a slice: lanes take every 32nd k, then add up in a fixed
// tree.
template <class TX, class TA>
__global__ void __launch_bounds__(kWarps* kWarp) shrink_rows(ShrinkParams p) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int rank_blocks = (p.max_rank + kRanks - 1) / kRanks;
  const std::int64_t row_step = static_cast<std::int64_t>(gridDim.x) * kWarps;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
       i < p.range.num_rows; i += row_step) {
    std::int64_t row;
    const Route found = locate(p.rows, p.range.first_row + i, &row);
    if (found.entry < 0) continue;
    const TX* const x = static_cast<const TX*>(p.x) + found.x_row * p.x_stride;
    for (int item = static_cast<int>(blockIdx.y); item < rank_blocks * p.num_slices;
         item += gridDim.y) {
      const int slice = item / rank_blocks;
      const int first = item % rank_blocks * kRanks;
      const AdapterEntry& entry = p.entries[found.entry + slice];
      const int rank = entry.a != nullptr ? bounded_rank(entry, p.max_rank) : 0;
      if (first >= rank) continue;
      const TA* a[kRanks];
#pragma unroll
      for (int j = 0; j < kRanks; ++j) {
        // Past the rank the last row again: nothing that is not A is read, and the sum is not
        // stored.
        const int of_a = first + j < rank ? first + j : rank - 1;
        a[j] = static_cast<const TA*>(entry.a) + of_a * entry.a_row_stride;
      }
      float sums[kRanks] = {};
      for (std::int64_t k = lane; k < p.in; k += kWarp) {
        const float value = dropped(p.dropout, widen(x[k]), row, k, slice);
#pragma unroll
        for (int j = 0; j < kRanks; ++j) sums[j] += value * widen(a[j][k]);
      }
      float* const h = p.h.data + (row - p.h.first_row) * p.h.stride + slice * p.max_rank + first;
#pragma unroll
      for (int j = 0; j < kRanks; ++j) {
        for (int step = kWarp / 2; step > 0; step /= 2) {
          sums[j] += __shfl_xor_sync(0xffffffffu, sums[j], step);
        }
        if (lane == j && first + j < rank) h[j] = sums[j];
      }
    }
  }
}

struct GatherParams {
  const void* ids;
  std::int64_t id_stride;
  int is_i64;
  const AdapterEntry* entries;
  Rows rows;
  RowRange range;
  Hidden h;
  std::int64_t in;
  int max_rank;
  int num_slices;
};

template <class TA>
__global__ void gather_rows(GatherParams p) {
  const std::int64_t columns = static_cast<std::int64_t>(p.num_slices) * p.max_rank;
  for (std::int64_t i = blockIdx.x; i < p.range.num_rows; i += gridDim.x) {
    std::int64_t row;
    const Route found = locate(p.rows, p.range.first_row + i, &row);
    if (found.entry < 0) continue;
    const std::int64_t id = p.is_i64 ? static_cast<const std::int64_t*>(p.ids)[row * p.id_stride]
                                     : static_cast<const std::int32_t*>(p.ids)[row * p.id_stride];
    for (std::int64_t c = threadIdx.x; c < columns; c += blockDim.x) {
      const int slice = static_cast<int>(c / p.max_rank), j = static_cast<int>(c % p.max_rank);
      const AdapterEntry& entry = p.entries[found.entry + slice];
      const int rank = entry.a != nullptr ? bounded_rank(entry, p.max_rank) : 0;
      if (j >= rank) continue;
      const std::int64_t limit = entry.in_limit < p.in ? entry.in_limit : p.in;
      const bool known = id >= 0 && id < limit;
      p.h.data[(row - p.h.first_row) * p.h.stride + c] =
          known ? widen(static_cast<const TA*>(entry.a)[j * entry.a_row_stride + id]) : 0.0f;
    }
  }
}

}  // namespace

Status general_shrink(const ConstTensorView& x, const AdapterTableView& table, const Rows& rows,
                      RowRange range, const Hidden& h, const DropoutMask& dropout,
                      cudaStream_t stream) {
  const TableShape& shape = table.shape;
  if (range.num_rows == 0 || shape.max_rank == 0) return {};
  const ShrinkParams params{x.data, x.strides[0], table.entries, rows,           range,
                            h,      dropout,      shape.in,      shape.max_rank, shape.num_slices};
  const dim3 grid = grid_of(divide_up(range.num_rows, kWarps),
                            divide_up(shape.max_rank, kRanks) * shape.num_slices);
  return with_element(x.dtype, [&]<class TX>(const TX*) {
    return with_element(shape.a_dtype, [&]<class TA>(const TA*) {
      return launch(&shrink_rows<TX, TA>, grid, kWarps * kWarp, stream, params);
    });
  });
}

Status general_gather(const ConstTensorView& ids, const AdapterTableView& table, const Rows& rows,
                      RowRange range, const Hidden& h, cudaStream_t stream) {
  const TableShape& shape = table.shape;
  if (range.num_rows == 0 || shape.max_rank == 0) return {};
  const GatherParams params{
      ids.data, ids.strides[0], ids.dtype == DType::i64, table.entries,   rows, range,
      h,        shape.in,       shape.max_rank,          shape.num_slices};
  return with_element(shape.a_dtype, [&]<class TA>(const TA*) {
    return launch(&gather_rows<TA>, grid_of(range.num_rows), 128, stream, params);
  });
}

RANKFOLD_CUDA_MODULE(general_shrink)

}  // namespace cuda
RANKFOLD_NAMESPACE_END
