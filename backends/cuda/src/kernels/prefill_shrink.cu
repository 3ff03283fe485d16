#include "launch.hpp"
#include "modules.hpp"
#include "prefill.hpp"
#include "prefill_expand.hpp"
#include "prefill_launch.hpp"
#include "prefill_shrink_floats.cuh"
#include "prefill_shrink_tiles.cuh"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

namespace {

constexpr std::int64_t kMostIn = std::int64_t{1} << 29;
constexpr int kMostSplits = 8;  // each is read by every block of the expand
constexpr std::int64_t kFewRows = 1024;
constexpr std::int64_t kFewExpandSteps = 900;

/// kSpread: the blocks of a row block and a part of K share the tiles of ranks, gridDim.x / splits
/// of them.
template <class T, class W, int kRows, int kMost, bool kSpread>
__global__ void __launch_bounds__(kThreads, 1)
    shrink_tiles(const __grid_constant__ ShrinkParams p) {
  using S = Stages<W, kRows, kMost>;
  extern __shared__ unsigned char dynamic[];
  const std::uint32_t shared = (shared_address(dynamic) + kAlign - 1) / kAlign * kAlign;
  wait_for_previous();
  release_next();
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const int split = static_cast<int>(kSpread ? blockIdx.x % p.splits : blockIdx.x);
  const int index = static_cast<int>(blockIdx.y + blockIdx.z * kRowBlocksY);
  const RowBlock block = p.kind == Grouping::uniform
                             ? find_row_block<Grouping::uniform, kRows>(p.rows, index)
                             : find_row_block<Grouping::segments, kRows>(p.rows, index);
  if (block.slot < 0) return;
  const SliceTiles own =
      slice_tiles(p.entries + block.slot * p.slot_stride, p.num_slices, p.max_rank, lane);

  LoadedRows<T, W, kRows, kMost> rows;
  const int ring = S::kRings == 2 ? thread / 128 : 0;
  rows.piece = thread % S::kLoaders % kPieces;
  rows.first_row = thread % S::kLoaders / kPieces;
  const int chunks = p.chunks + (split < p.chunks_over ? 1 : 0);
  rows.first_k = (split * p.chunks + min(split, p.chunks_over) + ring) * kStep;
  rows.stages = (chunks - ring + S::kRings - 1) / S::kRings;
  rows.base = shared + static_cast<std::uint32_t>(ring * (S::kBytes / S::kRings));
#pragma unroll
  for (int i = 0; i < S::kXPieces; ++i) {
    const std::int64_t row = batch_row(p, block, rows.first_row + i * S::kRowStep);
    rows.x[i] = static_cast<const T*>(p.x) + row * p.x_stride + rows.piece * 8;
  }
  const bool preloads = S::kFixed != 0 && p.wide_x;
  if constexpr (S::kFixed != 0) {
    if (preloads) {
#pragma unroll
      for (int s = 0; s < S::kFixed - 1; ++s) {
        if (s < rows.stages) load_x<true>(p, rows, s, s);
      }
    }
  }

  const int tiles = __shfl_sync(0xffffffffu, own.after, 31);
  // Pieces are of eight elements; those of float32 are whole.
  const bool wide = own.rank == 0 ||
                    (reinterpret_cast<std::uintptr_t>(own.a) % 16 == 0 &&
                     (S::kParts == 2 ? own.stride % 4 == 0 && p.in % 8 == 0 : own.stride % 8 == 0));
  const bool all_wide = __all_sync(0xffffffffu, wide) && p.wide_x;
  if (tiles == 0 || (preloads && !all_wide)) {
    commit_copies();
    wait_copies<0>();
    __syncthreads();
    if (tiles == 0) return;
  }
  const int most = all_wide ? kMost : 4;
  int passes = (tiles + most - 1) / most;
  const int part = kSpread ? static_cast<int>(blockIdx.x) / p.splits : 0;
  const int parts = kSpread ? static_cast<int>(gridDim.x) / p.splits : 1;
  if constexpr (kSpread) passes = max(passes, parts);
  const int of_pass = (tiles + passes - 1) / passes;
  const int begin = part * of_pass;
  for (int first = begin; first < tiles; first += parts * of_pass) {
    const int count = min(of_pass, tiles - first);
    const bool loaded = preloads && first == begin;
    const auto pass = [&]<int kTiles, bool kWide>() {
      multiply_pass<T, W, kRows, kMost, kTiles, kWide>(p, block, own, shared, first, count, split,
                                                       rows, kWide && loaded);
    };
    // Tiles beyond the count are zeros.
    if (!all_wide) {
      pass.template operator()<4, false>();
    } else if constexpr (kMost == 4) {
      if (S::kParts == 1 && count == 1) {
        if constexpr (S::kParts == 1) pass.template operator()<1, true>();
      } else if (count <= 2) {
        pass.template operator()<2, true>();
      } else if (count == 3) {
        pass.template operator()<3, true>();
      } else {
        pass.template operator()<4, true>();
      }
    } else if constexpr (kMost == 8) {
      if (S::kParts == 1 && count <= 2) {
        if constexpr (S::kParts == 1) pass.template operator()<2, true>();
      } else if (count <= 4) {
        pass.template operator()<4, true>();
      } else if (count <= 6) {
        pass.template operator()<6, true>();
      } else {
        pass.template operator()<8, true>();
      }
    } else {
      if (count <= 3) {
        pass.template operator()<3, true>();
      } else if (count <= 6) {
        pass.template operator()<6, true>();
      } else {
        pass.template operator()<12, true>();
      }
    }
  }
  if constexpr (kSpread) {  // x of a block without tiles
    commit_copies();
    wait_copies<0>();
  }
}

template <class T, class W, int kRows, int kMost, bool kSpread = false>
Status launch_shrink(const ShrinkParams& params, std::int64_t row_blocks, cudaStream_t stream,
                     int parts = 1) {
  static std::atomic<std::uint64_t> prepared{0};
  return launch_shaped(&shrink_tiles<T, W, kRows, kMost, kSpread>,
                       {.blocks = std::int64_t{params.splits} * parts,
                        .blocks_y = std::min<std::int64_t>(row_blocks, kRowBlocksY),
                        .blocks_z = divide_up(row_blocks, kRowBlocksY),
                        .threads = kThreads,
                        .shared_bytes = Stages<W, kRows, kMost>::kBytes + kAlign,
                        .cluster = params.cluster},
                       &prepared, stream, params);
}

Status launch_shrink_parts(const ShrinkParams& params, std::int64_t row_blocks,
                           cudaStream_t stream) {
  static std::atomic<std::uint64_t> prepared{0};
  return launch_shaped(&shrink_parts,
                       {.blocks = params.splits,
                        .blocks_y = std::min<std::int64_t>(row_blocks, kRowBlocksY),
                        .blocks_z = divide_up(row_blocks, kRowBlocksY),
                        .threads = PartStages::kThreads,
                        .shared_bytes = PartStages::kBytes + kAlign,
                        .cluster = params.cluster},
                       &prepared, stream, params);
}

constexpr int kManyShared =
    std::max(Stages<__half, 64, 8>::kBytes, Stages<__half, 128, 12>::kBytes) + kAlign;
static_assert(Stages<float, 64, 4>::kBytes + kAlign <= kManyShared &&
              PartStages::kBytes + kAlign <= kManyShared && kFloatExpandBytes <= kManyShared);

std::int64_t most_tiles(const TableShape& shape) noexcept {
  return shape.num_slices * divide_up(shape.max_rank, 16);
}

int shrink_rows(const PrefillDevice& device, const TableShape& shape) noexcept {
  return most_tiles(shape) > (shape.a_dtype == DType::f32 ? 4 : 8) &&
                 device.shared_bytes >= kManyShared
             ? 128
             : 64;
}

// Clusters of so many blocks that a device has at a time, a block a multiprocessor: a cluster
// stands in one of its parts, of which there are eight of 16 multiprocessors or a few more.
std::int64_t resident_clusters(const PrefillDevice& device, int blocks) noexcept {
  constexpr int kDeviceParts = 8;
  return std::int64_t{kDeviceParts} * (device.num_sms / kDeviceParts / blocks);
}

// Blocks of 64 rows that share the tiles of ranks: one with many tiles has all registers, so that
// no block of the expand can begin beside it. Few rows leave multiprocessors to those. Clusters add
// up all of K, as each partial sum costs the expand the latency of a load.
void plan_shared_tiles(const PrefillDevice& device, const TableShape& shape, std::int64_t blocks,
                       bool few_rows, PrefillPlan& plan) noexcept {
  const bool low_rank = shape.max_rank <= 16;
  const std::int64_t wanted = !few_rows  ? device.num_sms
                              : low_rank ? device.num_sms / 2
                                         : device.num_sms * 5 / 6;
  const std::int64_t chunks = std::max<std::int64_t>(divide_up(shape.in, kStep), 1);
  plan.shrink_rows = kSharedRows;
  plan.tile_parts = static_cast<int>(
      std::clamp<std::int64_t>(wanted / blocks, 1, divide_up(most_tiles(shape), kSharedTiles)));
  blocks *= plan.tile_parts;
  plan.splits = static_cast<int>(
      std::clamp<std::int64_t>(wanted / blocks, 1, std::min<std::int64_t>(chunks, kMostSplits)));
  if (low_rank || !device.is_hopper) return;
  while (plan.splits > 1 && blocks > resident_clusters(device, plan.splits)) --plan.splits;
  plan.cluster = plan.splits;
  if (plan.cluster == 8 && blocks * 16 <= wanted && chunks >= 16) plan.splits = 16;
}

}  // namespace

bool prefill_supports(const PrefillDevice& device, const TableShape& shape, DType x_dtype,
                      DType y_dtype) noexcept {
  if (shape.in > kMostIn || shape.a_dtype != shape.b_dtype ||
      (y_dtype != x_dtype && y_dtype != DType::f32))
    return false;
  if (shape.a_dtype == DType::f32) {
    return device.shared_bytes >= kManyShared && x_dtype == DType::bf16 &&
           shape.max_rank <= kPrefillFloatRank;
  }
  return device.shared_bytes >= Stages<__half, 64, 4>::kBytes + kAlign &&
         (x_dtype == DType::f16 || x_dtype == DType::bf16) && shape.a_dtype == x_dtype &&
         shape.max_rank <= 1024;
}

bool prefill_shrink_takes(const PrefillDevice& device, int rows) noexcept {
  return rows == 64 || (rows == 128 && device.shared_bytes >= kManyShared);
}

PrefillPlan plan_prefill(const PrefillDevice& device, const TableShape& shape, Grouping::Kind kind,
                         std::int64_t active_rows, std::int64_t max_segments) noexcept {
  PrefillPlan plan;
  plan.shared_bytes = device.shared_bytes;
  const bool of_floats = shape.a_dtype == DType::f32;
  const bool odd = !of_floats && shape.in % 8 != 0;
  const bool few_rows = active_rows <= kFewRows;
  if (!of_floats && (few_rows || odd)) {
    const std::int64_t blocks = row_block_bound(kind, active_rows, max_segments, kSharedRows);
    plan_shared_tiles(device, shape, std::max<std::int64_t>(blocks, 1), few_rows, plan);
  } else {
    const std::int64_t chunks = std::max<std::int64_t>(divide_up(shape.in, kStep), 1);
    plan.shrink_rows = shrink_rows(device, shape);
    const std::int64_t blocks = std::max<std::int64_t>(divide_up(active_rows, plan.shrink_rows), 1);
    plan.splits = static_cast<int>(std::clamp<std::int64_t>(
        device.num_sms / blocks, 1, std::min<std::int64_t>(chunks, kMostSplits)));
    // Partial sums of high ranks are much to read: clusters add them up, large ones where few of
    // them leave no multiprocessor without work.
    // Weights of float32: blocks take long, so that more and shorter ones are even where segments
    // or ranks are not.
    if (of_floats && shape.max_rank > 64 && chunks >= 32 && device.is_hopper) {
      plan.splits = plan.cluster = 8;
    } else if (shape.max_rank > 16 && plan.splits >= 4) {
      const bool few = blocks * plan.splits <= 64 || (of_floats && few_rows);
      if (plan.splits == 8 && few && device.is_hopper) {
        if (blocks * 16 <= 64 && chunks >= 16) plan.splits = 16;
        plan.cluster = 8;
      } else if (device.is_hopper) {
        plan.splits -= plan.splits % 2;
        plan.cluster = 2;
      }
    }
  }
  // With more ranks B is as much as y: more rows share it, if that leaves enough blocks.
  std::int64_t steps = 0;  // of 64 columns of 128 rows
  for (int s = 0; s < shape.num_slices; ++s) steps += divide_up(shape.out[s], 64);
  steps *= divide_up(active_rows, 128);
  const bool shares_b = shape.max_rank > 16 && steps > kFewExpandSteps &&
                        (active_rows > kFewRows || (shape.max_rank > 64 && active_rows > 64));
  plan.expand_rows = of_floats || shares_b ? 128 : 64;
  return plan;
}

Status prefill_shrink(const ConstTensorView& x, const AdapterTableView& table, const Grouping& rows,
                      Grouping::Kind kind, std::int64_t active_rows, const PartialHidden& h,
                      const PrefillPlan& plan, cudaStream_t stream) {
  const TableShape& shape = table.shape;
  if (active_rows == 0 || shape.max_rank == 0 || shape.num_slices == 0) return {};
  ShrinkParams params{};
  params.x = x.data;
  params.x_stride = x.strides[0];
  params.entries = table.entries;
  params.slot_stride = table.slot_stride;
  params.rows = rows;
  params.kind = kind;
  params.h = h;
  params.in = static_cast<int>(shape.in);
  params.num_slices = shape.num_slices;
  params.max_rank = shape.max_rank;
  params.splits = plan.splits;
  params.cluster = plan.cluster;
  params.chunks = static_cast<int>(divide_up(shape.in, kStep) / plan.splits);
  params.chunks_over = static_cast<int>(divide_up(shape.in, kStep) % plan.splits);
  params.wide_x = reinterpret_cast<std::uintptr_t>(x.data) % 16 == 0 && x.strides[0] % 8 == 0;
  params.wide_h = reinterpret_cast<std::uintptr_t>(h.data) % 8 == 0 && h.stride % 2 == 0 &&
                  h.split_stride % 2 == 0 && shape.max_rank % 2 == 0;
  const std::int64_t row_blocks =
      row_block_bound(kind, active_rows, rows.max_segments, plan.shrink_rows);
  if (shape.a_dtype != DType::f32 && (params.wide_x == 0 || shape.in % 8 != 0)) {
    return shrink_odd(params, x.dtype,
                      row_block_bound(kind, active_rows, rows.max_segments, kSharedRows),
                      plan.tile_parts, stream);
  }
  const bool few = most_tiles(shape) <= 4 || plan.shared_bytes < kManyShared;
  const auto run = [&]<class T>(const T*) {
    if (plan.shrink_rows == 128) return launch_shrink<T, T, 128, 12>(params, row_blocks, stream);
    if (plan.tile_parts > 1)
      return launch_shrink<T, T, kSharedRows, kSharedTiles, true>(params, row_blocks, stream,
                                                                  plan.tile_parts);
    return few ? launch_shrink<T, T, 64, 4>(params, row_blocks, stream)
               : launch_shrink<T, T, 64, 8>(params, row_blocks, stream);
  };
  if (shape.a_dtype == DType::f32) {
    using T = __nv_bfloat16;
    return plan.shrink_rows == 128 ? launch_shrink_parts(params, row_blocks, stream)
                                   : launch_shrink<T, float, 64, 4>(params, row_blocks, stream);
  }
  return x.dtype == DType::f16 ? run(static_cast<const __half*>(nullptr))
                               : run(static_cast<const __nv_bfloat16*>(nullptr));
}

RANKFOLD_CUDA_MODULE(prefill_shrink)

}  // namespace cuda
RANKFOLD_NAMESPACE_END
