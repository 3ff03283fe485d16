#include "experts.hpp"

#include <atomic>

#include "../configurations.hpp"
#include "experts_apply.cuh"
#include "launch.hpp"
#include "modules.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

namespace {

using experts::Params;

constexpr std::int64_t kMaxRows = std::int64_t{1} << 30;
constexpr std::int64_t kMaxColumns = std::int64_t{1} << 30;
constexpr int kMaxRank = 256;
constexpr std::int64_t kMaxKeys = 2147483647;
constexpr std::size_t kRoomyBytes = std::size_t{112} * 1024;  // two blocks of a multiprocessor
constexpr std::size_t kMostBytes = std::size_t{160} * 1024;

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
__global__ void __launch_bounds__(128) clear_rows(ClearParams p) {
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
        for (std::int64_t n = threadIdx.x; n < p.out[slice]; n += blockDim.x)
          y[n] = narrow<TY>(0.0f);
      }
      y += p.out[slice];
    }
  }
}

bool divides(std::uintptr_t value, std::int64_t by) noexcept {
  return value % static_cast<std::uintptr_t>(by) == 0;
}

// n / divisor = n * magic >> shift for n < 2^31.
void set_divisor(Params& p, std::int64_t divisor) noexcept {
  int bits = 0;
  while ((std::int64_t{1} << bits) < divisor) ++bits;
  p.choice_shift = 31 + bits;
  p.choice_magic = static_cast<std::uint32_t>(
      ((std::uint64_t{1} << p.choice_shift) + static_cast<std::uint64_t>(divisor) - 1) /
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
  p.x_is_wide = shape.in % 8 == 0 && p.x_stride % 8 == 0 &&
                divides(reinterpret_cast<std::uintptr_t>(p.x), 16);
  p.ids_are_wide =
      gather && divides(reinterpret_cast<std::uintptr_t>(p.expert_ids + p.first_row), 16);
  const std::int64_t each = 16 / static_cast<std::int64_t>(size_of(args.y.dtype));
  std::int64_t column = 0;
  for (int i = 0; i < shape.num_slices; ++i) {
    p.out[i] = static_cast<int>(shape.out[i]);
    p.y_column[i] = column;
    // Eight columns at a time: all of them or none.
    if (divides(reinterpret_cast<std::uintptr_t>(p.y), 16) && p.y_stride % each == 0 &&
        column % each == 0 && shape.out[i] % 8 == 0) {
      p.y_is_wide |= 1u << i;
    }
    column += shape.out[i];
  }
  return p;
}

// How many rows of a pair a block takes.
enum class Size { few, some, many };

struct How {
  int chunks;
  bool early;  // launched while the kernel before ends
  cudaStream_t stream;
};

// A function's attribute is a device's.
template <auto kKernel>
Status allow_shared_memory(std::size_t bytes) {
  // What is static counts, too.
  if (bytes <= std::size_t{32} * 1024) return {};
  static std::atomic<std::uint64_t> allowed{0};  // a bit a device; bytes are at most kMostBytes
  int device = 0;
  if (Status status = to_status(cudaGetDevice(&device), "cudaGetDevice"); !status.ok())
    return status;
  const std::uint64_t bit = device < 64 ? std::uint64_t{1} << device : 0;
  if ((allowed.load(std::memory_order_relaxed) & bit) != 0) return {};
  // Some devices have less, which is enough for most shapes.
  int most = 0;
  cudaError_t error =
      cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  if (error != cudaSuccess) return to_status(error, "cudaDeviceGetAttribute");
  most = std::min(most, static_cast<int>(kMostBytes));
  error = cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most);
  if (error == cudaSuccess) allowed.fetch_or(bit, std::memory_order_relaxed);
  return to_status(error, "cudaFuncSetAttribute");
}

// kTiles: of A (16 ranks of a slice) that share a reading of x; 1: a block has one slice.
template <class T, class TY, int kTokenTiles, int kWarps, int kTiles, int kStages, int kAhead,
          bool kOneTile, int kBlocks>
Status launch_fused(Params& p, const How& how) {
  using Sizes = experts::Shape<TY, kTokenTiles, kWarps, kTiles, kStages, kAhead>;
  constexpr auto kernel =
      &experts::apply<T, TY, kTokenTiles, kWarps, kTiles, kStages, kAhead, kOneTile, kBlocks>;
  const int rank_tiles = kOneTile ? 1 : (p.max_rank + 15) / 16;
  p.slices_per_block = kTiles == 1 ? 1 : p.num_slices;
  while (p.slices_per_block > 1 && Sizes::bytes(p.slices_per_block, rank_tiles) > kRoomyBytes) {
    p.slices_per_block = (p.slices_per_block + 1) / 2;
  }
  const std::size_t bytes = Sizes::bytes(p.slices_per_block, rank_tiles);
  if (Status status = allow_shared_memory<kernel>(bytes); !status.ok()) return status;
  const bool by_key = p.finder == experts::kByKey;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(by_key ? p.num_experts * p.num_slots : p.num_rows),
                        static_cast<unsigned>(by_key ? how.chunks : 1),
                        static_cast<unsigned>(divide_up(p.num_slices, p.slices_per_block)));
  config.blockDim = dim3(kWarps * 32);
  config.dynamicSmemBytes = bytes;
  config.stream = how.stream;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = how.early ? 1 : 0;
  return to_status(cudaLaunchKernelEx(&config, kernel, p), "cudaLaunchKernelEx");
}

// Shapes measured on one H200. All but those of few rows split k over four warps, so that their
// bits agree.
template <class T, class TY>
Status launch_size(Size size, Params& p, const How& how) {
  if constexpr (sizeof(TY) == 4) {
    // y is the most of the bytes: the kernels for any rank serve.
    if (size == Size::many) return launch_fused<T, TY, 4, 4, 2, 3, 2, false, 3>(p, how);
    return launch_fused<T, TY, 1, 4, 2, 4, 2, false, 4>(p, how);
  } else if (p.max_rank > 16) {
    if (size == Size::many) return launch_fused<T, TY, 4, 4, 2, 3, 2, false, 3>(p, how);
    return launch_fused<T, TY, 1, 4, 2, 4, 2, false, 4>(p, how);
  } else {
    switch (size) {
      case Size::few:
        if (p.num_slices % 2 == 0) return launch_fused<T, TY, 1, 8, 2, 5, 3, true, 2>(p, how);
        return launch_fused<T, TY, 1, 8, 1, 6, 3, true, 2>(p, how);
      case Size::some:
        if (p.num_slices % 2 == 0) return launch_fused<T, TY, 2, 4, 2, 4, 3, true, 4>(p, how);
        return launch_fused<T, TY, 2, 4, 1, 4, 3, true, 4>(p, how);
      case Size::many:
        break;
    }
    if (p.num_slices > 1) return launch_fused<T, TY, 10, 4, 2, 3, 3, true, 2>(p, how);
    return launch_fused<T, TY, 8, 4, 1, 3, 4, true, 3>(p, how);
  }
}

template <class T>
Status launch_for(DType y, Size size, Params& p, const How& how) {
  if (y == DType::f32) return launch_size<T, float>(size, p, how);
  return launch_size<T, T>(size, p, how);
}

}  // namespace

const char* why_not_fused_experts(const Problem& problem) noexcept {
  const TableShape& shape = problem.shape;
  if (problem.op != Op::apply_experts) return "the operation should be apply_experts";
  if ((problem.x_dtype != DType::f16 && problem.x_dtype != DType::bf16) ||
      shape.a_dtype != problem.x_dtype || shape.b_dtype != problem.x_dtype) {
    return "x, A and B should be of one dtype, f16 or bf16";
  }
  if (shape.max_rank < 1 || shape.max_rank > kMaxRank) return "max_rank should be 1 to 256";
  if (problem.bounds.rows > kMaxRows) return "bounds.rows should be at most 2^30";
  if (shape.in < 1 || shape.in > kMaxColumns || total_out(shape) > kMaxColumns) {
    return "in and the sum of out should be at most 2^30";
  }
  if (std::int64_t{shape.num_slots} * shape.num_experts > kMaxKeys) {
    return "num_slots * num_experts should be under 2^31";
  }
  return nullptr;
}

Status fused_experts(const ApplyExpertsArgs& args, const Problem& problem, bool early,
                     cudaStream_t stream) {
  Params p = make_params(args);
  if (p.num_rows == 0 || args.table.shape.num_slots == 0) return {};
  const TableShape& shape = args.table.shape;
  const std::int64_t keys = std::int64_t{shape.num_slots} * shape.num_experts;
  const std::int64_t rows = problem.bounds.rows;
  // By the rows of a pair, if all pairs are chosen alike.
  Size size = rows >= 16 * keys ? Size::many : rows >= keys ? Size::some : Size::few;
  int chunks = rows >= 6 * keys ? 2 : 1;
  if (rows < keys) {
    // Most pairs have no row: a block a row, which takes the rows of its pair along.
    p.finder = p.num_rows <= experts::kSegment ? experts::kByRow : experts::kPlain;
  }
  if (problem.options.batch_invariant == BatchInvariant::on && size == Size::few) size = Size::some;
  const ExpertsConfiguration asked = experts_configuration(problem);
  if (asked.size >= 0) size = static_cast<Size>(asked.size);
  if (asked.parts > 0) chunks = asked.parts;
  const How how{chunks, early, stream};
  return problem.x_dtype == DType::f16 ? launch_for<__half>(args.y.dtype, size, p, how)
                                       : launch_for<__nv_bfloat16>(args.y.dtype, size, p, how);
}

Status clear_rows_without_delta(const ApplyExpertsArgs& args, const Rows& rows, RowRange range,
                                cudaStream_t stream) {
  ClearParams params{};
  params.entries = args.table.entries;
  params.rows = rows;
  params.range = range;
  params.y = args.y.data;
  params.y_stride = args.y.strides[0];
  for (int i = 0; i < args.table.shape.num_slices; ++i) params.out[i] = args.table.shape.out[i];
  params.num_slices = args.table.shape.num_slices;
  params.max_rank = args.table.shape.max_rank;
  if (range.num_rows == 0) return {};
  return with_element(args.y.dtype, [&]<class TY>(const TY*) {
    return launch(&clear_rows<TY>, grid_of(range.num_rows), 128, stream, params);
  });
}

RANKFOLD_CUDA_MODULE(experts)

}  // namespace cuda
RANKFOLD_NAMESPACE_END
