#include "kernels/tensor_map.cuh"

#include <limits>

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

namespace {

using Encode = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                            const cuuint64_t*, const cuuint32_t*, const cuuint32_t*,
                            CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                            CUtensorMapFloatOOBfill);

// From the driver that the runtime has loaded: nothing is linked against it.
Encode find_encode() noexcept {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
  const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function,
                                                             12000, cudaEnableDefault, &found);
#else
  const cudaError_t error =
      cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &function, cudaEnableDefault, &found);
#endif
  if (error != cudaSuccess) (void)cudaGetLastError();
  return error == cudaSuccess && found == cudaDriverEntryPointSuccess
             ? reinterpret_cast<Encode>(function)
             : nullptr;
}

Encode encoder() noexcept {
  static const Encode encode = find_encode();
  return encode;
}

}  // namespace

bool is_describable(const void* data, std::int64_t rows, std::int64_t columns,
                    std::int64_t row_stride) noexcept {
  constexpr std::int64_t kMostRows = std::numeric_limits<std::int32_t>::max();
  return encoder() != nullptr && rows >= 1 && columns >= 1 && rows <= kMostRows &&
         columns <= kMostRows && row_stride >= columns && row_stride < (std::int64_t{1} << 38) &&
         row_stride % 8 == 0 && reinterpret_cast<std::uintptr_t>(data) % 16 == 0;
}

bool describe_matrix(CUtensorMap* map, DType dtype, const void* data, std::int64_t rows,
                     std::int64_t columns, std::int64_t row_stride, int box_rows) noexcept {
  if (!is_describable(data, rows, columns, row_stride)) return false;
  const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(row_stride) * 2};
  const cuuint32_t box[2] = {64, static_cast<cuuint32_t>(box_rows)};
  const cuuint32_t steps[2] = {1, 1};
  return encoder()(map,
                   dtype == DType::f16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                       : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                   2, const_cast<void*>(data), sizes, strides, box, steps,
                   CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                   CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                   CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

}  // namespace cuda
RANKFOLD_NAMESPACE_END
