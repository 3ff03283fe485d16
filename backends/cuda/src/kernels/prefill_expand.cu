#include "elements.cuh"
#include "launch.hpp"
#include "prefill.hpp"
#include "prefill_launch.hpp"
#include "rows.cuh"
#include "wgmma.cuh"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

namespace {

constexpr int kWarpRows = 16;
constexpr int kWarpBytes = 8192;  // of y that a warp has in flight: 16 pieces of 16 bytes a lane
constexpr int kSlab = 16;         // ranks of one matrix instruction
constexpr int kSlabRowBytes = 32;

/// Columns of a block: 256 of 16 bits, 128 of 32.
template <class TY>
constexpr int kColumns = kWarpBytes / kWarpRows / static_cast<int>(sizeof(TY));

struct ExpandParams {
  PartialHidden h;
  int splits;
  int wide_h;  // pairs of h at multiples of 8 bytes
  Hidden h_sum;
  const AdapterEntry* entries;
  std::int64_t slot_stride;
  Grouping rows;
  int kind;
  const float* token_weights;
  void* y;
  std::int64_t y_stride;
  std::int64_t out[kMaxSlices];
  int num_slices;
  int max_rank;
  int chunks;  // of columns, all slices
  int wide_y;  // rows of y begin at multiples of 16 bytes
  int overwrites;
  int with_bias;
  int made_h;
};

/// Where the 16-byte half of a row of B stands in a slab. Rows are permuted so that a lane's sums
/// are eight columns in a row: of every 32 rows, row n is row `permuted(n)` of the slab.
__device__ __forceinline__ int permuted(int n) {
  return (n & ~31) + (n % 8 / 2) * 8 + (n / 8 % 4) * 2 + n % 2;
}
__device__ __forceinline__ std::uint32_t slab_offset(int row, int half) {
  return static_cast<std::uint32_t>(row * kSlabRowBytes + ((half ^ (row >> 2 & 1)) << 4));
}

/// Of 16 ranks and the lane's two rows: operands of two instructions, high and low parts.
struct Fragment {
  std::uint32_t high[4], low[4];
};

/// The lane's values of h, summed over the splits in order: of each of kCount slabs eight, rows g
/// and g + 8 at ranks 2t, 2t + 1, 2t + 8, 2t + 9. Past the rank it is anything, as nobody has
/// written there: mask_hidden().
template <int kCount>
__device__ __forceinline__ void load_hidden(const ExpandParams& p, const float* const (&h)[2],
                                            int first, int rank, int lane, float (&v)[kCount][8]) {
  const int column = first + lane % 4 * 2;
  if (p.wide_h) {
    // No branches: all loads are under way at once, of the first split until somebody uses the sum.
    int offsets[kCount * 2];
#pragma unroll
    for (int i = 0; i < kCount * 2; ++i) offsets[i] = column + i * 8 < rank ? column + i * 8 : 0;
#pragma unroll
    for (int i = 0; i < kCount * 4; ++i) {
      const float2 pair = *reinterpret_cast<const float2*>(h[i % 2] + offsets[i / 2]);
      v[i / 4][i % 4 * 2] = pair.x;
      v[i / 4][i % 4 * 2 + 1] = pair.y;
    }
#pragma unroll(kCount == 1 ? 2 : 1)
    for (int split = 1; split < p.splits; ++split) {
      float2 pairs[kCount * 4];
#pragma unroll
      for (int i = 0; i < kCount * 4; ++i) {
        pairs[i] =
            *reinterpret_cast<const float2*>(h[i % 2] + split * p.h.split_stride + offsets[i / 2]);
      }
#pragma unroll
      for (int i = 0; i < kCount * 4; ++i) {
        v[i / 4][i % 4 * 2] += pairs[i].x;
        v[i / 4][i % 4 * 2 + 1] += pairs[i].y;
      }
    }
  } else {
#pragma unroll
    for (int i = 0; i < kCount * 8; ++i) v[i / 8][i % 8] = 0.0f;
    for (int split = 0; split < p.splits; ++split) {
#pragma unroll
      for (int i = 0; i < kCount * 8; ++i) {
        const int c = column + i / 4 * 8 + i % 2;
        if (c < rank) v[i / 8][i % 8] += h[i / 2 % 2][split * p.h.split_stride + c];
      }
    }
  }
}
template <int kCount>
__device__ __forceinline__ void mask_hidden(int first, int rank, int lane, float (&v)[kCount][8]) {
#pragma unroll
  for (int i = 0; i < kCount * 8; ++i) {
    if (first + lane % 4 * 2 + i / 4 * 8 + i % 2 >= rank) v[i / 8][i % 8] = 0.0f;
  }
}

__device__ __forceinline__ float finite_magnitude(float v) {
  const float m = fabsf(v);
  return m <= 3.402823466e38f ? m : 0.0f;
}

/// Powers of two by which the two rows are multiplied so that f16 holds them, and back.
template <class T>
__device__ __forceinline__ void fit_rows(float most0, float most1, float (&fit)[2],
                                         float (&unfit)[2]) {
  if constexpr (std::is_same_v<T, __half>) {
    float most[2] = {most0, most1};
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      most[r] = fmaxf(most[r], __shfl_xor_sync(0xffffffffu, most[r], 1));
      most[r] = fmaxf(most[r], __shfl_xor_sync(0xffffffffu, most[r], 2));
      // The largest becomes 2^14 to 2^15.
      const int exponent = static_cast<int>(__float_as_uint(most[r]) >> 23);
      const int shift = most[r] > 0.0f ? min(14 + 127 - exponent, 126) : 0;
      fit[r] = __uint_as_float(static_cast<std::uint32_t>(127 + shift) << 23);
      unfit[r] = __uint_as_float(static_cast<std::uint32_t>(127 - shift) << 23);
    }
  } else {
    fit[0] = fit[1] = unfit[0] = unfit[1] = 1.0f;
  }
}

template <class T>
__device__ __forceinline__ Fragment make_fragment(const float (&v)[8], const float (&fit)[2]) {
  Fragment f;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float scale = std::is_same_v<T, __half> ? fit[i % 2] : 1.0f;
    split_pair<T>(v[2 * i] * scale, v[2 * i + 1] * scale, f.high[i], f.low[i]);
  }
  return f;
}

/// sums[j]: rows g and g + 8, columns 8t + 2j and the next, of a group of 32.
template <class T>
__device__ __forceinline__ void multiply_group(float (&sums)[4][4], const Fragment& f,
                                               std::uint32_t slab, int group, int lane) {
#pragma unroll
  for (int j = 0; j < 4; j += 2) {
    std::uint32_t b[4];
    const int row = group * 32 + j * 8 + lane / 16 * 8 + lane % 8;
    load_matrices(b, slab + slab_offset(row, lane / 8 % 2));
    multiply<T>(sums[j], f.high[0], f.high[1], f.high[2], f.high[3], b[0], b[1]);
    multiply<T>(sums[j + 1], f.high[0], f.high[1], f.high[2], f.high[3], b[2], b[3]);
    multiply<T>(sums[j], f.low[0], f.low[1], f.low[2], f.low[3], b[0], b[1]);
    multiply<T>(sums[j + 1], f.low[0], f.low[1], f.low[2], f.low[3], b[2], b[3]);
  }
}

/// The block's B: `columns` rows from first_column on, ranks [first, first + count) in slabs of
/// kRowsOfSlab rows.
template <class T, int kRowsOfSlab>
__device__ __forceinline__ void load_b(std::uint32_t to, const T* b, std::int64_t stride, bool wide,
                                       std::int64_t first_column, std::int64_t out, int first,
                                       int count) {
  const int pieces = (count + kSlab - 1) / kSlab * 2;
  const int shift = 32 - __clz(pieces - 1);  // pieces of a row take 2^shift threads in a row
  for (int i = static_cast<int>(threadIdx.x); i < kRowsOfSlab << shift;
       i += static_cast<int>(blockDim.x)) {
    const int piece = i & ((1 << shift) - 1), n = i >> shift;
    if (piece >= pieces) continue;
    const int rank = piece * 8;
    const int present = first_column + n < out ? min(max(count - rank, 0), 8) : 0;
    const T* const from = present > 0 ? b + (first_column + n) * stride + first + rank : b;
    const std::uint32_t at = to +
                             static_cast<std::uint32_t>(piece / 2 * kRowsOfSlab * kSlabRowBytes) +
                             slab_offset(permuted(n), piece % 2);
    if (wide) {
      copy_16(at, from, present * 2);
    } else {
      std::uint32_t v[4];
      gather_16(v, from, present);
      store_shared_16(at, v);
    }
  }
}

/// What a lane needs to finish eight columns of two rows.
template <class TY>
struct Finish {
  TY* y[2];  // at the lane's first column of the block
  bool has[2];
  float f[2];  // scaling * token_weight
  float unfit[2];
  bool with_bias;
  bool wide;
  bool overwrites;
  int left;            // columns of the slice from there on
  std::uint32_t bias;  // from there on, in shared memory
  std::uint32_t own;   // the lane's pieces of y in shared memory
};

template <class TY>
__device__ __forceinline__ std::uint32_t piece_of(const Finish<TY>& to, int group, int r, int i) {
  constexpr int kPieces = sizeof(TY) / 2;  // of eight columns
  return to.own + static_cast<std::uint32_t>(((group * 2 + r) * kPieces + i) * 512);
}
/// Elements at any address, `count` of up to eight, into the lane's pieces from `piece` on; and
/// back.
template <class TY>
__device__ __forceinline__ void fetch_elements(const TY* from, std::uint32_t piece, int count) {
#pragma unroll 1
  for (int i = 0; i < count; ++i) {
    if constexpr (sizeof(TY) == 4) {
      const std::uint32_t to = piece + static_cast<std::uint32_t>(i / 4 * 512 + i % 4 * 4);
      asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(from[i]) : "memory");
    } else {
      const unsigned short bits = reinterpret_cast<const unsigned short*>(from)[i];
      asm volatile("st.shared.u16 [%0], %1;" ::"r"(piece + static_cast<std::uint32_t>(i * 2)),
                   "h"(bits)
                   : "memory");
    }
  }
}
template <class TY>
__device__ __forceinline__ void put_elements(TY* to, std::uint32_t piece, int count) {
#pragma unroll 1
  for (int i = 0; i < count; ++i) {
    if constexpr (sizeof(TY) == 4) {
      const std::uint32_t from = piece + static_cast<std::uint32_t>(i / 4 * 512 + i % 4 * 4);
      asm volatile("ld.shared.f32 %0, [%1];" : "=f"(to[i]) : "r"(from) : "memory");
    } else {
      unsigned short bits;
      asm volatile("ld.shared.u16 %0, [%1];"
                   : "=h"(bits)
                   : "r"(piece + static_cast<std::uint32_t>(i * 2))
                   : "memory");
      reinterpret_cast<unsigned short*>(to)[i] = bits;
    }
  }
}

/// y of the group's 32 columns.
template <class TY>
__device__ __forceinline__ void finish_group(const Finish<TY>& to, const float (&sums)[4][4],
                                             int group) {
  constexpr int kPieces = sizeof(TY) / 2;
  const int n = group * 32;
  const int present = min(to.left - n, 8);
  const bool full = to.wide && present == 8;
  float bias[8] = {};
  if (to.with_bias) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint4 v = load_shared_16(to.bias + static_cast<std::uint32_t>((n + i * 4) * 4));
      bias[4 * i] = __uint_as_float(v.x);
      bias[4 * i + 1] = __uint_as_float(v.y);
      bias[4 * i + 2] = __uint_as_float(v.z);
      bias[4 * i + 3] = __uint_as_float(v.w);
    }
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float value[8];
    if (to.overwrites) {
#pragma unroll
      for (int i = 0; i < 8; ++i) value[i] = 0.0f;
    } else {
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        const uint4 bits = load_shared_16(piece_of(to, group, r, i));
        const std::uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
        for (int w = 0; w < 4; ++w) {
          if constexpr (kPieces == 2) {
            value[i * 4 + w] = __uint_as_float(words[w]);
          } else {
            const float2 pair = widen_pair<TY>(words[w]);
            value[2 * w] = pair.x;
            value[2 * w + 1] = pair.y;
          }
        }
      }
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float delta = to.f[r] * (sums[i / 2][r * 2 + i % 2] * to.unfit[r] + bias[i]);
      value[i] = to.overwrites ? delta : value[i] + delta;
    }
    if (!to.has[r]) continue;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      uint4 bits;
      if constexpr (kPieces == 2) {
        bits = make_uint4(__float_as_uint(value[4 * i]), __float_as_uint(value[4 * i + 1]),
                          __float_as_uint(value[4 * i + 2]), __float_as_uint(value[4 * i + 3]));
      } else {
        bits = make_uint4(narrow_pair<TY>(value[0], value[1]), narrow_pair<TY>(value[2], value[3]),
                          narrow_pair<TY>(value[4], value[5]), narrow_pair<TY>(value[6], value[7]));
      }
      if (full) {
        reinterpret_cast<uint4*>(to.y[r] + n)[i] = bits;
      } else {
        store_shared_16(piece_of(to, group, r, i), {bits.x, bits.y, bits.z, bits.w});
      }
    }
    if (!full) put_elements(to.y[r] + n, piece_of(to, group, r, 0), present);
  }
}

template <int kPending>
__device__ __forceinline__ void wait_step(int pending) {
  if constexpr (kPending > 0) {
    if (pending < kPending) return wait_step<kPending - 1>(pending);
  }
  wait_copies<kPending>();
}

template <class T, class TY, int kSlabs>
__global__ void __launch_bounds__(256, kSlabs == 1 ? 3 : 2)
    expand_tile(const __grid_constant__ ExpandParams p) {
  constexpr int kCols = kColumns<TY>;
  constexpr int kGroups = kCols / 32;
  constexpr int kSteps = 4;  // groups of copies of y
  constexpr int kStepGroups = kGroups / kSteps;
  constexpr int kPieces = sizeof(TY) / 2;
  extern __shared__ __align__(128) unsigned char dynamic[];
  const std::uint32_t shared_b = shared_address(dynamic);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int index = static_cast<int>(blockIdx.x) / p.chunks;
  int chunk = static_cast<int>(blockIdx.x) % p.chunks;
  std::int64_t y_column = 0;
  int slice = 0;
  for (; slice < p.num_slices - 1; ++slice) {
    const int of_slice = static_cast<int>((p.out[slice] + kCols - 1) / kCols);
    if (chunk < of_slice) break;
    chunk -= of_slice;
    y_column += p.out[slice];
  }
  RowBlock block;
  if (p.kind == Grouping::uniform) {
    block = blockDim.x == 128 ? find_row_block<Grouping::uniform, 64>(p.rows, index)
                              : find_row_block<Grouping::uniform, 128>(p.rows, index);
  } else {
    block = blockDim.x == 128 ? find_row_block<Grouping::segments, 64>(p.rows, index)
                              : find_row_block<Grouping::segments, 128>(p.rows, index);
  }
  if (block.slot < 0) {
    wait_for_previous();
    return;
  }
  const AdapterEntry& entry = p.entries[block.slot * p.slot_stride + slice];
  const T* const b = static_cast<const T*>(entry.b);
  const std::int64_t b_stride = entry.b_row_stride;
  const float scaling = entry.scaling;
  const bool bound = b != nullptr && (!p.made_h || entry.a != nullptr);
  const int rank = bound ? bounded_rank(entry, p.max_rank) : 0;
  const std::int64_t first_column = std::int64_t{chunk} * kCols;

  Finish<TY> to;
  std::int64_t rows[2];
  const std::int64_t out = p.out[slice];
  to.left = static_cast<int>(min(out - first_column, std::int64_t{kCols})) - lane % 4 * 8;
  to.wide = p.wide_y && y_column * sizeof(TY) % 16 == 0;
  to.overwrites = p.overwrites || rank == 0;
  const bool whole = to.wide && out - first_column >= kCols;  // the block's columns
  const float* const bias = p.with_bias ? entry.bias : nullptr;
  to.with_bias = bias != nullptr;
  const std::uint32_t shared_bias =
      shared_b +
      static_cast<std::uint32_t>(min(kSlabs, (p.max_rank + 15) / 16) * kCols * kSlabRowBytes);
  to.bias = shared_bias + static_cast<std::uint32_t>(lane % 4 * 32);
  to.own = shared_bias + static_cast<std::uint32_t>(kCols * 4 + warp * kWarpBytes + lane * 16);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int i = warp * kWarpRows + lane / 4 + r * 8;
    to.has[r] = i < block.count;
    const int at = min(i, block.count - 1);
    rows[r] = p.kind == Grouping::uniform ? row_at<Grouping::uniform>(p.rows, block, at)
                                          : row_at<Grouping::segments>(p.rows, block, at);
    to.y[r] = static_cast<TY*>(p.y) + rows[r] * p.y_stride + y_column + first_column + lane % 4 * 8;
    to.unfit[r] = 1.0f;
    to.f[r] = scaling;
    if (p.token_weights != nullptr) to.f[r] *= p.token_weights[rows[r]];
  }
  if (rank == 0) {
    wait_for_previous();
    if (!p.overwrites) return;
    const float zeros[4][4] = {};
    to.f[0] = to.f[1] = 0.0f;
    to.with_bias = false;
    for (int group = 0; group < kGroups; ++group) {
      finish_group(to, zeros, group);
    }
    return;
  }

  // Nothing below here depends on the kernel before but h: B and y are under way when it ends.
  const bool wide_b = reinterpret_cast<std::uintptr_t>(b) % 16 == 0 && b_stride % 8 == 0;
  const bool fits = rank <= kSlabs * kSlab;
  if (fits) load_b<T, kCols>(shared_b, b, b_stride, wide_b, first_column, out, 0, rank);
  if (to.with_bias) {
    for (int i = static_cast<int>(threadIdx.x); i < kCols; i += static_cast<int>(blockDim.x)) {
      const float value = first_column + i < out ? bias[first_column + i] : 0.0f;
      asm volatile("st.shared.f32 [%0], %1;" ::"r"(shared_bias + static_cast<std::uint32_t>(i * 4)),
                   "f"(value)
                   : "memory");
    }
  }
  commit_copies();
  if (whole && !p.overwrites) {
    // Rows past the count are the last row again: no branches here.
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
#pragma unroll
        for (int i = 0; i < kPieces; ++i) {
          copy_16(piece_of(to, group, r, i),
                  reinterpret_cast<const uint4*>(to.y[r] + group * 32) + i, 16);
        }
      }
      if (group % kStepGroups == kStepGroups - 1) commit_copies();
    }
  } else {
    if (!p.overwrites) {
#pragma unroll 1
      for (int group = 0; group < kGroups; ++group) {
        const int present = min(to.left - group * 32, 8);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const TY* const from = to.y[r] + group * 32;
          if (to.wide && present == 8) {
#pragma unroll
            for (int i = 0; i < kPieces; ++i) {
              copy_16(piece_of(to, group, r, i), reinterpret_cast<const uint4*>(from) + i, 16);
            }
          } else if (to.has[r]) {
            fetch_elements(from, piece_of(to, group, r, 0), present);
          }
        }
      }
    }
#pragma unroll
    for (int step = 0; step < kSteps; ++step) commit_copies();
  }

  const float* h[2];
#pragma unroll
  for (int r = 0; r < 2; ++r)
    h[r] = p.h.data + rows[r] * p.h.stride + static_cast<std::int64_t>(slice) * p.max_rank;
  wait_for_previous();

  if (p.h_sum.data != nullptr && chunk == 0) {
    for (int first = 0; first < rank; first += kSlab) {
      float v[1][8];
      load_hidden(p, h, first, rank, lane, v);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int r = i / 2 % 2, column = first + i / 4 * 8 + lane % 4 * 2 + i % 2;
        if (to.has[r] && column < rank) {
          p.h_sum.data[rows[r] * p.h_sum.stride + static_cast<std::int64_t>(slice) * p.max_rank +
                       column] = v[0][i];
        }
      }
    }
  }

  if (fits) {
    const int slabs = (rank + kSlab - 1) / kSlab;
    float v[kSlabs][8];
    float most[2] = {0.0f, 0.0f};
    load_hidden(p, h, 0, rank, lane, v);
    mask_hidden(0, rank, lane, v);
#pragma unroll
    for (int s = 0; s < kSlabs; ++s) {
#pragma unroll
      for (int i = 0; i < 8; ++i)
        most[i / 2 % 2] = fmaxf(most[i / 2 % 2], finite_magnitude(v[s][i]));
    }
    float fit[2];
    fit_rows<T>(most[0], most[1], fit, to.unfit);
    Fragment fragments[kSlabs];
#pragma unroll
    for (int s = 0; s < kSlabs; ++s) fragments[s] = make_fragment<T>(v[s], fit);
    wait_copies<kSteps>();
    __syncthreads();
    // Not unrolled: the registers are worth more than what the compiler would keep from step to
    // step.
#pragma unroll 1
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int i = 0; i < kStepGroups; ++i) {
        const int group = step * kStepGroups + i;
        float sums[4][4] = {};
#pragma unroll
        for (int s = 0; s < kSlabs; ++s) {
          if (s < slabs) {
            multiply_group<T>(sums, fragments[s], shared_b + s * kCols * kSlabRowBytes, group,
                              lane);
          }
        }
        if (i == 0) wait_step<kSteps - 1>(kSteps - 1 - step);
        finish_group(to, sums, group);
      }
    }
    return;
  }
  if constexpr (kSlabs > 1) {
    // More ranks than B of all columns would fit: 64 columns after another, their sums in registers
    // over the ranks.
    constexpr int kPart = 64;
    constexpr int kStageSlabs = kSlabs * kCols / kPart / 2;  // two stages of B
    constexpr int kStageBytes = kStageSlabs * kPart * kSlabRowBytes;
    const int stages = (rank + kStageSlabs * kSlab - 1) / (kStageSlabs * kSlab);
    const auto load_stage = [&](int stage, std::int64_t column) {
      const int from = stage * kStageSlabs * kSlab;
      load_b<T, kPart>(shared_b + static_cast<std::uint32_t>(stage % 2 * kStageBytes), b, b_stride,
                       wide_b, column, out, from, min(kStageSlabs * kSlab, rank - from));
      commit_copies();
    };
    for (int part = 0; part < kCols / kPart; ++part) {
      const std::int64_t column = first_column + part * kPart;
      if (column >= out) break;
      float sums[kPart / 32][4][4] = {};
      float v[1][8];
      load_stage(0, column);
      load_hidden(p, h, 0, rank, lane, v);
      for (int stage = 0; stage < stages; ++stage) {
        if (stage + 1 < stages) {
          load_stage(stage + 1, column);
          wait_copies<1>();
        } else {
          wait_copies<0>();
        }
        __syncthreads();
        const std::uint32_t stage_b =
            shared_b + static_cast<std::uint32_t>(stage % 2 * kStageBytes);
#pragma unroll 1
        for (int s = 0; s < kStageSlabs; ++s) {
          const int first = (stage * kStageSlabs + s) * kSlab;
          if (first >= rank) break;
          mask_hidden(first, rank, lane, v);
          float most[2] = {0.0f, 0.0f}, fit[2], unfit[2];
          if constexpr (std::is_same_v<T, __half>) {
#pragma unroll
            for (int i = 0; i < 8; ++i)
              most[i / 2 % 2] = fmaxf(most[i / 2 % 2], finite_magnitude(v[0][i]));
          }
          fit_rows<T>(most[0], most[1], fit, unfit);
          const Fragment fragment = make_fragment<T>(v[0], fit);
          if (first + kSlab < rank) load_hidden(p, h, first + kSlab, rank, lane, v);
#pragma unroll
          for (int group = 0; group < kPart / 32; ++group) {
            const std::uint32_t slab =
                stage_b + static_cast<std::uint32_t>(s * kPart * kSlabRowBytes);
            if constexpr (std::is_same_v<T, __half>) {
              float of_slab[4][4] = {};
              multiply_group<T>(of_slab, fragment, slab, group, lane);
#pragma unroll
              for (int i = 0; i < 16; ++i)
                sums[group][i / 4][i % 4] += of_slab[i / 4][i % 4] * unfit[i / 2 % 2];
            } else {
              multiply_group<T>(sums[group], fragment, slab, group, lane);
            }
          }
        }
        __syncthreads();
      }
#pragma unroll
      for (int group = 0; group < kPart / 32; ++group)
        finish_group(to, sums[group], part * (kPart / 32) + group);
    }
  }
}

template <class T, class TY, int kSlabs>
Status launch_expand(const ExpandParams& params, std::int64_t row_blocks, int rows, bool overlaps,
                     cudaStream_t stream) {
  static std::atomic<std::uint64_t> prepared{0};
  const int slabs =
      static_cast<int>(std::min<std::int64_t>(kSlabs, divide_up(params.max_rank, kSlab)));
  const int warps = rows / kWarpRows;
  return launch_shaped(
      &expand_tile<T, TY, kSlabs>,
      {.blocks = row_blocks * params.chunks,
       .threads = warps * 32,
       .shared_bytes = kColumns<TY> * (slabs * kSlabRowBytes + 4) + warps * kWarpBytes,
       .overlaps = overlaps},
      &prepared, stream, params);
}

}  // namespace

Status prefill_expand(const PartialHidden& h, const AdapterTableView& table, const Grouping& rows,
                      Grouping::Kind kind, std::int64_t active_rows, const float* token_weights,
                      const TensorView& y, const PrefillExpandOptions& options,
                      const PrefillPlan& plan, const PrefillDevice& device, cudaStream_t stream) {
  const TableShape& shape = table.shape;
  ExpandParams params{};
  params.h = h;
  params.splits = plan.partials();
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
  std::int64_t chunks = 0;
  for (int s = 0; s < shape.num_slices; ++s) {
    params.out[s] = shape.out[s];
    chunks += divide_up(shape.out[s], columns);
  }
  if (active_rows == 0 || chunks == 0) return {};
  const std::int64_t row_blocks =
      row_block_bound(kind, active_rows, rows.max_segments, plan.expand_rows);
  params.chunks = static_cast<int>(chunks);
  params.wide_y =
      reinterpret_cast<std::uintptr_t>(y.data) % 16 == 0 && y.strides[0] * width % 16 == 0;
  params.overwrites = options.mode == YMode::overwrite;
  params.with_bias = options.with_bias;
  params.made_h = options.made_h;
  const bool overlaps = options.overlaps_shrink && device.is_hopper;
  const bool few = shape.max_rank <= kSlab;
  const auto run = [&]<class T, class TY>(const T*, const TY*) {
    return few ? launch_expand<T, TY, 1>(params, row_blocks, plan.expand_rows, overlaps, stream)
               : launch_expand<T, TY, 4>(params, row_blocks, plan.expand_rows, overlaps, stream);
  };
  const float* const f32 = nullptr;
  const __half* const f16 = nullptr;
  const __nv_bfloat16* const bf16 = nullptr;
  if (shape.b_dtype == DType::f16) return y.dtype == DType::f32 ? run(f16, f32) : run(f16, f16);
  return y.dtype == DType::f32 ? run(bf16, f32) : run(bf16, bf16);
}

}  // namespace cuda
RANKFOLD_NAMESPACE_END
