#include "modules.hpp"
#include "prefill_expand_columns.cuh"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

Status expand_odd(ExpandParams& params, DType b_dtype, DType y_dtype, std::int64_t row_blocks,
                  int rows, bool overlaps, cudaStream_t stream) {
  const auto run = [&]<class T, class TY>(const T*, const TY*) {
    return launch_slabs<T, TY, true>(params, row_blocks, rows, overlaps, stream);
  };
  const float* const f32 = nullptr;
  const __half* const f16 = nullptr;
  const __nv_bfloat16* const bf16 = nullptr;
  if (b_dtype == DType::f16) return y_dtype == DType::f32 ? run(f16, f32) : run(f16, f16);
  return y_dtype == DType::f32 ? run(bf16, f32) : run(bf16, bf16);
}

RANKFOLD_CUDA_MODULE(prefill_expand_odd)

}  // namespace cuda
RANKFOLD_NAMESPACE_END
