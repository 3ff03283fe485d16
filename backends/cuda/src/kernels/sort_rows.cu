// Rows by slot: what group_tokens makes, and what gradients are summed over.
#include "general.hpp"
#include "launch.hpp"
#include "modules.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

namespace {

constexpr int kWarp = 32;

__device__ int slot_of(const Rows& rows, std::int64_t row) {
  const int slot = rows.kind == Rows::uniform ? rows.uniform_slot : rows.token_slots[row];
  return slot >= 0 && slot < rows.num_slots ? slot : -1;
}

struct SortParams {
  Rows rows;
  std::int64_t num_rows;
  std::int64_t num_tiles;
  std::int32_t* counts;
  std::int32_t* order;
  std::int32_t* ends;
};

// Calls f(row, slot, rank among the lanes of the slot, lanes of the slot, is the first of them) for
// the rows of a tile, 32 at a time and in order. One warp a tile: a counter has one writer at a
// time.
template <class F>
__device__ void for_rows_of_tile(const SortParams& p, std::int64_t tile, F f) {
  const int lane = static_cast<int>(threadIdx.x);
  const std::int64_t first = tile * kSortTile;
  for (std::int64_t i = 0; i < kSortTile; i += kWarp) {
    const std::int64_t row = first + i + lane;
    const int slot = row < p.num_rows ? slot_of(p.rows, row) : -1;
    const unsigned same = __match_any_sync(0xffffffffu, slot);
    const int before = __popc(same & ((1u << lane) - 1));
    f(row, slot, before, __popc(same), before == 0);
    __syncwarp();
  }
}

__global__ void count_rows(SortParams p) {
  for (std::int64_t tile = blockIdx.x; tile < p.num_tiles; tile += gridDim.x) {
    for_rows_of_tile(p, tile, [&](std::int64_t, int slot, int, int count, bool leads) {
      if (slot >= 0 && leads) p.counts[slot * p.num_tiles + tile] += count;
    });
  }
}

// Exclusive scan over (slot, tile) by one block.
constexpr int kScanThreads = 1024;
__global__ void __launch_bounds__(kScanThreads) scan_counts(SortParams p) {
  __shared__ std::int32_t warp_sums[kScanThreads / kWarp];
  __shared__ std::int32_t carry;
  const int lane = static_cast<int>(threadIdx.x) % kWarp,
            warp = static_cast<int>(threadIdx.x) / kWarp;
  const std::int64_t count = p.rows.num_slots * p.num_tiles;
  if (threadIdx.x == 0) carry = 0;
  __syncthreads();
  for (std::int64_t first = 0; first < count; first += kScanThreads) {
    const std::int64_t i = first + threadIdx.x;
    const std::int32_t own = i < count ? p.counts[i] : 0;
    std::int32_t sum = own;
    for (int step = 1; step < kWarp; step *= 2) {
      const std::int32_t other = __shfl_up_sync(0xffffffffu, sum, step);
      if (lane >= step) sum += other;
    }
    if (lane == kWarp - 1) warp_sums[warp] = sum;
    __syncthreads();
    if (warp == 0) {
      std::int32_t total = warp_sums[lane];
      for (int step = 1; step < kWarp; step *= 2) {
        const std::int32_t other = __shfl_up_sync(0xffffffffu, total, step);
        if (lane >= step) total += other;
      }
      warp_sums[lane] = total;
    }
    __syncthreads();
    const std::int32_t before = carry + (warp > 0 ? warp_sums[warp - 1] : 0) + sum - own;
    if (i < count) {
      p.counts[i] = before;
      if (i % p.num_tiles == p.num_tiles - 1) p.ends[i / p.num_tiles] = before + own;
    }
    __syncthreads();
    if (threadIdx.x == 0) carry += warp_sums[kScanThreads / kWarp - 1];
    __syncthreads();
  }
}

__global__ void place_rows(SortParams p) {
  for (std::int64_t tile = blockIdx.x; tile < p.num_tiles; tile += gridDim.x) {
    for_rows_of_tile(p, tile, [&](std::int64_t row, int slot, int before, int count, bool leads) {
      std::int32_t* const next = p.counts + (slot < 0 ? 0 : slot) * p.num_tiles + tile;
      const std::int32_t first = slot < 0 ? 0 : *next;
      __syncwarp();  // all have read before one writes
      if (slot < 0) return;
      p.order[first + before] = static_cast<std::int32_t>(row);
      if (leads) *next = first + count;
    });
  }
}

struct SegmentParams {
  const std::int32_t* ends;
  std::int32_t num_slots;
  std::int32_t* offsets;
  std::int32_t* slots;
  std::int32_t* num_segments;
};

__global__ void write_segments(SegmentParams p) {
  const int lane = static_cast<int>(threadIdx.x);
  std::int32_t found = 0;
  for (std::int32_t first = 0; first < p.num_slots; first += kWarp) {
    const std::int32_t slot = first + lane;
    const std::int32_t begin = slot > 0 && slot < p.num_slots ? p.ends[slot - 1] : 0;
    const std::int32_t end = slot < p.num_slots ? p.ends[slot] : 0;
    const bool has_rows = slot < p.num_slots && end > begin;
    const unsigned all = __ballot_sync(0xffffffffu, has_rows);
    if (has_rows) {
      const std::int32_t at = found + __popc(all & ((1u << lane) - 1));
      p.offsets[at] = begin;
      p.slots[at] = slot;
    }
    found += __popc(all);
  }
  if (lane == 0) {
    p.offsets[found] = p.num_slots > 0 ? p.ends[p.num_slots - 1] : 0;
    *p.num_segments = found;
  }
}

struct ScatterParams {
  const std::int32_t* order;
  const std::int32_t* offsets;
  const std::int32_t* slots;
  const std::int32_t* num_segments;
  std::int64_t max_segments;
  std::int64_t num_tokens;
  std::int32_t num_slots;
  std::int32_t* row_slots;
};

__global__ void write_row_slots(ScatterParams p) {
  const std::int64_t given = *p.num_segments;
  const std::int64_t num_segments = given < 0 ? 0 : given > p.max_segments ? p.max_segments : given;
  if (num_segments == 0) return;
  const std::int64_t end =
      p.offsets[num_segments] < p.num_tokens ? p.offsets[num_segments] : p.num_tokens;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t place = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
       place < end; place += step) {
    if (place < p.offsets[0]) continue;
    // The last segment that does not begin past the place; empty ones before it begin there, too.
    std::int64_t low = 0, high = num_segments;
    while (low < high) {
      const std::int64_t middle = (low + high) / 2;
      if (p.offsets[middle] <= place) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    const std::int64_t row = p.order[place];
    const std::int32_t slot = p.slots[low - 1];
    if (row >= 0 && row < p.num_tokens && slot >= 0 && slot < p.num_slots) p.row_slots[row] = slot;
  }
}

}  // namespace

Status scatter_slots(const LoraAddressing& addressing, std::int32_t num_slots, std::int32_t* slots,
                     cudaStream_t stream) {
  const auto bytes = static_cast<std::size_t>(addressing.num_tokens) * sizeof(std::int32_t);
  if (Status status = to_status(cudaMemsetAsync(slots, 0xff, bytes, stream), "cudaMemsetAsync");
      !status.ok() || addressing.max_segments == 0) {
    return status;
  }
  return launch(&write_row_slots, grid_of(divide_up(addressing.num_tokens, 256)), 256, stream,
                ScatterParams{addressing.token_order, addressing.segment_offsets,
                              addressing.segment_slots, addressing.num_segments,
                              addressing.max_segments, addressing.num_tokens, num_slots, slots});
}

Status sort_by_slot(const Rows& rows, std::int64_t num_rows, std::int32_t* counts,
                    std::int32_t* order, std::int32_t* ends, cudaStream_t stream) {
  const std::int64_t tiles = divide_up(num_rows, kSortTile);
  if (tiles == 0 || rows.num_slots == 0) {
    const auto bytes = static_cast<std::size_t>(rows.num_slots) * sizeof(std::int32_t);
    return bytes == 0 ? Status()
                      : to_status(cudaMemsetAsync(ends, 0, bytes, stream), "cudaMemsetAsync");
  }
  const SortParams params{rows, num_rows, tiles, counts, order, ends};
  const auto bytes = static_cast<std::size_t>(tiles * rows.num_slots) * sizeof(std::int32_t);
  if (Status status = to_status(cudaMemsetAsync(counts, 0, bytes, stream), "cudaMemsetAsync");
      !status.ok()) {
    return status;
  }
  if (Status status = launch(&count_rows, grid_of(tiles), kWarp, stream, params); !status.ok())
    return status;
  if (Status status = launch(&scan_counts, grid_of(1), kScanThreads, stream, params); !status.ok())
    return status;
  return launch(&place_rows, grid_of(tiles), kWarp, stream, params);
}

Status make_segments(const std::int32_t* ends, std::int32_t num_slots,
                     const LoraAddressing& grouped, cudaStream_t stream) {
  const auto writable = [](const std::int32_t* p) { return const_cast<std::int32_t*>(p); };
  return launch(&write_segments, grid_of(1), kWarp, stream,
                SegmentParams{ends, num_slots, writable(grouped.segment_offsets),
                              writable(grouped.segment_slots), writable(grouped.num_segments)});
}

RANKFOLD_CUDA_MODULE(sort_rows)

}  // namespace cuda
RANKFOLD_NAMESPACE_END
