#include "elements.cuh"
#include "general.hpp"
#include "launch.hpp"
#include "modules.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

namespace {

constexpr int kColumns = 256;  // of a block

struct ExpandParams {
  Hidden h;
  const AdapterEntry* entries;
  Rows rows;
  RowRange range;
  void* y;
  std::int64_t y_stride;
  std::int64_t out[kMaxSlices];
  int num_slices;
  int max_rank;
  int overwrites;
  int with_bias;
  int made_h;
  int unscaled;
};

// A thread has a column of y: the sum over the rank in ascending order, then one rounding.
template <class TY, class TB>
__global__ void __launch_bounds__(kColumns) expand_rows(ExpandParams p) {
  // Which slice, and which of its columns: blocks do not cross slices.
  std::int64_t block = blockIdx.x, y_column = 0;
  int slice = 0;
  for (; slice < p.num_slices; ++slice) {
    const std::int64_t blocks = (p.out[slice] + kColumns - 1) / kColumns;
    if (block < blocks) break;
    block -= blocks;
    y_column += p.out[slice];
  }
  if (slice == p.num_slices) return;
  const std::int64_t n = block * kColumns + threadIdx.x;
  if (n >= p.out[slice]) return;
  for (std::int64_t i = blockIdx.y; i < p.range.num_rows; i += gridDim.y) {
    std::int64_t row;
    const Route found = locate(p.rows, p.range.first_row + i, &row);
    TY* const y = static_cast<TY*>(p.y) + row * p.y_stride + y_column + n;
    int rank = 0;
    const AdapterEntry* entry = nullptr;
    if (found.entry >= 0) {
      entry = p.entries + found.entry + slice;
      const bool bound = entry->b != nullptr && (!p.made_h || entry->a != nullptr);
      rank = bound ? bounded_rank(*entry, p.max_rank) : 0;
    }
    if (rank == 0) {
      // By segments other rows may have this number; the host has zeroed y for those.
      if (p.overwrites && (found.entry >= 0 || p.rows.kind != Rows::by_segments))
        *y = narrow<TY>(0.0f);
      continue;
    }
    const float* const h = p.h.data + (row - p.h.first_row) * p.h.stride + slice * p.max_rank;
    const TB* const b = static_cast<const TB*>(entry->b) + n * entry->b_row_stride;
    float sum = 0.0f;
    for (int j = 0; j < rank; ++j) sum += h[j] * widen(b[j]);
    if (p.with_bias && entry->bias != nullptr) sum += entry->bias[n];
    const float delta = p.unscaled ? sum : strength(p.rows, found, row, entry->scaling) * sum;
    *y = narrow<TY>(p.overwrites ? delta : widen(*y) + delta);
  }
}

}  // namespace

Status general_expand(const Hidden& h, const AdapterTableView& table, const Rows& rows,
                      RowRange range, const TensorView& y, const ExpandOptions& options,
                      cudaStream_t stream) {
  const TableShape& shape = table.shape;
  ExpandParams params{};
  params.h = h;
  params.entries = table.entries;
  params.rows = rows;
  params.range = range;
  params.y = y.data;
  params.y_stride = y.strides[0];
  std::int64_t blocks = 0;
  for (int s = 0; s < shape.num_slices; ++s) {
    params.out[s] = shape.out[s];
    blocks += divide_up(shape.out[s], kColumns);
  }
  if (range.num_rows == 0 || blocks == 0) return {};
  params.num_slices = shape.num_slices;
  params.max_rank = shape.max_rank;
  params.overwrites = options.mode == YMode::overwrite;
  params.with_bias = options.with_bias;
  params.made_h = options.made_h;
  params.unscaled = options.unscaled;
  return with_element(y.dtype, [&]<class TY>(const TY*) {
    return with_element(shape.b_dtype, [&]<class TB>(const TB*) {
      return launch(&expand_rows<TY, TB>, grid_of(blocks, range.num_rows), kColumns, stream,
                    params);
    });
  });
}

RANKFOLD_CUDA_MODULE(general_expand)

}  // namespace cuda
RANKFOLD_NAMESPACE_END
