#include "launch.hpp"
#include "modules.hpp"
#include "pairs.cuh"
#include "prefill_expand_block.cuh"
#include "prefill_launch.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

namespace {

constexpr int kThreads = kPairRows / kWarpRows * 32;
constexpr int kLeastSteps = 8;  // of 128 bytes of a row of y for a block, where there are as many
constexpr std::int64_t kMostGridY = 32768;

struct PairExpandParams {
  ExpandParams expand;  // rows are of the window
  PairLists lists;
};

/// kSlabs: of 16 ranks of B in a stage. Few leave room for four blocks on a multiprocessor.
template <int kSlabs>
struct Ring {
  static constexpr int kStages = kSlabs == 1 ? 5 : 4;
  static constexpr int kBlocks = kSlabs == 1 ? 4 : 3;
};

template <class T, int kSlabs>
__global__ void __launch_bounds__(kThreads, Ring<kSlabs>::kBlocks)
    expand_listed(const __grid_constant__ PairExpandParams p) {
  extern __shared__ __align__(256) unsigned char dynamic[];
  const std::uint32_t shared = shared_address(dynamic);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  // The lists are there: the shrink lets this kernel begin only after it has waited for them.
  for (int index = static_cast<int>(blockIdx.y);; index += static_cast<int>(gridDim.y)) {
    const PairBlock block = find_pair_block(p.lists, index);
    if (block.count == 0) break;
    int rows[2];
    float row_weights[2], token_weights[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int at = min(warp * kWarpRows + lane / 4 + r * 8, block.count - 1);
      const int4 row = p.lists.rows[block.first + at];
      rows[r] = row.x;
      row_weights[r] = __int_as_float(row.z);
      token_weights[r] = __int_as_float(row.w);
    }
    const ExpandParams& expand = p.expand;
    expand_block<T, T, kSlabs, Ring<kSlabs>::kStages>(
        expand,
        expand.entries + block.slot * expand.slot_stride +
            std::int64_t{block.expert} * expand.num_slices,
        rows, block.count, static_cast<int>(blockIdx.x), shared,
        [&](int r, float scaling) { return scaling * row_weights[r] * token_weights[r]; });
    __syncthreads();
  }
  wait_for_previous();
}

template <class T, int kSlabs>
Status launch_expand(PairExpandParams& params, std::int64_t blocks, const PrefillDevice& device,
                     cudaStream_t stream) {
  static std::atomic<std::uint64_t> prepared{0};
  ExpandParams& expand = params.expand;
  expand.slabs =
      static_cast<int>(std::min<std::int64_t>(kSlabs, divide_up(expand.max_rank, kSlab)));
  const int stage_bytes =
      kColumns<T> * expand.slabs * kSlabRowBytes + kBiasBytes + kThreads / 32 * kWarpBytes;
  return launch_shaped(&expand_listed<T, kSlabs>,
                       {.blocks = expand.parts,
                        .blocks_y = std::min(blocks, kMostGridY),
                        .threads = kThreads,
                        .shared_bytes = Ring<kSlabs>::kStages * stage_bytes,
                        .overlaps = device.is_hopper},
                       &prepared, stream, params);
}

}  // namespace

Status expand_pairs(const ApplyExpertsArgs& args, const PairParts& parts, std::int64_t blocks,
                    const PrefillDevice& device, int y_parts, cudaStream_t stream) {
  const TableShape& shape = args.table.shape;
  PairExpandParams params{};
  params.lists = parts.lists;
  ExpandParams& expand = params.expand;
  expand.h.data = parts.h;
  expand.h.stride = std::int64_t{shape.num_slices} * shape.max_rank;
  expand.partials = 1;
  expand.wide_h = shape.max_rank % 2 == 0;
  expand.entries = args.table.entries;
  expand.slot_stride = args.table.slot_stride;
  const auto width = static_cast<std::int64_t>(size_of(args.y.dtype));
  expand.y =
      static_cast<std::byte*>(args.y.data) + args.addressing.row_begin * args.y.strides[0] * width;
  expand.y_stride = args.y.strides[0];
  expand.num_slices = shape.num_slices;
  expand.max_rank = shape.max_rank;
  const std::int64_t columns = kWarpBytes / kWarpRows / width;
  std::int64_t steps = 1;
  for (int s = 0; s < shape.num_slices; ++s)
    steps = std::max(steps, divide_up(shape.out[s], columns));
  expand.steps = static_cast<int>(
      divide_up(steps, y_parts > 0 ? y_parts : std::max<std::int64_t>(steps / kLeastSteps, 1)));
  for (int s = 0; s < shape.num_slices; ++s) {
    expand.out[s] = shape.out[s];
    expand.first_part[s] = expand.parts;
    expand.parts += static_cast<int>(divide_up(divide_up(shape.out[s], columns), expand.steps));
  }
  if (expand.parts == 0) return {};
  expand.wide_y =
      reinterpret_cast<std::uintptr_t>(expand.y) % 16 == 0 && args.y.strides[0] * width % 16 == 0;
  expand.overwrites = args.options.y_mode == YMode::overwrite;
  expand.made_h = true;
  const auto run = [&]<class T>(const T*) {
    return shape.max_rank <= kSlab ? launch_expand<T, 1>(params, blocks, device, stream)
                                   : launch_expand<T, 4>(params, blocks, device, stream);
  };
  return args.y.dtype == DType::f16 ? run(static_cast<const __half*>(nullptr))
                                    : run(static_cast<const __nv_bfloat16*>(nullptr));
}

RANKFOLD_CUDA_MODULE(pairs_expand)

}  // namespace cuda
RANKFOLD_NAMESPACE_END
