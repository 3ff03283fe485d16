#include "elements.cuh"
#include "launch.hpp"
#include "modules.hpp"
#include "prefill.hpp"
#include "prefill_expand_any.cuh"
#include "prefill_expand_floats.cuh"
#include "prefill_launch.hpp"
#include "prefill_outputs.cuh"
#include "rows.cuh"
#include "wgmma.cuh"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

namespace {

template <class T, class TY, int kSlabs>
__global__ void __launch_bounds__(256, (kSlabs > 4 ? 1 : 2))
    expand_columns(const __grid_constant__ ExpandParams p) {
  constexpr int kCols = kColumns<TY>;
  constexpr int kGroups = kCols / 32;
  constexpr int kStages = kSlabs == 1 ? kFewStages : kManyStages;
  constexpr int kLanePieces = kWarpBytes / 512;
  extern __shared__ __align__(256) unsigned char dynamic[];
  const std::uint32_t shared = shared_address(dynamic);
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32, warp = thread / 32;
  const int part = static_cast<int>(blockIdx.x);
  const int index = static_cast<int>(blockIdx.y + blockIdx.z * kRowBlocksY);
  RowBlock block;
  if (p.kind == Grouping::uniform) {
    block = blockDim.x == 128 ? find_row_block<Grouping::uniform, 64>(p.rows, index)
                              : find_row_block<Grouping::uniform, 128>(p.rows, index);
  } else if (blockDim.x == 128) {
    block = find_row_block<Grouping::segments, 64>(p.rows, index);
  } else {
    block = find_row_block<Grouping::segments, 128>(p.rows, index);
  }
  if (block.slot < 0) {
    wait_for_previous();
    return;
  }
  Work<T> work;
  std::int64_t y_column = 0;
  int slice = 0;
  for (; slice + 1 < p.num_slices && part >= p.first_part[slice + 1]; ++slice)
    y_column += p.out[slice];
  work.slice = slice;
  work.first_step = (part - p.first_part[slice]) * p.steps;
  work.out = p.out[slice];
  work.first_column = std::int64_t{work.first_step} * kCols;
  work.columns = static_cast<int>(min(work.out - work.first_column, std::int64_t{p.steps} * kCols));
  work.steps = (work.columns + kCols - 1) / kCols;
  const AdapterEntry* const entry = p.entries + block.slot * p.slot_stride + slice;

  Finish<TY> to;
  to.wide = p.wide_y && y_column * sizeof(TY) % 16 == 0;
  to.overwrites = p.overwrites;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int i = warp * kWarpRows + lane / 4 + r * 8;
    to.has[r] = i < block.count;
    const int at = min(i, block.count - 1);
    work.rows[r] = p.kind == Grouping::uniform ? row_at<Grouping::uniform>(p.rows, block, at)
                                               : row_at<Grouping::segments>(p.rows, block, at);
    to.y[r] = static_cast<TY*>(p.y) + work.rows[r] * p.y_stride + y_column + work.first_column +
              lane % 4 * 8;
  }

  // Stages of a ring: B, bias and y of a step.
  const std::uint32_t y_offset =
      static_cast<std::uint32_t>(p.slabs * kCols * kSlabRowBytes + kBiasBytes);
  const std::uint32_t stage_bytes = y_offset + blockDim.x / 32 * kWarpBytes;
  const std::uint32_t own =
      shared + y_offset + static_cast<std::uint32_t>(warp * kWarpBytes + lane * 16);
  const int steps = work.steps;
  const auto copy_y = [&](std::uint32_t stage_own, int ahead) {
#pragma unroll
    for (int i = 0; i < kLanePieces; ++i) {
      constexpr int kPieces = sizeof(TY) / 2;
      const TY* const from = to.y[i / kPieces % 2] + ahead + i / kPieces / 2 * 32 + i % kPieces * 4;
      copy_16(stage_own + static_cast<std::uint32_t>(i * 512), from, 16);
    }
  };
  // y needs nothing of the table, B needs the table alone, and neither the kernel before: all is
  // under way when that ends. Rows past the count are the last row again, so that there are no
  // branches.
  const bool whole_y = to.wide && !to.overwrites && work.columns % kCols == 0;
  const bool has_rows = warp * kWarpRows < block.count;
  if (whole_y && has_rows) {
#pragma unroll
    for (int step = 0; step < kStages - 1; ++step) {
      if (step < steps) copy_y(own + step * stage_bytes, step * kCols);
    }
  }
  work.b = static_cast<const T*>(entry->b);
  work.b_stride = entry->b_row_stride;
  work.bias = p.with_bias ? entry->bias : nullptr;
  const void* const a = entry->a;
  const int entry_rank = bounded_rank(*entry, p.max_rank);
  work.rank = (work.b != nullptr) & (!p.made_h | (a != nullptr)) ? entry_rank : 0;
  const float scaling = entry->scaling;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    to.f[r] = scaling;
    if (p.token_weights != nullptr) to.f[r] *= p.token_weights[work.rows[r]];
    to.f_sum[r] = to.f[r];
  }
  to.with_bias = work.bias != nullptr && work.rank > 0;
  const int rank = work.rank;
  if (!whole_y || to.with_bias || rank == 0 || rank > kSlabs * kSlab ||
      (p.h_sum.data != nullptr && part == p.first_part[slice]) || !p.wide_h ||
      reinterpret_cast<std::uintptr_t>(work.b) % 16 != 0 || work.b_stride % 8 != 0) {
    commit_copies();
    wait_copies<0>();
    if (rank == 0 && !p.overwrites) {
      wait_for_previous();
    } else {
      const Work<T> copy = work;  // so that the work itself stays in registers
      const Finish<TY> start = to;
      expand_any<T, TY, kSlabs>(p, copy, start, shared);
    }
    return;
  }

  // The thread's pieces of B: every turn of the block's threads is `turn` rows further, 16 or a
  // multiple of 32.
  constexpr int kTurns = kSlabs == 1 ? 1 : kCols / 16 * (kSlabs > 4 ? 2 : 1);
  const int slabs = __shfl_sync(0xffffffffu, (rank + kSlab - 1) / kSlab, 0);
  const int shift = slabs == 1 ? 1 : slabs == 2 ? 2 : slabs <= 4 ? 3 : 4;
  const int piece = thread & ((1 << shift) - 1), n = thread >> shift;
  const int turn = static_cast<int>(blockDim.x) >> shift;
  const int piece_bytes = min(max(rank - piece * 8, 0), 8) * 2;
  const int turns = piece < slabs * 2 && n < kCols ? (kCols - n + turn - 1) / turn : 0;
  const T* b = work.b + (work.first_column + n) * work.b_stride + (piece_bytes > 0 ? piece * 8 : 0);
  const std::int64_t b_turn = turn * work.b_stride;
  const std::uint32_t b_offset = static_cast<std::uint32_t>(piece / 2 * kCols * kSlabRowBytes) +
                                 slab_offset(permuted(n), piece % 2);
  const auto copy_b = [&](std::uint32_t stage) {
#pragma unroll
    for (int i = 0; i < kTurns; ++i) {
      if (i >= turns) break;
      std::uint32_t at = b_offset + static_cast<std::uint32_t>(i * turn * kSlabRowBytes);
      // 16 rows further in B are 4 rows further in the slab.
      if constexpr (kSlabs > 4) {
        at = static_cast<std::uint32_t>(piece / 2 * kCols * kSlabRowBytes) +
             slab_offset(permuted(n + i * turn), piece % 2);
      } else if (kTurns > 1 && turn == 16) {
        at = ((b_offset + (i % 2 * 128)) ^ (i % 2 * 16)) + static_cast<std::uint32_t>(i / 2 * 1024);
      }
      copy_16(stage + at, b + i * b_turn, piece_bytes);
    }
    b += kCols * work.b_stride;
  };
#pragma unroll 1
  for (int step = 0; step < kStages - 1; ++step) {
    if (step < steps) copy_b(shared + step * stage_bytes);
    commit_copies();
  }
  const float* h[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    h[r] = p.h.data + work.rows[r] * p.h.stride + static_cast<std::int64_t>(slice) * p.max_rank;
  }
  wait_for_previous();

  Fragment<T> fragments[kSlabs];
  {
    float v[kSlabs][8];
    if constexpr (kSlabs > 4) {
      load_slabs_of_hidden(p, h, rank, lane, v);
    } else {
      load_wide_hidden(p, h, 0, rank, lane, v);
    }
    if (rank != kSlabs * kSlab) mask_hidden(0, rank, lane, v);
    float most[2] = {0.0f, 0.0f}, fit[2], unfit[2];
    if constexpr (std::is_same_v<T, __half>) {
#pragma unroll
      for (int i = 0; i < kSlabs * 8; ++i) {
        most[i / 2 % 2] = fmaxf(most[i / 2 % 2], finite_magnitude(v[i / 8][i % 8]));
      }
    }
    fit_rows<T>(most[0], most[1], fit, unfit);
#pragma unroll
    for (int s = 0; s < kSlabs; ++s) fragments[s] = make_fragment<T>(v[s], fit);
#pragma unroll
    for (int r = 0; r < 2; ++r) to.f_sum[r] = to.f[r] * unfit[r];
  }
  std::uint32_t stage = 0, last = (kStages - 1) * stage_bytes;
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    wait_copies<kStages - 2>();
    publish_to_matrices();
    __syncthreads();  // B of this step is there, and all have left the step before
    if (step + kStages - 1 < steps) {
      if (has_rows) copy_y(own + last, (kStages - 1) * kCols);
      copy_b(shared + last);
    }
    commit_copies();
    float sums[kGroups][4][4] = {};
    multiply_slabs<kSlabs, T>(sums, fragments, shared + stage, slabs, lane);
    if (has_rows) {
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        finish_group<TY, true>(to, sums[group], group, 8, own + stage, 0);
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) to.y[r] += kCols;
    last = stage;
    stage = stage == (kStages - 1) * stage_bytes ? 0 : stage + stage_bytes;
  }
}

template <class T, class TY, int kSlabs>
Status launch_expand(ExpandParams& params, std::int64_t row_blocks, int rows, bool overlaps,
                     cudaStream_t stream) {
  static std::atomic<std::uint64_t> prepared{0};
  const int warps = rows / kWarpRows;
  params.slabs =
      static_cast<int>(std::min<std::int64_t>(kSlabs, divide_up(params.max_rank, kSlab)));
  // Where ranks do not fit a stage, the stages hold more slabs than their own.
  if (params.max_rank > kSlabs * kSlab) params.slabs = kSlabs;
  const int stage_bytes =
      kColumns<TY> * params.slabs * kSlabRowBytes + kBiasBytes + warps * kWarpBytes;
  return launch_shaped(&expand_columns<T, TY, kSlabs>,
                       {.blocks = params.parts,
                        .blocks_y = std::min<std::int64_t>(row_blocks, kRowBlocksY),
                        .blocks_z = divide_up(row_blocks, kRowBlocksY),
                        .threads = warps * 32,
                        .shared_bytes = (kSlabs == 1 ? kFewStages : kManyStages) * stage_bytes,
                        .overlaps = overlaps},
                       &prepared, stream, params);
}

/// Steps of a block: few enough that the device is full, many enough that beginning a block costs
/// little. Over eight the blocks at work at a time are of so many rows that memory is slower.
int choose_steps(std::int64_t row_blocks, const TableShape& shape, std::int64_t columns,
                 std::int64_t num_sms, std::int64_t slots) {
  int best = 8;
  std::int64_t best_cost = INT64_MAX;
  for (int steps = 8; steps >= 2; --steps) {
    std::int64_t parts = 0;
    for (int s = 0; s < shape.num_slices; ++s)
      parts += divide_up(divide_up(shape.out[s], columns), steps);
    const std::int64_t blocks = row_blocks * parts;
    // In hundredths of a wave; the last of many waves is on average half empty. Beginning costs as
    // much as 8 steps.
    const std::int64_t waves = blocks <= num_sms ? 100
                               : blocks <= slots ? 130
                                                 : blocks * 100 / slots + 50;
    const std::int64_t cost = waves * (steps + 8);
    if (cost < best_cost) {
      best_cost = cost;
      best = steps;
    }
  }
  return best;
}

/// Blocks on a multiprocessor.
int resident_blocks(const TableShape& shape, int rows) {
  const bool high_rank = shape.max_rank > 4 * kSlab && shape.max_rank <= 8 * kSlab;
  return high_rank ? 1 : rows == 128 ? 2 : 3;
}

}  // namespace

Status prefill_expand(const PartialHidden& h, const AdapterTableView& table, const Grouping& rows,
                      Grouping::Kind kind, std::int64_t active_rows, const float* token_weights,
                      const TensorView& y, const PrefillExpandOptions& options,
                      const PrefillPlan& plan, const PrefillDevice& device, cudaStream_t stream) {
  const TableShape& shape = table.shape;
  ExpandParams params{};
  params.h = h;
  params.partials = plan.partials();
  params.wide_h = reinterpret_cast<std::uintptr_t>(h.data) % 8 == 0 && h.stride % 2 == 0 &&
                  h.split_stride % 2 == 0 && shape.max_rank % 2 == 0;
  params.h_sum = options.h_sum;
  params.entries = table.entries;
  params.slot_stride = table.slot_stride;
  params.rows = rows;
  params.kind = kind;
  params.token_weights = token_weights;
  params.y = y.data;
  params.y_stride = y.strides[0];
  params.num_slices = shape.num_slices;
  params.max_rank = shape.max_rank;
  const std::int64_t width = static_cast<std::int64_t>(size_of(y.dtype));
  const std::int64_t columns = kWarpBytes / kWarpRows / width;
  const std::int64_t row_blocks =
      row_block_bound(kind, active_rows, rows.max_segments, plan.expand_rows);
  params.steps =
      plan.expand_steps > 0
          ? plan.expand_steps
          : choose_steps(divide_up(active_rows, plan.expand_rows), shape, columns, device.num_sms,
                         std::int64_t{device.num_sms} * resident_blocks(shape, plan.expand_rows));
  for (int s = 0; s < shape.num_slices; ++s) {
    params.out[s] = shape.out[s];
    params.first_part[s] = params.parts;
    params.parts += static_cast<int>(divide_up(divide_up(shape.out[s], columns), params.steps));
  }
  if (active_rows == 0 || params.parts == 0) return {};
  params.wide_y =
      reinterpret_cast<std::uintptr_t>(y.data) % 16 == 0 && y.strides[0] * width % 16 == 0;
  params.overwrites = options.mode == YMode::overwrite;
  params.with_bias = options.with_bias;
  params.made_h = options.made_h;
  const bool overlaps = options.overlaps_shrink && device.is_hopper;
  const auto run = [&]<class T, class TY>(const T*, const TY*) {
    const int slabs = static_cast<int>(divide_up(shape.max_rank, kSlab));
    if constexpr (std::is_same_v<T, float>) {
      return slabs == 1   ? launch_floats<TY, 1>(params, row_blocks, overlaps, stream)
             : slabs <= 4 ? launch_floats<TY, 4>(params, row_blocks, overlaps, stream)
                          : launch_floats<TY, 8>(params, row_blocks, overlaps, stream);
    } else {
      const int rows = plan.expand_rows;
      return slabs == 1 ? launch_expand<T, TY, 1>(params, row_blocks, rows, overlaps, stream)
             : slabs > 4 && slabs <= 8
                 ? launch_expand<T, TY, 8>(params, row_blocks, rows, overlaps, stream)
                 : launch_expand<T, TY, 4>(params, row_blocks, rows, overlaps, stream);
    }
  };
  const float* const f32 = nullptr;
  const __half* const f16 = nullptr;
  const __nv_bfloat16* const bf16 = nullptr;
  if (shape.b_dtype == DType::f32) return y.dtype == DType::f32 ? run(f32, f32) : run(f32, bf16);
  if (shape.b_dtype == DType::f16) return y.dtype == DType::f32 ? run(f16, f32) : run(f16, f16);
  return y.dtype == DType::f32 ? run(bf16, f32) : run(bf16, bf16);
}

RANKFOLD_CUDA_MODULE(prefill_expand)

}  // namespace cuda
RANKFOLD_NAMESPACE_END
