#include "prefill_expand_floats.cuh"
#include "prefill_expand_low_floats.cuh"

#include "launch.hpp"
#include "modules.hpp"
#include "prefill_expand.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

namespace {

template <class TY>
Status launch_floats_of(const ExpandParams& params, bool odd, std::int64_t row_blocks,
                        bool overlaps, cudaStream_t stream) {
  const bool few = params.max_rank <= 4 * kSlab;
  if (odd) {
    return few ? launch_floats<TY, 4, true>(params, row_blocks, overlaps, stream)
               : launch_floats<TY, 8, true>(params, row_blocks, overlaps, stream);
  }
  if (params.max_rank <= kSlab)
    return launch_low_floats<TY, 1>(params, row_blocks, overlaps, stream);
  return few ? launch_floats<TY, 4, false>(params, row_blocks, overlaps, stream)
             : launch_floats<TY, 8, false>(params, row_blocks, overlaps, stream);
}

}  // namespace

Status expand_floats(const ExpandParams& params, DType y_dtype, bool odd, std::int64_t row_blocks,
                     bool overlaps, cudaStream_t stream) {
  return y_dtype == DType::f32
             ? launch_floats_of<float>(params, odd, row_blocks, overlaps, stream)
             : launch_floats_of<__nv_bfloat16>(params, odd, row_blocks, overlaps, stream);
}

RANKFOLD_CUDA_MODULE(prefill_expand_floats)

}  // namespace cuda
RANKFOLD_NAMESPACE_END
