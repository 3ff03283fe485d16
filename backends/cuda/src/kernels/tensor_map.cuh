// Hopper's copy engine: tiles of a matrix between global and shared memory, by descriptors of the
// matrix.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "rankfold/dtype.hpp"
#include "rankfold/export.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

/// Describes a matrix of 16-bit elements for tiles of box_rows rows of 64 columns, in the 128-byte
/// swizzle. What lies outside the matrix is read as zeros and not written. False: the matrix cannot
/// be described (alignment, size, driver); nothing else is lost.
bool describe_matrix(CUtensorMap* map, DType dtype, const void* data, std::int64_t rows,
                     std::int64_t columns, std::int64_t row_stride, int box_rows) noexcept;
/// Whether describe_matrix takes such a matrix.
bool is_describable(const void* data, std::int64_t rows, std::int64_t columns,
                    std::int64_t row_stride) noexcept;

#if defined(__CUDACC__)

namespace tiles {

__device__ __forceinline__ void load_tile(std::uint32_t to, const CUtensorMap& map, int column,
                                          int row, std::uint32_t barrier) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, "
      "%3}], [%4];" ::"r"(to),
      "l"(&map), "r"(column), "r"(row), "r"(barrier)
      : "memory");
#endif
}
__device__ __forceinline__ void store_tile(const CUtensorMap& map, int column, int row,
                                           std::uint32_t from) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&map),
      "r"(column), "r"(row), "r"(from)
      : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
#endif
}
/// Until shared memory of all but kPending stores of this thread has been read.
template <int kPending>
__device__ __forceinline__ void wait_stores() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
#endif
}

}  // namespace tiles

#endif  // __CUDACC__

}  // namespace cuda
RANKFOLD_NAMESPACE_END
