#include "experts_rows.cuh"
#include "launch.hpp"
#include "modules.hpp"
#include "pairs.hpp"
#include "tensor.cuh"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

namespace {

constexpr int kListThreads = 256;
constexpr int kKept = 4;  // rows of a thread that it need not look up twice

struct ListParams {
  PairLists lists;
  const std::int32_t* expert_offsets;
  const std::int32_t* row_tokens;
  const std::int32_t* token_slots;
  const float* row_weights;
  const float* token_weights;
  std::int64_t first_row;  // of the window
  std::int64_t num_tokens;
  int num_rows;  // of the window
  int num_slots;
};

/// What becomes of kCount rows of a thread, kListThreads apart; slot -1: the row has no entry. All
/// loads of a kind are under way at once.
template <int kCount>
struct LookedUp {
  int token[kCount], slot[kCount];
  float row_weight[kCount], token_weight[kCount];

  __device__ __forceinline__ LookedUp(const ListParams& p, int first, int end) {
    bool known[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int row = first + i * kListThreads;
      const std::int64_t at = p.first_row + row;
      token[i] = experts::load_int_if(p.row_tokens + at, row < end && p.row_tokens != nullptr,
                                      static_cast<int>(at));
      row_weight[i] =
          experts::load_float_if(p.row_weights + at, row < end && p.row_weights != nullptr);
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      known[i] = first + i * kListThreads < end &&
                 (p.row_tokens == nullptr || (token[i] >= 0 && token[i] < p.num_tokens));
      slot[i] = experts::load_int_if(p.token_slots + token[i], known[i] && p.token_slots != nullptr,
                                     known[i] ? 0 : -1);
      token_weight[i] = experts::load_float_if(p.token_weights + token[i],
                                               known[i] && p.token_weights != nullptr);
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (slot[i] >= p.num_slots) slot[i] = -1;
    }
  }
  /// Counts the rows of each slot.
  __device__ __forceinline__ void count(int* slots) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (slot[i] >= 0) atomicAdd(slots + slot[i], 1);
    }
  }
  /// next: of each slot. Which rows stand beside it changes no bit of a row: their order is any.
  __device__ __forceinline__ void put(const ListParams& p, int* next, int first) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (slot[i] < 0) continue;
      p.lists.rows[atomicAdd(next + slot[i], 1)] =
          make_int4(first + i * kListThreads, token[i], __float_as_int(row_weight[i]),
                    __float_as_int(token_weight[i]));
    }
  }
};

/// A block an expert.
__global__ void __launch_bounds__(kListThreads) list_rows(const __grid_constant__ ListParams p) {
  extern __shared__ int slots[];  // rows of each slot, then where its next row goes
  release_next();
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const int expert = static_cast<int>(blockIdx.x);
  if (expert >= p.lists.num_experts) {
    if (thread == 0) p.lists.experts[expert] = make_int2(0, 0);
    return;
  }
  const std::int64_t begin = p.expert_offsets[expert] - p.first_row;
  const std::int64_t end = p.expert_offsets[expert + 1] - p.first_row;
  const int low = static_cast<int>(min(max(begin, std::int64_t{0}), std::int64_t{p.num_rows}));
  const int high = static_cast<int>(min(max(end, std::int64_t{low}), std::int64_t{p.num_rows}));
  for (int slot = thread; slot < p.num_slots; slot += kListThreads) slots[slot] = 0;
  __syncthreads();
  constexpr int kPast = kKept * kListThreads;
  const LookedUp<kKept> kept(p, low + thread, high);
  kept.count(slots);
  for (int row = low + thread + kPast; row < high; row += kPast)
    LookedUp<kKept>(p, row, high).count(slots);
  __syncthreads();
  if (thread < 32) {
    // An expert has at most as many row blocks as rows: they stand where its rows do.
    int row = low, block = low;
    for (int base = 0; base < p.num_slots; base += 32) {
      const int slot = base + lane;
      const int count = slot < p.num_slots ? slots[slot] : 0;
      const int blocks = (count + kPairRows - 1) / kPairRows;
      int rows_to = count, blocks_to = blocks;
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const int rows_other = __shfl_up_sync(0xffffffffu, rows_to, step);
        const int blocks_other = __shfl_up_sync(0xffffffffu, blocks_to, step);
        if (lane >= step) rows_to += rows_other, blocks_to += blocks_other;
      }
      const int first = row + rows_to - count;
      if (slot < p.num_slots) slots[slot] = first;
      for (int i = 0; i < blocks; ++i) {
        p.lists.blocks[block + blocks_to - blocks + i] =
            make_int4(slot, expert, first + i * kPairRows, min(count - i * kPairRows, kPairRows));
      }
      row += __shfl_sync(0xffffffffu, rows_to, 31);
      block += __shfl_sync(0xffffffffu, blocks_to, 31);
    }
    if (lane == 0) p.lists.experts[expert] = make_int2(block - low, low);
  }
  __syncthreads();
  kept.put(p, slots, low + thread);
  for (int row = low + thread + kPast; row < high; row += kPast)
    LookedUp<kKept>(p, row, high).put(p, slots, row);
}

}  // namespace

Status list_pairs(const ApplyExpertsArgs& args, const PairLists& lists, cudaStream_t stream) {
  const ExpertAddressing& addressing = args.addressing;
  ListParams params{};
  params.lists = lists;
  params.expert_offsets = addressing.expert_offsets;
  params.row_tokens = addressing.row_tokens;
  params.token_slots = addressing.token_slots;
  params.row_weights = addressing.row_weights;
  params.token_weights = addressing.token_weights;
  const std::int64_t end = addressing.row_end < 0 ? addressing.num_rows : addressing.row_end;
  params.first_row = addressing.row_begin;
  params.num_tokens = addressing.num_tokens;
  params.num_rows = static_cast<int>(end - addressing.row_begin);
  params.num_slots = args.table.shape.num_slots;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(pair_list_experts(lists.num_experts)));
  config.blockDim = dim3(kListThreads);
  config.dynamicSmemBytes = sizeof(int) * static_cast<std::size_t>(params.num_slots);
  config.stream = stream;
  return to_status(cudaLaunchKernelEx(&config, &list_rows, params), "cudaLaunchKernelEx");
}

RANKFOLD_CUDA_MODULE(pairs_list)

}  // namespace cuda
RANKFOLD_NAMESPACE_END
