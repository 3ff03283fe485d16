// The fused experts' kernel: one block computes rows of one (slot, expert). h stays in shared
// memory, nothing but y is written.
//
// A row's bits depend on how many warps split k and on nothing else: not on the rows beside it, nor
// on how the block found them.
#pragma once

#include "experts_expand.cuh"
#include "experts_rows.cuh"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {
namespace experts {

template <class T, int kTiles>
__device__ __forceinline__ void rows_of_a(const T* (&a)[kTiles][2], const Block& block,
                                          int first_tile) {
  const int g = static_cast<int>(threadIdx.x) % 32 / 4;
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
    const int tile = first_tile + i;
    const SliceOfBlock& slice = block.slices[min(tile / block.rank_tiles, block.num_slices - 1)];
    const int rank = tile < block.num_slices * block.rank_tiles ? slice.rank : 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int j = tile % block.rank_tiles * 16 + g + half * 8;
      a[i][half] = j < rank ? static_cast<const T*>(slice.a) + j * slice.a_stride : nullptr;
    }
  }
}

template <int kTokenTiles, int kTiles>
__device__ __forceinline__ void store_partial(const float (&acc)[kTokenTiles][kTiles][4],
                                              float* partial) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
#pragma unroll
    for (int n = 0; n < kTokenTiles; ++n) {
      float* const to =
          partial +
          ((warp * kTiles + i) * kTokenTiles * 8 + n * 8 + 2 * (lane % 4)) * kHiddenStride +
          lane / 4;
      to[0] = acc[n][i][0];
      to[kHiddenStride] = acc[n][i][1];
      to[8] = acc[n][i][2];
      to[kHiddenStride + 8] = acc[n][i][3];
    }
  }
}

/// The sum over the warps in ascending order, four ranks a thread, as parts; ranks past the last
/// are zero whatever x holds.
template <class T, int kRows, int kWarps, int kTiles, bool kOneTile>
__device__ __forceinline__ void sum_partial(const Block& block, int first_tile) {
  constexpr bool kScales = std::is_same_v<T, __half>;
  for (int i = static_cast<int>(threadIdx.x); i < kTiles * kRows * 4; i += kWarps * 32) {
    const int of_pass = i / (kRows * 4), token = i / 4 % kRows, quarter = i % 4;
    const int tile = first_tile + of_pass;
    if (tile >= block.num_slices * block.rank_tiles) break;
    const int slice = kOneTile ? tile : tile / block.rank_tiles;
    const int of_slice = kOneTile ? 0 : tile % block.rank_tiles;
    float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float4 v = *reinterpret_cast<const float4*>(
          block.partial + ((w * kTiles + of_pass) * kRows + token) * kHiddenStride + quarter * 4);
      sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
    }
    const int left = block.slices[slice].rank - of_slice * 16 - quarter * 4;
    if (left < 1) sum.x = 0.0f;
    if (left < 2) sum.y = 0.0f;
    if (left < 3) sum.z = 0.0f;
    if (left < 4) sum.w = 0.0f;
    float f = 1.0f;
    if constexpr (kScales && kOneTile) {
      float largest = fmaxf(fmaxf(fabsf(sum.x), fabsf(sum.y)), fmaxf(fabsf(sum.z), fabsf(sum.w)));
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
      const int scale = scale_for_f16(largest);
      const float up = power_of_two(scale);
      f = power_of_two(-scale);
      sum.x *= up, sum.y *= up, sum.z *= up, sum.w *= up;
    }
    const int at = (tile * kRows + token) * 4 + quarter;
    if constexpr (kScales && !kOneTile) {
      block.hidden[at] = make_uint4(__float_as_uint(sum.x), __float_as_uint(sum.y),
                                    __float_as_uint(sum.z), __float_as_uint(sum.w));
    } else {
      HiddenParts<T> parts;
      split_hidden<T>(sum, parts.high_low, parts.rest);
      block.hidden[at] = parts.high_low;
      if constexpr (!kScales) block.rest[at] = parts.rest;
    }
    if (of_slice == 0 && quarter == 0) {
      block.strengths[slice * kRows + token] =
          block.slices[slice].scaling * block.row_weights[token] * block.token_weights[token] * f;
    }
  }
}

/// f16 with several rank tiles: the scale goes by all of a slice.
template <int kRows, int kWarps>
__device__ inline void scale_hidden(const Block& block) {
  for (int i = static_cast<int>(threadIdx.x); i < block.num_slices * kRows; i += kWarps * 32) {
    const int slice = i / kRows, token = i % kRows;
    float largest = 0.0f;
    for (int tile = 0; tile < (block.slices[slice].rank + 15) / 16; ++tile) {
      for (int quarter = 0; quarter < 4; ++quarter) {
        const uint4 v =
            block.hidden[((slice * block.rank_tiles + tile) * kRows + token) * 4 + quarter];
        largest =
            fmaxf(largest, fmaxf(fmaxf(fabsf(__uint_as_float(v.x)), fabsf(__uint_as_float(v.y))),
                                 fmaxf(fabsf(__uint_as_float(v.z)), fabsf(__uint_as_float(v.w)))));
      }
    }
    const int scale = scale_for_f16(largest);
    block.partial[i] = power_of_two(scale);
    block.strengths[i] *= power_of_two(-scale);
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < block.num_slices * block.rank_tiles * kRows * 4;
       i += kWarps * 32) {
    const float up = block.partial[i / 4 / kRows / block.rank_tiles * kRows + i / 4 % kRows];
    const uint4 v = block.hidden[i];
    uint2 unused;
    uint4 packed;
    split_hidden<__half>(make_float4(__uint_as_float(v.x) * up, __uint_as_float(v.y) * up,
                                     __uint_as_float(v.z) * up, __uint_as_float(v.w) * up),
                         packed, unused);
    block.hidden[i] = packed;
  }
  __syncthreads();
}

/// Shapes of a block. kAhead: token tiles of 64 columns whose y (and B) are asked for before their
/// turn.
template <class TY, int kTokenTiles, int kWarps, int kTiles, int kStages, int kAhead>
struct Shape {
  static constexpr int kRows = kTokenTiles * 8;
  static constexpr int kPartial = 4 * kWarps * kTiles * kRows * kHiddenStride;  // bytes
  static constexpr int kYUnits = static_cast<int>(sizeof(TY)) * 32;  // of a tile, in 16 bytes
  static constexpr int kBSlots = kAhead;  // each tile may be another item's
  // Of a warp, in 16 bytes.
  static constexpr int kRingUnits = kStages * (kTiles * 2 + kTokenTiles) * 32;
  static constexpr int kFifoUnits = kBSlots * 128 + kAhead * kYUnits;
  // Sums of many rows go where the rings were; those of few have their own place, and nobody waits
  // to store them.
  static constexpr bool kShares = kTokenTiles > 1;
  static constexpr int kRingStep = kShares || kRingUnits > kFifoUnits ? kRingUnits : kFifoUnits;
  static constexpr int kFifoStep = kShares ? kFifoUnits : kRingStep;
  // In bytes.
  static constexpr int kPartialAt = kShares ? 0 : kWarps * kRingStep * 16;
  static constexpr int kFifoAt = kShares ? kPartial : 0;
  static constexpr int kFifoEnd = kFifoAt + kWarps * kFifoStep * 16;
  static constexpr int kRingEnd = kWarps * kRingStep * 16;
  static constexpr int kBytes =
      kShares ? (kRingEnd > kFifoEnd ? kRingEnd : kFifoEnd) : kPartialAt + kPartial;

  /// Dynamic shared memory.
  static constexpr std::size_t bytes(int slices_per_block, int rank_tiles) {
    return kBytes + ((sizeof(uint4) + sizeof(uint2)) * 4 * rank_tiles + sizeof(float)) * kRows *
                        static_cast<std::size_t>(slices_per_block);
  }
};

/// Shrink and expand of the rows that were found. The weights are the thread's row's. Where loads
/// are wide, the first of A are under way.
template <class T, class TY, int kTokenTiles, int kWarps, int kTiles, int kStages, int kAhead,
          bool kOneTile, bool kWide>
__device__ __forceinline__ void compute(const Params& p, const Block& block,
                                        RowsOfBlock<kTokenTiles * 8>& s,
                                        Ring<T, kTokenTiles, kWarps, kTiles, kStages>& ring,
                                        uint4* dynamic, int k, int length, float row_weight,
                                        float token_weight) {
  using Sizes = Shape<TY, kTokenTiles, kWarps, kTiles, kStages, kAhead>;
  constexpr int kRows = kTokenTiles * 8;
  const int tid = static_cast<int>(threadIdx.x), warp = tid / 32;
  const int num_tiles = block.num_slices * block.rank_tiles;
  Expand<T, TY, kTokenTiles, kWarps, kAhead, Sizes::kBSlots, kOneTile, kWide> expand(
      block, dynamic + Sizes::kFifoAt / 16 + warp * Sizes::kFifoStep, s.y, p.overwrites != 0);
  for (int first_tile = 0; first_tile < num_tiles; first_tile += kTiles) {
    if (first_tile > 0 || !kWide) {
      const T* a[kTiles][2];
      rows_of_a<T, kTiles>(a, block, first_tile);
      ring.template begin<kWide>(a, k, length);
    }
    float acc[kTokenTiles][kTiles][4] = {};
    ring.template run<kWide>(acc, shared_address(s.x), (block.count + 7) / 8, k);
    if (first_tile == 0 && tid < kRows) {
      s.row_weights[tid] = row_weight;
      s.token_weights[tid] = token_weight;
    }
    const bool last = first_tile + kTiles >= num_tiles;
    if (Sizes::kShares) {
      __syncthreads();
    } else if (last) {
      expand.begin();  // what the expand reads is under way before anybody waits for h
    }
    store_partial<kTokenTiles, kTiles>(acc, block.partial);
    __syncthreads();
    if (Sizes::kShares && last) expand.begin();
    sum_partial<T, kRows, kWarps, kTiles, kOneTile>(block, first_tile);
    __syncthreads();
  }
  if constexpr (std::is_same_v<T, __half> && !kOneTile) scale_hidden<kRows, kWarps>(block);
  expand.run();
}

template <class T, class TY, int kTokenTiles, int kWarps, int kTiles, int kStages, int kAhead,
          bool kOneTile, int kBlocks>
__global__ void __launch_bounds__(kWarps * 32, kBlocks) apply(const __grid_constant__ Params p) {
  constexpr int kThreads = kWarps * 32, kRows = kTokenTiles * 8;
  using Sizes = Shape<TY, kTokenTiles, kWarps, kTiles, kStages, kAhead>;
  // Behind what is static it would begin at an odd multiple of 16 bytes, and copies would ask for
  // every sector of 32 twice.
  extern __shared__ __align__(128) uint4 dynamic[];
  __shared__ RowsOfBlock<kRows> s;
  __shared__ SliceOfBlock slices[kMaxSlices];
  const int tid = static_cast<int>(threadIdx.x), warp = tid / 32;
  wait_for_previous();
  release_next();
  Block block;
  block.slices = slices;
  block.first_slice = static_cast<int>(blockIdx.z) * p.slices_per_block;
  block.num_slices = min(p.slices_per_block, p.num_slices - block.first_slice);
  block.rank_tiles = kOneTile ? 1 : (p.max_rank + 15) / 16;
  const int num_tiles = block.num_slices * block.rank_tiles;
  block.partial = reinterpret_cast<float*>(dynamic + Sizes::kPartialAt / 16);
  block.hidden = dynamic + Sizes::kBytes / 16;
  block.rest = reinterpret_cast<uint2*>(block.hidden + num_tiles * kRows * 4);
  block.strengths = reinterpret_cast<float*>(block.rest + num_tiles * kRows * 4);

  // Which (expert, slot) is the block's, and among which rows of the window are its own?
  const int own_row = static_cast<int>(blockIdx.x);
  constexpr int kLook = kTokenTiles <= 2 ? 2048 / kThreads : 4;
  Look<kThreads, kLook> look;
  int low = 0, high = p.num_rows;
  int2 key = make_int2(0, 0);
  if (p.expert_ids != nullptr && p.finder != kPlain) {
    look.ask(p, 0, min(high, kSegment), 0);
    clear_marks<kThreads>(s);
  }
  if (p.finder == kByKey) {
    key.x = static_cast<int>(blockIdx.x) / p.num_slots;
    key.y = static_cast<int>(blockIdx.x) % p.num_slots;
  } else {
    key = key_of_row<kThreads>(p, s, own_row);
    if (key.x < 0) return;
  }
  if (p.expert_ids == nullptr) {
    const std::int64_t begin = p.expert_offsets[key.x] - p.first_row,
                       end = p.expert_offsets[key.x + 1] - p.first_row;
    low = static_cast<int>(min(max(begin, std::int64_t{0}), static_cast<std::int64_t>(p.num_rows)));
    high = static_cast<int>(min(max(end, std::int64_t{0}), static_cast<std::int64_t>(p.num_rows)));
    if (low >= high) return;
    look.ask(p, low, min(high - low, kSegment), 0);
  }
  bool wide = true;
  if (tid < block.num_slices) {
    const int slice = block.first_slice + tid;
    slices[tid] = read_slice(
        p.entries[key.y * p.slot_stride + static_cast<std::int64_t>(key.x) * p.num_slices + slice],
        p, slice);
    wide = slices[tid].is_wide;
  }
  wide = __syncthreads_and(wide) != 0 && p.x_is_wide;

  const int k_begin = min(warp * 32, p.in), length = p.in - k_begin;
  Ring<T, kTokenTiles, kWarps, kTiles, kStages> ring(dynamic + warp * Sizes::kRingStep);
  if (wide) {
    // Weights are under way while the rows are looked for.
    const T* a[kTiles][2];
    rows_of_a<T, kTiles>(a, block, 0);
    ring.template begin<true>(a, k_begin, length);
  }
  int marked_segment = low;
  if (p.finder != kPlain) {
    const int n = min(high - low, kSegment);
    look.mark(p, s, low, n, 0, key.x, key.y);
    for (int base = kThreads * kLook; base < n; base += kThreads * kLook) {
      look.ask(p, low, n, base);
      look.mark(p, s, low, n, base, key.x, key.y);
    }
  }
  for (int chunk = static_cast<int>(blockIdx.y);; chunk += static_cast<int>(gridDim.y)) {
    int wanted = chunk * kRows;
    if (p.finder == kPlain) {
      if (tid == 0) {
        s.rows[0] = own_row;
        s.count = 1;
      }
      __syncthreads();
    } else {
      int before = 0;
      for (int begin = low; begin < high; begin += kSegment) {
        const int n = min(high - begin, kSegment);
        if (begin != marked_segment) {
          clear_marks<kThreads>(s);
          __syncthreads();
          Look<kThreads, 4> again;
          for (int base = 0; base < n; base += kThreads * 4) {
            again.ask(p, begin, n, base);
            again.mark(p, s, begin, n, base, key.x, key.y);
          }
          marked_segment = begin;
        }
        __syncthreads();
        if (warp == 0) {
          // Of a pair's rows every kRows-th leads a block; only now is it known whether this one
          // does.
          if (p.finder == kByRow) wanted = marked_before(s, own_row - low);
          const bool leads = p.finder != kByRow || wanted % kRows == 0;
          const int marked = take_rows(s, begin, n, before, wanted);
          if (tid == 0) {
            s.count = leads ? before + marked : 0;
            s.first_wanted = wanted;
          }
        }
        __syncthreads();
        before = s.count;
        wanted = s.first_wanted;
        if (before >= wanted + kRows) break;
      }
    }
    block.count = p.finder == kPlain ? 1 : min(s.count - wanted, kRows);
    if (block.count <= 0) break;
    float row_weight = 1.0f, token_weight = 1.0f;
    if (tid < kRows) {
      const int row = s.rows[min(tid, block.count - 1)];
      const std::int64_t at = p.first_row + row;
      std::int64_t token = at;
      if (p.expert_ids != nullptr) {
        token = token_of_choice(p, row);
      } else if (p.row_tokens != nullptr) {
        token = p.row_tokens[at];
      }
      // Rows past the last are the last again: nothing of them is stored.
      s.x[tid] = static_cast<const T*>(p.x) + (p.own_x ? at : token) * p.x_stride;
      s.y[tid] = static_cast<TY*>(p.y) + at * p.y_stride;
      row_weight = load_float_if(p.row_weights + at, p.row_weights != nullptr);
      token_weight = load_float_if(p.token_weights + token, p.token_weights != nullptr);
    }
    __syncthreads();
    block.row_weights = s.row_weights;
    block.token_weights = s.token_weights;
    if (wide) {
      compute<T, TY, kTokenTiles, kWarps, kTiles, kStages, kAhead, kOneTile, true>(
          p, block, s, ring, dynamic, k_begin, length, row_weight, token_weight);
    } else {
      compute<T, TY, kTokenTiles, kWarps, kTiles, kStages, kAhead, kOneTile, false>(
          p, block, s, ring, dynamic, k_begin, length, row_weight, token_weight);
    }
    if (p.finder != kByKey || block.count < kRows) break;
    wait_copies<0>();
    __syncthreads();
    if (wide) {
      const T* a[kTiles][2];
      rows_of_a<T, kTiles>(a, block, 0);
      ring.template begin<true>(a, k_begin, length);
    }
  }
  wait_copies<0>();
}

}  // namespace experts
}  // namespace cuda
RANKFOLD_NAMESPACE_END
