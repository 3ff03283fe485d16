#include "elements.cuh"
#include "general.hpp"
#include "launch.hpp"
#include "modules.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

namespace {

constexpr int kThreads = 256;

struct AddParams {
  const float* delta;
  const AdapterEntry* entries;
  Rows rows;
  RowRange range;
  void* y;
  std::int64_t y_stride;
  std::int64_t columns;
  std::int64_t out[kMaxSlices];
  int num_slices;
  int max_rank;
  int overwrites;
};

// A block has a row; a slice without a delta keeps its columns.
template <class TY>
__global__ void __launch_bounds__(kThreads) add_rows(AddParams p) {
  for (std::int64_t i = blockIdx.x; i < p.range.num_rows; i += gridDim.x) {
    const std::int64_t row = p.range.first_row + i;
    const Route found = route(p.rows, row);
    TY* y = static_cast<TY*>(p.y) + row * p.y_stride;
    const float* delta = p.delta + i * p.columns;
    for (int slice = 0; slice < p.num_slices; ++slice) {
      const AdapterEntry* const entry =
          found.entry >= 0 ? p.entries + found.entry + slice : nullptr;
      const bool has_delta = entry != nullptr && entry->a != nullptr && entry->b != nullptr &&
                             bounded_rank(*entry, p.max_rank) > 0;
      if (has_delta) {
        const float f = strength(p.rows, found, row, entry->scaling);
        for (std::int64_t n = threadIdx.x; n < p.out[slice]; n += kThreads) {
          y[n] = narrow<TY>(p.overwrites ? f * delta[n] : widen(y[n]) + f * delta[n]);
        }
      } else if (p.overwrites) {
        for (std::int64_t n = threadIdx.x; n < p.out[slice]; n += kThreads) y[n] = narrow<TY>(0.0f);
      }
      y += p.out[slice];
      delta += p.out[slice];
    }
  }
}

}  // namespace

Status add_delta(const float* delta, const AdapterTableView& table, const Rows& rows,
                 RowRange range, const TensorView& y, YMode mode, cudaStream_t stream) {
  const TableShape& shape = table.shape;
  AddParams params{};
  params.delta = delta;
  params.entries = table.entries;
  params.rows = rows;
  params.range = range;
  params.y = y.data;
  params.y_stride = y.strides[0];
  params.columns = total_out(shape);
  for (int s = 0; s < shape.num_slices; ++s) params.out[s] = shape.out[s];
  params.num_slices = shape.num_slices;
  params.max_rank = shape.max_rank;
  params.overwrites = mode == YMode::overwrite;
  if (range.num_rows == 0 || params.columns == 0) return {};
  return with_element(y.dtype, [&]<class TY>(const TY*) {
    return launch(&add_rows<TY>, grid_of(range.num_rows), kThreads, stream, params);
  });
}

RANKFOLD_CUDA_MODULE(unfused)

}  // namespace cuda
RANKFOLD_NAMESPACE_END
