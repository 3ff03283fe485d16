#include "experts.hpp"

#include "experts_apply.cuh"
#include "launch.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

namespace {

using experts::Params;

constexpr std::int64_t kMaxRows = std::int64_t{1} << 30;
constexpr std::int64_t kMaxColumns = std::int64_t{1} << 30;
constexpr int kMaxRank = 256;
constexpr std::int64_t kMaxKeys = 2147483647;

// Rows of the window without a delta become zero.
struct ClearParams {
  const AdapterEntry* entries;
  Rows rows;
  RowRange range;
  void* y;
  std::int64_t y_stride;
  std::int64_t out[kMaxSlices];
  int num_slices, max_rank;
};
template <class TY>
__global__ void __launch_bounds__(128) clear_rows(const __grid_constant__ ClearParams p) {
  for (std::int64_t i = blockIdx.x; i < p.range.num_rows; i += gridDim.x) {
    const std::int64_t row = p.range.first_row + i;
    const Route found = route(p.rows, row);
    TY* y = static_cast<TY*>(p.y) + row * p.y_stride;
    for (int slice = 0; slice < p.num_slices; ++slice) {
      bool has_delta = false;
      if (found.entry >= 0) {
        const AdapterEntry& entry = p.entries[found.entry + slice];
        has_delta = entry.a != nullptr && entry.b != nullptr && bounded_rank(entry, p.max_rank) > 0;
      }
      if (!has_delta) {
        for (std::int64_t n = threadIdx.x; n < p.out[slice]; n += blockDim.x) y[n] = narrow<TY>(0.0f);
      }
      y += p.out[slice];
    }
  }
}

bool divides(std::uintptr_t value, std::int64_t by) noexcept { return value % static_cast<std::uintptr_t>(by) == 0; }

// n / divisor = n * magic >> shift for n < 2^31.
void set_divisor(Params& p, std::int64_t divisor) noexcept {
  int bits = 0;
  while ((std::int64_t{1} << bits) < divisor) ++bits;
  p.choice_shift = 31 + bits;
  p.choice_magic =
      static_cast<std::uint32_t>(((std::uint64_t{1} << p.choice_shift) + static_cast<std::uint64_t>(divisor) - 1) /
                                 static_cast<std::uint64_t>(divisor));
}

Params make_params(const ApplyExpertsArgs& args) noexcept {
  const ExpertAddressing& addressing = args.addressing;
  const TableShape& shape = args.table.shape;
  const bool gather = addressing.mode == ExpertMode::gather;
  Params p{};
  p.x = args.x.data;
  p.y = args.y.data;
  p.entries = args.table.entries;
  p.expert_offsets = gather ? nullptr : addressing.expert_offsets;
  p.row_tokens = gather ? nullptr : addressing.row_tokens;
  p.expert_ids = gather ? addressing.expert_ids : nullptr;
  p.token_slots = addressing.token_slots;
  p.row_weights = addressing.row_weights;
  p.token_weights = addressing.token_weights;
  p.x_stride = args.x.strides[0];
  p.y_stride = args.y.strides[0];
  p.slot_stride = args.table.slot_stride;
  const std::int64_t end = addressing.row_end < 0 ? addressing.num_rows : addressing.row_end;
  const std::int64_t top_k = gather && addressing.top_k > 0 ? addressing.top_k : 1;
  p.first_row = addressing.row_begin;
  p.num_rows = static_cast<int>(end - addressing.row_begin);
  p.first_token = p.first_row / top_k;
  p.first_choice = static_cast<int>(p.first_row % top_k);
  set_divisor(p, top_k);
  p.num_tokens = addressing.num_tokens;
  p.expert_base = addressing.expert_base;
  p.num_slots = shape.num_slots;
  p.num_experts = shape.num_experts;
  p.num_slices = shape.num_slices;
  p.max_rank = shape.max_rank;
  p.in = static_cast<int>(shape.in);
  p.own_x = addressing.x_rows == XRows::own;
  p.overwrites = args.options.y_mode == YMode::overwrite;
  p.x_is_wide = shape.in % 8 == 0 && p.x_stride % 8 == 0 && divides(reinterpret_cast<std::uintptr_t>(p.x), 16);
  const std::int64_t each = 16 / static_cast<std::int64_t>(size_of(args.y.dtype));
  std::int64_t column = 0;
  for (int i = 0; i < shape.num_slices; ++i) {
    p.out[i] = static_cast<int>(shape.out[i]);
    p.y_column[i] = column;
    // Eight columns at a time: all of them or none.
    if (divides(reinterpret_cast<std::uintptr_t>(p.y), 16) && p.y_stride % each == 0 && column % each == 0 &&
        shape.out[i] % 8 == 0) {
      p.y_is_wide |= 1u << i;
    }
    column += shape.out[i];
  }
  return p;
}

template <class T, class TY, int kTokenTiles, int kWarps, int kTiles, int kStages, int kAhead, bool kOneTile,
          int kBlocks>
Status launch_fused(Params& p, int chunks, cudaStream_t stream) {
  using Sizes = experts::Shape<TY, kTokenTiles, kWarps, kTiles, kStages, kAhead>;
  const auto kernel = &experts::apply<T, TY, kTokenTiles, kWarps, kTiles, kStages, kAhead, kOneTile, kBlocks>;
  const int rank_tiles = kOneTile ? 1 : (p.max_rank + 15) / 16;
  constexpr std::size_t kMostBytes = std::size_t{96} * 1024;
  p.slices_per_block = p.num_slices;
  if (Sizes::bytes(p.slices_per_block, rank_tiles) > kMostBytes) p.slices_per_block = 1;
  const std::size_t bytes = Sizes::bytes(p.slices_per_block, rank_tiles);
  // What the launch of this shape may ask for, whatever it asks for: an attribute of the function, not of the call.
  static const cudaError_t allowed = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 160 * 1024);
  if (allowed != cudaSuccess) return to_status(allowed, "cudaFuncSetAttribute");
  const bool by_key = p.finder == experts::kByKey;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(by_key ? p.num_experts * p.num_slots : p.num_rows),
                        static_cast<unsigned>(by_key ? chunks : 1),
                        static_cast<unsigned>(divide_up(p.num_slices, p.slices_per_block)));
  config.blockDim = dim3(kWarps * 32);
  config.dynamicSmemBytes = bytes;
  config.stream = stream;
  return to_status(cudaLaunchKernelEx(&config, kernel, p), "cudaLaunchKernelEx");
}

}  // namespace
}  // namespace cuda
RANKFOLD_NAMESPACE_END
