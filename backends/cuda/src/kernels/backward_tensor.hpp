// The strategy tensor_core of backward: dy is read once for ds and dB, x once for dA and dx. Blocks
// sum over chunks of rows of one slot; what several chunks made is added in a fixed order.
#pragma once

#include <cuda_runtime_api.h>

#include "general.hpp"
#include "rankfold/problem.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

/// Where the rows of the slots stand: as SlotRows, or one slot for all.
struct SlotRuns {
  const std::int32_t* order = nullptr;  ///< null: rows are in order as they are
  const std::int32_t* ends = nullptr;   ///< int32 [num_slots]; null: all rows are of uniform_slot
  int num_slots = 0;
  int uniform_slot = -1;
  int num_rows = 0;
};

/// How a problem is cut into blocks, from host-known bounds alone.
struct BackwardTiling {
  bool fits = false;     ///< else the strategy declines
  int ranks = 16;        ///< 16, 32 or 64: max_rank rounded up
  int dy_blocks = 0;     ///< blocks of columns of dy, each of one slice
  int dy_columns = 512;  ///< of such a block: kDyBlockColumns, or kNarrowDyColumns where uniform
  int x_columns = 128;   ///< of a block of x: kXBlockColumns, or kWideXColumns where uniform
  int x_blocks = 0;      ///< blocks of columns of x
  int dy_chunk = 64;     ///< rows of a chunk
  int x_chunk = 64;
  std::int64_t dy_chunks = 0;  ///< at most so many chunks
  std::int64_t x_chunks = 0;
  std::int64_t ds_partials = 0;  ///< at most so many blocks of columns of dy
  std::int64_t dy_partials = 0;  ///< at most so many chunks of slots that have several
  std::int64_t x_partials = 0;
  bool has_configuration = true;  ///< the problem's configuration asks for chunks that can be
};
inline constexpr int kDyBlockColumns = 512;
inline constexpr int kNarrowDyColumns = 448;
inline constexpr int kXBlockColumns = 128;
inline constexpr int kWideXColumns = 256;  ///< of backward_over_x_uniform
inline constexpr int kTileMaxRank = 64;    ///< of a slice
inline constexpr int kDxMaxRanks =
    192;  ///< num_slices * max_rank of which the second pass makes dx

BackwardTiling tile_backward(const Problem& problem) noexcept;

/// Whether h and ds may be kept as high and low parts of bf16, 64 of each a row.
constexpr bool keeps_parts(const TableShape& shape) noexcept {
  return shape.num_slices == 1 && shape.max_rank > 32 && shape.max_rank <= kTileMaxRank;
}
/// Columns of BackwardPartials::whole_ds.
constexpr int whole_ds_stride(const TableShape& shape) noexcept {
  return keeps_parts(shape) ? kTileMaxRank : (shape.num_slices * shape.max_rank + 3) / 4 * 4;
}
/// Columns of BackwardPartials::packed_h.
constexpr int packed_h_stride(const TableShape& shape) noexcept {
  return keeps_parts(shape) ? kTileMaxRank : shape.num_slices * ((shape.max_rank + 3) / 4 * 4);
}

/// What the steps hand over, in the workspace.
struct BackwardPartials {
  float* ds = nullptr;             ///< [ds_partials, rows, ranks]
  float* db = nullptr;             ///< [dy_partials, total out, ranks]
  float* da = nullptr;             ///< [x_partials, num_slices * max_rank, in rounded up to 4]
  float* whole_ds = nullptr;       ///< [rows, whole_ds_stride], by place in the order; or in parts
  float* packed_h = nullptr;       ///< [rows, num_slices, max_rank rounded up to 4]; or in parts
  std::int32_t* counts = nullptr;  ///< [blocks of kXBlockColumns]: those that have left sums of dA
  float* dbias = nullptr;          ///< [dy_partials, total out rounded up to 4]
};

struct TensorBackward {
  const BackwardArgs* args = nullptr;
  BackwardTiling tiling = {};
  BackwardPartials partials = {};
  SlotRuns runs = {};
  Rows rows = {};
  Hidden h = {};
  int h_slice = 0;            ///< columns of h from slice to slice
  Hidden ds = {};             ///< where the caller wants it
  std::uint32_t outputs = 0;  ///< of Problem
  bool makes_dx = false;      ///< else dx is left to others
  bool is_uniform = false;    ///< by the kernels for that; h and ds are kept in parts
  bool sums_da = false;       ///< by the second pass, where its last blocks end
};

/// ds, dB, dbias, dA and dx of the call, as outputs says.
Status tensor_backward(TensorBackward call, cudaStream_t stream);

// Its steps. Where h is not aligned, a copy that is takes its place in the call.
Status pack_h(TensorBackward& call, cudaStream_t stream);
Status backward_over_dy(const TensorBackward& call, cudaStream_t stream);
Status backward_bias(const TensorBackward& call, cudaStream_t stream);
Status backward_over_x(const TensorBackward& call, cudaStream_t stream);
// The two passes where is_uniform.
Status backward_over_dy_uniform(const TensorBackward& call, cudaStream_t stream);
Status backward_over_x_uniform(const TensorBackward& call, cudaStream_t stream);
Status finish_ds(const TensorBackward& call, cudaStream_t stream);
Status finish_gradients(const TensorBackward& call, cudaStream_t stream);
Status clear_rows(const TensorBackward& call, cudaStream_t stream);

}  // namespace cuda
RANKFOLD_NAMESPACE_END
