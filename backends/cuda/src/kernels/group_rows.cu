// Rows by slot in one launch: what group_tokens makes, and what rows are grouped with inside an
// operation.
#include <cooperative_groups.h>

#include "general.hpp"
#include "group_rows.hpp"
#include "modules.hpp"
#include "prefill_launch.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

namespace {

constexpr int kWarp = 32;
constexpr int kWarps = kGroupWarps;
constexpr int kThreads = kWarps * kWarp;
constexpr int kMostBlocks = 8;  // of a cluster, everywhere
// Slots of which the counters of all warps stand in shared memory.
constexpr int kMostSlots = 1024;
constexpr unsigned kAll = 0xffffffffu;

struct GroupParams {
  const std::int32_t* token_slots;
  std::int32_t num_tokens;
  std::int32_t num_slots;
  std::int32_t max_segments;
  std::int32_t rows_of_warp;  ///< a multiple of 32
  std::int32_t* order;
  std::int32_t* offsets;
  std::int32_t* slots;
  std::int32_t* num_segments;
};

// The blocks that share their counts. Devices before 9.0 have no clusters, nor their compiler the
// names; there a block is alone.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
struct Cluster {
  static __device__ unsigned rank() { return cooperative_groups::this_cluster().block_rank(); }
  static __device__ unsigned size() { return cooperative_groups::this_cluster().num_blocks(); }
  static __device__ void sync() { cooperative_groups::this_cluster().sync(); }
  static __device__ std::int32_t read(std::int32_t* shared, unsigned block) {
    return *cooperative_groups::this_cluster().map_shared_rank(shared, block);
  }
};
#else
struct Cluster {
  static __device__ unsigned rank() { return 0; }
  static __device__ unsigned size() { return 1; }
  static __device__ void sync() { __syncthreads(); }
  static __device__ std::int32_t read(const std::int32_t* shared, unsigned) { return *shared; }
};
#endif

// A stable counting sort. Each warp has a run of rows, each block those of its warps, the cluster
// all: a row's place is that of its slot, plus the slot's rows in the blocks before, in the warps
// before, in the warp before it.
template <bool kCluster>
__global__ void __launch_bounds__(kThreads) group_rows(const __grid_constant__ GroupParams p) {
  // All of it dynamic: a block may ask for as much as there is.
  extern __shared__ __align__(16) unsigned char raw[];
  auto* const warp_sums = reinterpret_cast<unsigned long long*>(raw);
  auto* const memory = reinterpret_cast<std::int32_t*>(warp_sums + kWarps);
  const int lane = static_cast<int>(threadIdx.x) % kWarp,
            warp = static_cast<int>(threadIdx.x) / kWarp;
  const int pitch = p.num_slots | 1;    // lanes that look at one slot meet in no bank
  std::int32_t* const counts = memory;  // [warps][pitch]
  std::int32_t* const totals = memory + kWarps * pitch;  // of the block
  std::int32_t* const starts = totals + p.num_slots;     // of the block's rows of a slot
  const unsigned rank = kCluster ? Cluster::rank() : 0;
  const unsigned blocks = kCluster ? Cluster::size() : 1;
  for (int i = static_cast<int>(threadIdx.x); i < kWarps * pitch; i += kThreads) counts[i] = 0;
  __syncthreads();
  const std::int64_t begin = (static_cast<std::int64_t>(rank) * kWarps + warp) * p.rows_of_warp;
  const std::int64_t end = begin + p.rows_of_warp;
  std::int32_t* const own = counts + warp * pitch;
  const auto slot_of = [&](std::int64_t row) {
    const std::int32_t slot = row < end && row < p.num_tokens ? p.token_slots[row] : -1;
    return slot >= 0 && slot < p.num_slots ? slot : -1;
  };
  for (std::int64_t row = begin + lane; row - lane < end && row - lane < p.num_tokens;
       row += kWarp) {
    const std::int32_t slot = slot_of(row);
    const unsigned same = __match_any_sync(kAll, slot);
    if (slot >= 0 && (same & ((1u << lane) - 1)) == 0) own[slot] += __popc(same);
    __syncwarp();
  }
  __syncthreads();
  // A lane for each warp: what stands before it in the block.
  for (int slot = warp; slot < p.num_slots; slot += kWarps) {
    const std::int32_t count = counts[lane * pitch + slot];
    std::int32_t sum = count;
#pragma unroll
    for (int step = 1; step < kWarp; step *= 2) {
      const std::int32_t other = __shfl_up_sync(kAll, sum, step);
      if (lane >= step) sum += other;
    }
    counts[lane * pitch + slot] = sum - count;
    if (lane == kWarp - 1) totals[slot] = sum;
  }
  if constexpr (kCluster) {
    Cluster::sync();
  } else {
    __syncthreads();
  }
  // A thread for each slot: rows in the blocks before and in all; then a scan over the slots, with
  // the number of slots that have rows in the upper half.
  static_assert(kMostSlots <= kThreads);
  const int slot = static_cast<int>(threadIdx.x);
  std::int32_t before = 0, all = 0;
  if (slot < p.num_slots) {
    if constexpr (kCluster) {
      for (unsigned block = 0; block < blocks; ++block) {
        const std::int32_t count = Cluster::read(totals + slot, block);
        before += block < rank ? count : 0;
        all += count;
      }
    } else {
      all = totals[slot];
    }
  }
  const unsigned long long item =
      (static_cast<unsigned long long>(all > 0 ? 1 : 0) << 32) | static_cast<unsigned>(all);
  unsigned long long sum = item;
#pragma unroll
  for (int step = 1; step < kWarp; step *= 2) {
    const unsigned long long other = __shfl_up_sync(kAll, sum, step);
    if (lane >= step) sum += other;
  }
  if (lane == kWarp - 1) warp_sums[warp] = sum;
  __syncthreads();
  if (warp == 0) {
    unsigned long long total = warp_sums[lane];
#pragma unroll
    for (int step = 1; step < kWarp; step *= 2) {
      const unsigned long long other = __shfl_up_sync(kAll, total, step);
      if (lane >= step) total += other;
    }
    warp_sums[lane] = total;
  }
  __syncthreads();
  const unsigned long long first = sum - item + (warp > 0 ? warp_sums[warp - 1] : 0);
  const auto first_row = static_cast<std::int32_t>(first & 0xffffffffu);
  const auto segment = static_cast<std::int32_t>(first >> 32);
  if (slot < p.num_slots) starts[slot] = first_row + before;
  if (rank == 0) {
    const auto rows = static_cast<std::int32_t>(warp_sums[kWarps - 1] & 0xffffffffu);
    const auto found = static_cast<std::int32_t>(warp_sums[kWarps - 1] >> 32);
    if (slot < p.num_slots && all > 0) {
      p.offsets[segment] = first_row;
      p.slots[segment] = slot;
    }
    // What nobody may use is written, too: nothing of it is what memory happened to hold.
    for (std::int32_t i = found + slot; i <= p.max_segments; i += kThreads) {
      p.offsets[i] = rows;
      if (i < p.max_segments) p.slots[i] = -1;
    }
    if (slot == 0) *p.num_segments = found;
  }
  __syncthreads();
  for (std::int64_t row = begin + lane; row - lane < end && row - lane < p.num_tokens;
       row += kWarp) {
    const std::int32_t of = slot_of(row);
    const unsigned same = __match_any_sync(kAll, of);
    const int ahead = __popc(same & ((1u << lane) - 1));
    const std::int32_t next = of >= 0 ? own[of] : 0;
    __syncwarp();  // all have read before one writes
    if (of >= 0) {
      p.order[starts[of] + next + ahead] = static_cast<std::int32_t>(row);
      if (ahead == 0) own[of] = next + __popc(same);
    }
    __syncwarp();
  }
  // Nobody leaves while others may look at its totals.
  if constexpr (kCluster) Cluster::sync();
}

}  // namespace

bool groups_in_one_launch(std::int64_t num_tokens, std::int32_t num_slots) noexcept {
  return num_slots > 0 && num_slots <= kMostSlots && num_tokens > 0 &&
         num_tokens < (std::int64_t{1} << 31) - kThreads;
}

Status group_rows_of_slots(const std::int32_t* token_slots, std::int64_t num_tokens,
                           std::int32_t num_slots, const Segments& out, bool has_clusters,
                           cudaStream_t stream) {
  const bool cluster = has_clusters && num_tokens > 512;
  const int blocks = cluster ? kMostBlocks : 1;
  const std::int64_t rows =
      divide_up(divide_up(num_tokens, std::int64_t{blocks} * kWarps), kWarp) * kWarp;
  const GroupParams params{token_slots,
                           static_cast<std::int32_t>(num_tokens),
                           num_slots,
                           static_cast<std::int32_t>(out.max_segments),
                           static_cast<std::int32_t>(rows),
                           out.order,
                           out.offsets,
                           out.slots,
                           out.num_segments};
  LaunchShape shape;
  shape.blocks = blocks;
  shape.threads = kThreads;
  shape.shared_bytes = group_rows_bytes(num_slots);
  shape.cluster = blocks;
  static std::atomic<std::uint64_t> prepared_cluster{0}, prepared_block{0};
  if (cluster) return launch_shaped(&group_rows<true>, shape, &prepared_cluster, stream, params);
  return launch_shaped(&group_rows<false>, shape, &prepared_block, stream, params);
}

RANKFOLD_CUDA_MODULE(group_rows)

}  // namespace cuda
RANKFOLD_NAMESPACE_END
