#include "elements.cuh"
#include "launch.hpp"
#include "prefill.hpp"
#include "prefill_launch.hpp"
#include "rows.cuh"
#include "wgmma.cuh"
#include "modules.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

namespace {

constexpr int kWarpRows = 16;
constexpr int kWarpBytes =
    2048;  // of y of a warp in a stage: 16 rows of 128 bytes, four pieces of 16 a lane
constexpr int kSlab = 16;  // ranks of one matrix instruction
constexpr int kSlabRowBytes = 32;
constexpr int kYStages = 6;              // steps of y under way
constexpr int kAnyStages = 4;            // of the path for all that is not aligned
constexpr unsigned kRowBlocksY = 32768;  // of the grid's y; more go into its z

/// Few ranks: blocks of 64 rows, four on a multiprocessor. Many: of 128, as B is read once a block.
template <int kSlabs>
constexpr int kWarps = kSlabs == 1 ? 4 : 8;

/// Columns of a step: 64 of 16 bits, 32 of 32.
template <class TY>
constexpr int kColumns = kWarpBytes / kWarpRows / static_cast<int>(sizeof(TY));

struct ExpandParams {
  PartialHidden h;
  int partials;
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
  int first_part[kMaxSlices];  // of a slice
  int part_count[kMaxSlices];
  int part_steps[kMaxSlices];  // of every part of a slice
  int more_steps[kMaxSlices];  // as many parts of a slice have one more
  int num_slices;
  int max_rank;
  int parts;
  int interleaved;  // part i has steps i, i + part_count, ...; else steps in a row
  int slabs;        // of B in a stage
  int wide_y;       // rows of y begin at multiples of 16 bytes
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

/// Of 16 ranks and the lane's two rows: parts that h is the sum of, so that nothing of a float32 is
/// lost where products cancel: three of bf16 or, as rows are made to fit, two of f16.
template <class T>
struct Fragment {
  static constexpr int kParts = std::is_same_v<T, __half> ? 2 : 3;
  std::uint32_t part[kParts][4];
};

/// The lane's values of h, summed over the splits in order: of each of kCount slabs eight, rows g
/// and g + 8 at ranks 2t, 2t + 1, 2t + 8, 2t + 9. Past the rank it is anything, as nobody has
/// written there: mask_hidden().
template <int kCount>
__device__ __forceinline__ void load_wide_hidden(const ExpandParams& p, const float* const (&h)[2],
                                                 int first, int rank, int lane,
                                                 float (&v)[kCount][8]) {
  // No branches: all loads are under way at once, of the first split until somebody uses the sum.
  const int column = first + lane % 4 * 2;
  const float2* from[kCount * 4];
#pragma unroll
  for (int i = 0; i < kCount * 4; ++i) {
    const int c = column + i / 2 * 8;
    from[i] = reinterpret_cast<const float2*>(h[i % 2] + (c < rank ? c : 0));
    const float2 pair = *from[i];
    v[i / 4][i % 4 * 2] = pair.x;
    v[i / 4][i % 4 * 2 + 1] = pair.y;
  }
#pragma unroll(kCount == 1 ? 3 : 1)
  for (int split = 1; split < p.partials; ++split) {
    float2 pairs[kCount * 4];
#pragma unroll
    for (int i = 0; i < kCount * 4; ++i) pairs[i] = from[i][split * (p.h.split_stride / 2)];
#pragma unroll
    for (int i = 0; i < kCount * 4; ++i) {
      v[i / 4][i % 4 * 2] += pairs[i].x;
      v[i / 4][i % 4 * 2 + 1] += pairs[i].y;
    }
  }
}
template <int kCount>
__device__ __forceinline__ void load_hidden(const ExpandParams& p, const float* const (&h)[2],
                                            int first, int rank, int lane, float (&v)[kCount][8]) {
  if (p.wide_h) return load_wide_hidden(p, h, first, rank, lane, v);
  const int column = first + lane % 4 * 2;
#pragma unroll
  for (int i = 0; i < kCount * 8; ++i) v[i / 8][i % 8] = 0.0f;
#pragma unroll 1
  for (int split = 0; split < p.partials; ++split) {
#pragma unroll
    for (int i = 0; i < kCount * 8; ++i) {
      const int c = column + i / 4 * 8 + i % 2;
      if (c < rank) v[i / 8][i % 8] += h[i / 2 % 2][split * p.h.split_stride + c];
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
__device__ __forceinline__ Fragment<T> make_fragment(const float (&v)[8], const float (&fit)[2]) {
  Fragment<T> f;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float scale = std::is_same_v<T, __half> ? fit[i % 2] : 1.0f;
    std::uint32_t parts[Fragment<T>::kParts];
    split_pair<T>(v[2 * i] * scale, v[2 * i + 1] * scale, parts);
#pragma unroll
    for (int j = 0; j < Fragment<T>::kParts; ++j) f.part[j][i] = parts[j];
  }
  return f;
}

/// sums[i][j]: rows g and g + 8, columns 8t + 2j and the next, of group i of 32 columns.
template <class T, int kGroups>
__device__ __forceinline__ void multiply_groups(float (&sums)[kGroups][4][4], const Fragment<T>& f,
                                                std::uint32_t slab, int lane) {
  std::uint32_t b[kGroups * 2][4];
  const std::uint32_t at = slab + slab_offset(lane / 16 * 8 + lane % 8, lane / 8 % 2);
#pragma unroll
  for (int i = 0; i < kGroups * 2; ++i)
    load_matrices(b[i], at + static_cast<std::uint32_t>(i * 16 * kSlabRowBytes));
  // The smallest parts of all first: no instruction waits for the one before.
#pragma unroll
  for (int part = Fragment<T>::kParts - 1; part >= 0; --part) {
#pragma unroll
    for (int i = 0; i < kGroups * 4; ++i) {
      multiply<T>(sums[i / 4][i % 4], f.part[part][0], f.part[part][1], f.part[part][2],
                  f.part[part][3], b[i / 2][i % 2 * 2], b[i / 2][i % 2 * 2 + 1]);
    }
  }
}

/// kRows rows of B from `column` on, ranks [first, first + count), in slabs.
template <class T, int kRows>
__device__ __forceinline__ void load_b(std::uint32_t to, const T* b, std::int64_t stride, bool wide,
                                       std::int64_t column, std::int64_t out, int first,
                                       int count) {
  const int pieces = (count + kSlab - 1) / kSlab * 2;
  const int shift = 32 - __clz(pieces - 1);  // pieces of a row take 2^shift threads in a row
  for (int i = static_cast<int>(threadIdx.x); i < kRows << shift;
       i += static_cast<int>(blockDim.x)) {
    const int piece = i & ((1 << shift) - 1), n = i >> shift;
    if (piece >= pieces) continue;
    const int rank = piece * 8;
    const int present = column + n < out ? min(max(count - rank, 0), 8) : 0;
    const T* const from = present > 0 ? b + (column + n) * stride + first + rank : b;
    const std::uint32_t at = to + static_cast<std::uint32_t>(piece / 2 * kRows * kSlabRowBytes) +
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
  TY* y[2];  // at the lane's first column of the step
  bool has[2];
  float f[2];      // scaling * token_weight
  float f_sum[2];  // the same for a sum that was multiplied to fit
  bool with_bias;
  bool wide;
  bool overwrites;
};

/// Operands of all slabs; of f16 the rows are made to fit.
template <class T, int kSlabs, class TY>
__device__ __forceinline__ void make_fragments(float (&v)[kSlabs][8], int rank, int lane,
                                               Finish<TY>& to, Fragment<T> (&fragments)[kSlabs]) {
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

/// The lane's pieces of y in a stage, 512 bytes apart.
template <class TY>
__device__ constexpr int piece_index(int group, int r, int i) {
  return (group * 2 + r) * static_cast<int>(sizeof(TY) / 2) + i;
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

/// y of the lane's two rows in a group of 32 columns. kPlain: accumulating without a bias, and all
/// columns are there, at multiples of 16 bytes; else `left` columns are there from the lane's first
/// on.
template <class TY, bool kPlain>
__device__ __forceinline__ void finish_group(const Finish<TY>& to, const float (&sums)[4][4],
                                             int group, int left, std::uint32_t own,
                                             std::uint32_t bias_at) {
  constexpr int kPieces = sizeof(TY) / 2;
  const bool full = kPlain || (to.wide && left >= 8);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float value[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) value[i] = 0.0f;
    if (kPlain || !to.overwrites) {
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        const uint4 bits =
            load_shared_16(own + static_cast<std::uint32_t>(piece_index<TY>(group, r, i) * 512));
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
    if (!kPlain && to.with_bias) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint4 v = load_shared_16(bias_at + static_cast<std::uint32_t>(group * 128 + i * 16));
        const float bias[4] = {__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z),
                               __uint_as_float(v.w)};
#pragma unroll
        for (int w = 0; w < 4; ++w) {
          const int c = i * 4 + w;
          value[c] += fmaf(to.f_sum[r], sums[c / 2][r * 2 + c % 2], to.f[r] * bias[w]);
        }
      }
    } else {
#pragma unroll
      for (int c = 0; c < 8; ++c)
        value[c] = fmaf(to.f_sum[r], sums[c / 2][r * 2 + c % 2], value[c]);
    }
    uint4 bits[kPieces];
    if constexpr (kPieces == 2) {
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        bits[i] = make_uint4(__float_as_uint(value[4 * i]), __float_as_uint(value[4 * i + 1]),
                             __float_as_uint(value[4 * i + 2]), __float_as_uint(value[4 * i + 3]));
      }
    } else {
      bits[0] =
          make_uint4(narrow_pair<TY>(value[0], value[1]), narrow_pair<TY>(value[2], value[3]),
                     narrow_pair<TY>(value[4], value[5]), narrow_pair<TY>(value[6], value[7]));
    }
    if (!to.has[r]) continue;
    if (full) {
#pragma unroll
      for (int i = 0; i < kPieces; ++i) reinterpret_cast<uint4*>(to.y[r] + group * 32)[i] = bits[i];
    } else {
      const std::uint32_t piece =
          own + static_cast<std::uint32_t>(piece_index<TY>(group, r, 0) * 512);
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        store_shared_16(piece + static_cast<std::uint32_t>(i * 512),
                        {bits[i].x, bits[i].y, bits[i].z, bits[i].w});
      }
      put_elements(to.y[r] + group * 32, piece, min(left, 8));
    }
  }
}

/// y of a step into the lane's pieces; `ahead` columns further than to.y.
template <class TY>
__device__ __forceinline__ void load_y(const Finish<TY>& to, int ahead, bool whole, int left,
                                       std::uint32_t own) {
  constexpr int kGroups = kColumns<TY> / 32;
  constexpr int kPieces = sizeof(TY) / 2;
  if (whole) {
    // Rows past the count are the last row again: no branches here.
#pragma unroll
    for (int i = 0; i < kGroups * 2 * kPieces; ++i) {
      const TY* const from = to.y[i / kPieces % 2] + ahead + i / kPieces / 2 * 32;
      copy_16(own + static_cast<std::uint32_t>(i * 512),
              reinterpret_cast<const uint4*>(from) + i % kPieces, 16);
    }
    return;
  }
#pragma unroll 1
  for (int group = 0; group < kGroups; ++group) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const TY* const from = to.y[r] + ahead + group * 32;
      const std::uint32_t piece =
          own + static_cast<std::uint32_t>(piece_index<TY>(group, r, 0) * 512);
      const int present = min(left - group * 32, 8);
      if (to.wide && present == 8) {
#pragma unroll
        for (int i = 0; i < kPieces; ++i) {
          copy_16(piece + static_cast<std::uint32_t>(i * 512),
                  reinterpret_cast<const uint4*>(from) + i, 16);
        }
      } else if (to.has[r]) {
        fetch_elements(from, piece, present);
      }
    }
  }
}

/// What a block has to do: steps of columns, `stride` columns from one to the next.
template <class T>
struct Work {
  const T* b;
  std::int64_t b_stride;
  const float* bias;
  int rank;
  int slice;
  int rows[2];  // of the lane
  int out;
  int first_column;
  int stride;
  int steps;
};

/// Any alignment, any rank, any columns, bias, overwriting.
template <class T, class TY, int kSlabs>
__device__ __noinline__ void expand_any(const ExpandParams& p, const Work<T>& work,
                                        const Finish<TY>& start, std::uint32_t shared) {
  constexpr int kCols = kColumns<TY>;
  constexpr int kGroups = kCols / 32;
  constexpr int kStages = kAnyStages;
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32, warp = thread / 32;
  const T* const b = work.b;
  const std::int64_t b_stride = work.b_stride;
  const float* const bias = work.bias;
  const int rank = work.rank, slice = work.slice, steps = work.steps, stride = work.stride,
            out = work.out;
  const int rows[2] = {work.rows[0], work.rows[1]};
  Finish<TY> to = start;

  // Stages of a ring: B, bias and y of a step.
  const std::uint32_t bias_offset = static_cast<std::uint32_t>(p.slabs * kCols * kSlabRowBytes);
  const std::uint32_t y_offset = bias_offset + kCols * 4;
  const std::uint32_t stage_bytes = y_offset + kWarps<kSlabs> * kWarpBytes;
  const std::uint32_t own_offset =
      y_offset + static_cast<std::uint32_t>(warp * kWarpBytes + lane * 16);
  const bool wide_b = reinterpret_cast<std::uintptr_t>(b) % 16 == 0 && b_stride % 8 == 0;
  const bool fits = rank <= kSlabs * kSlab;
  const auto column_of = [&](int step) { return work.first_column + step * stride; };
  const auto left_of = [&](int step) { return out - column_of(step) - lane % 4 * 8; };
  const auto is_whole = [&](int step) { return to.wide && column_of(step) + kCols <= out; };
  const auto load_bias = [&](std::uint32_t stage, int step) {
    if (!to.with_bias || thread >= kCols) return;
    const int column = column_of(step) + thread;
    const float* const from = bias + (column < out ? column : 0);
    asm volatile(
        "cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(stage + bias_offset + thread * 4),
        "l"(from), "r"(column < out ? 4 : 0)
        : "memory");
  };
  const auto load = [&](std::uint32_t stage, int step, int ahead) {
    load_b<T, kCols>(stage, b, b_stride, wide_b, column_of(step), out, 0, rank);
    load_bias(stage, step);
    if (!p.overwrites) load_y(to, ahead, is_whole(step), left_of(step), stage + own_offset);
  };

  // Nothing here depends on the kernel before but h: B and y are under way when it ends.
  if (fits && rank > 0) {
#pragma unroll 1
    for (int step = 0; step < kStages - 1; ++step) {
      if (step < steps) load(shared + step * stage_bytes, step, step * stride);
      commit_copies();
    }
  }
  const float* h[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    h[r] = p.h.data + rows[r] * p.h.stride + static_cast<std::int64_t>(slice) * p.max_rank;
  }
  wait_for_previous();
  if (rank == 0) {
    const float zeros[4][4] = {};
    for (int step = 0; step < steps; ++step) {
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        finish_group<TY, false>(to, zeros, group, left_of(step) - group * 32, shared + own_offset,
                                shared);
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) to.y[r] += stride;
    }
    return;
  }
  if (p.h_sum.data != nullptr && work.first_column == 0) {
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
    Fragment<T> fragments[kSlabs];
    {
      float v[kSlabs][8];
      load_hidden(p, h, 0, rank, lane, v);
      make_fragments<T, kSlabs>(v, rank, lane, to, fragments);
    }
    int place = 0;
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      wait_copies<kStages - 2>();
      __syncthreads();  // B of this step is there, and all have left the step before
      const int next = step + kStages - 1;
      if (next < steps) {
        load(
            shared + static_cast<std::uint32_t>(place == 0 ? kStages - 1 : place - 1) * stage_bytes,
            next, (kStages - 1) * stride);
      }
      commit_copies();
      const std::uint32_t stage = shared + static_cast<std::uint32_t>(place) * stage_bytes;
      float sums[kGroups][4][4] = {};
#pragma unroll
      for (int s = 0; s < kSlabs; ++s) {
        if (s < slabs)
          multiply_groups<T>(sums, fragments[s], stage + s * kCols * kSlabRowBytes, lane);
      }
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        finish_group<TY, false>(to, sums[group], group, left_of(step) - group * 32,
                                stage + own_offset,
                                stage + bias_offset + static_cast<std::uint32_t>(lane % 4 * 32));
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) to.y[r] += stride;
      place = place == kStages - 1 ? 0 : place + 1;
    }
    return;
  }

  // More ranks than a stage has: B in two stages of its own, h again for every step.
  if constexpr (kSlabs > 1) {
    constexpr int kStageSlabs = 8;
    constexpr std::uint32_t kStageBytes = kStageSlabs * kCols * kSlabRowBytes;
    const std::uint32_t shared_b = shared + stage_bytes;  // the first stage keeps y and bias
    const int parts_of_rank = (rank + kStageSlabs * kSlab - 1) / (kStageSlabs * kSlab);
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      const int column = column_of(step);
      const auto load_part = [&](int i) {
        const int from = i * kStageSlabs * kSlab;
        load_b<T, kCols>(shared_b + static_cast<std::uint32_t>(i % 2) * kStageBytes, b, b_stride,
                         wide_b, column, out, from, min(kStageSlabs * kSlab, rank - from));
        commit_copies();
      };
      load_bias(shared, step);
      if (!p.overwrites) load_y(to, 0, is_whole(step), left_of(step), shared + own_offset);
      load_part(0);
      float sums[kGroups][4][4] = {};
      float v[1][8];
      load_hidden(p, h, 0, rank, lane, v);
#pragma unroll 1
      for (int i = 0; i < parts_of_rank; ++i) {
        if (i + 1 < parts_of_rank) {
          load_part(i + 1);
          wait_copies<1>();
        } else {
          wait_copies<0>();
        }
        __syncthreads();
#pragma unroll 1
        for (int s = 0; s < kStageSlabs; ++s) {
          const int first = (i * kStageSlabs + s) * kSlab;
          if (first >= rank) break;
          mask_hidden(first, rank, lane, v);
          float most[2] = {0.0f, 0.0f}, fit[2], unfit[2];
          if constexpr (std::is_same_v<T, __half>) {
#pragma unroll
            for (int j = 0; j < 8; ++j)
              most[j / 2 % 2] = fmaxf(most[j / 2 % 2], finite_magnitude(v[0][j]));
          }
          fit_rows<T>(most[0], most[1], fit, unfit);
          const Fragment<T> fragment = make_fragment<T>(v[0], fit);
          if (first + kSlab < rank) load_hidden(p, h, first + kSlab, rank, lane, v);
          const std::uint32_t slab = shared_b + static_cast<std::uint32_t>(i % 2) * kStageBytes +
                                     static_cast<std::uint32_t>(s * kCols * kSlabRowBytes);
          if constexpr (std::is_same_v<T, __half>) {
            float of_slab[kGroups][4][4] = {};
            multiply_groups<T>(of_slab, fragment, slab, lane);
#pragma unroll
            for (int j = 0; j < kGroups * 16; ++j) {
              sums[j / 16][j / 4 % 4][j % 4] +=
                  of_slab[j / 16][j / 4 % 4][j % 4] * unfit[j / 2 % 2];
            }
          } else {
            multiply_groups<T>(sums, fragment, slab, lane);
          }
        }
        __syncthreads();
      }
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        finish_group<TY, false>(to, sums[group], group, left_of(step) - group * 32,
                                shared + own_offset,
                                shared + bias_offset + static_cast<std::uint32_t>(lane % 4 * 32));
      }
      __syncthreads();  // the bias is everybody's
#pragma unroll
      for (int r = 0; r < 2; ++r) to.y[r] += stride;
    }
  }
}

template <class T, class TY, int kSlabs>
__global__ void __launch_bounds__(kWarps<kSlabs> * 32, kSlabs == 1 ? 4 : 2)
    expand_columns(const __grid_constant__ ExpandParams p) {
  constexpr int kCols = kColumns<TY>;
  constexpr int kGroups = kCols / 32;
  constexpr int kThreads = kWarps<kSlabs> * 32;
  constexpr int kRows = kWarps<kSlabs> * kWarpRows;
  constexpr int kLanePieces = kWarpBytes / 512;
  constexpr std::uint32_t kYBytes = kWarps<kSlabs> * kWarpBytes;
  extern __shared__ __align__(128) unsigned char dynamic[];
  const std::uint32_t shared = shared_address(dynamic);
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32, warp = thread / 32;
  const int part = static_cast<int>(blockIdx.x);
  const int index = static_cast<int>(blockIdx.y + blockIdx.z * kRowBlocksY);
  const RowBlock block = p.kind == Grouping::uniform
                             ? find_row_block<Grouping::uniform, kRows>(p.rows, index)
                             : find_row_block<Grouping::segments, kRows>(p.rows, index);
  if (block.slot < 0) {
    wait_for_previous();
    return;
  }
  Work<T> work;
  int slice = 0;
  std::int64_t y_column = 0;
  for (; slice + 1 < p.num_slices && part >= p.first_part[slice + 1]; ++slice)
    y_column += p.out[slice];
  const AdapterEntry* const entry = p.entries + block.slot * p.slot_stride + slice;
  const int of_slice = part - p.first_part[slice];
  const int stride = p.interleaved ? p.part_count[slice] * kCols : kCols;
  const int steps = p.part_steps[slice] + (of_slice < p.more_steps[slice] ? 1 : 0);
  const int first_step = p.interleaved
                             ? of_slice
                             : of_slice * p.part_steps[slice] + min(of_slice, p.more_steps[slice]);
  work.slice = slice;
  work.out = static_cast<int>(p.out[slice]);
  work.first_column = first_step * kCols;
  work.stride = stride;
  work.steps = steps;

  Finish<TY> to;
  to.wide = p.wide_y && y_column * sizeof(TY) % 16 == 0;
  to.overwrites = p.overwrites;
  TY* const y = static_cast<TY*>(p.y) + y_column + work.first_column + lane % 4 * 8;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int i = warp * kWarpRows + lane / 4 + r * 8;
    to.has[r] = i < block.count;
    const int at = min(i, block.count - 1);
    work.rows[r] = p.kind == Grouping::uniform ? row_at<Grouping::uniform>(p.rows, block, at)
                                               : row_at<Grouping::segments>(p.rows, block, at);
    to.y[r] = y + work.rows[r] * p.y_stride;
  }
  const bool has_rows = warp * kWarpRows < block.count;

  // y needs nothing of the table, B needs the table alone, and neither the kernel before: all is
  // under way when that ends. Rows past the count are the last row again, so that there are no
  // branches.
  const bool whole_y =
      to.wide && !p.overwrites && work.first_column + (steps - 1) * stride + kCols <= work.out;
  const std::uint32_t own = shared + static_cast<std::uint32_t>(warp * kWarpBytes + lane * 16);
  const TY* ahead[2] = {to.y[0], to.y[1]};
  const auto copy_y = [&](std::uint32_t stage) {
#pragma unroll
    for (int i = 0; i < kLanePieces; ++i) {
      constexpr int kPieces = sizeof(TY) / 2;
      copy_16(own + stage + static_cast<std::uint32_t>(i * 512),
              ahead[i / kPieces % 2] + i / kPieces / 2 * 32 + i % kPieces * 4, 16);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) ahead[r] += stride;
  };
  if (whole_y && has_rows) {
#pragma unroll
    for (int step = 0; step < kYStages - 1; ++step) {
      if (step < steps) copy_y(step * kYBytes);
      commit_copies();
    }
  }
  work.b = static_cast<const T*>(entry->b);
  work.b_stride = entry->b_row_stride;
  work.bias = p.with_bias ? entry->bias : nullptr;
  const void* const a = entry->a;
  const int entry_rank = bounded_rank(*entry, p.max_rank);
  const int rank = (work.b != nullptr) & (!p.made_h | (a != nullptr)) ? entry_rank : 0;
  work.rank = rank;
  const float scaling = entry->scaling;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    to.f[r] = scaling;
    if (p.token_weights != nullptr) to.f[r] *= p.token_weights[work.rows[r]];
    to.f_sum[r] = to.f[r];
  }
  to.with_bias = work.bias != nullptr && rank > 0;
  if (!whole_y || to.with_bias || rank == 0 || rank % 8 != 0 || rank > kSlabs * kSlab ||
      !p.wide_h || (p.h_sum.data != nullptr && work.first_column == 0) ||
      reinterpret_cast<std::uintptr_t>(work.b) % 16 != 0 || work.b_stride % 8 != 0) {
    wait_copies<0>();
    __syncthreads();
    if (rank == 0 && !p.overwrites) {
      wait_for_previous();
    } else {
      const Work<T> copy = work;  // so that the work itself stays in registers
      const Finish<TY> start = to;
      expand_any<T, TY, kSlabs>(p, copy, start, shared);
    }
    return;
  }

  // The thread's pieces of B: every turn of the block's threads is `turn` rows further, a multiple
  // of 32.
  constexpr int kAllPieces = kCols << (kSlabs == 1 ? 1 : 3);
  constexpr int kTurns = (kAllPieces + kThreads - 1) / kThreads;
  const int slabs = (rank + kSlab - 1) / kSlab;
  const int shift = slabs == 1 ? 1 : slabs == 2 ? 2 : 3;
  const int piece = thread & ((1 << shift) - 1), n = thread >> shift;
  const int turn = kThreads >> shift;
  const bool is_piece = piece < slabs * 2;
  const bool is_zero = piece * 8 >= rank;  // what the last slab has past the rank
  const T* b = work.b + (work.first_column + n) * work.b_stride + (is_zero ? 0 : piece * 8);
  const std::int64_t b_step = stride * work.b_stride, b_turn = turn * work.b_stride;
  const std::uint32_t shared_b = shared + kYStages * kYBytes;
  const std::uint32_t b_bytes = static_cast<std::uint32_t>(p.slabs * kCols * kSlabRowBytes);
  const std::uint32_t b_offset = static_cast<std::uint32_t>(piece / 2 * kCols * kSlabRowBytes) +
                                 slab_offset(permuted(n), piece % 2);
  // Through registers: copies in groups would have to be waited for with the copies of y behind
  // them.
  const auto fetch_b = [&](uint4(&held)[kTurns]) {
#pragma unroll
    for (int i = 0; i < kTurns; ++i) {
      if (is_piece && n + i * turn < kCols) held[i] = load_once(b + i * b_turn);
      if (is_zero) held[i] = make_uint4(0, 0, 0, 0);
    }
    b += b_step;
  };
  const auto keep_b = [&](const uint4(&held)[kTurns], std::uint32_t place) {
#pragma unroll
    for (int i = 0; i < kTurns; ++i) {
      if (!is_piece || n + i * turn >= kCols) continue;
      store_shared_16(
          shared_b + place + b_offset + static_cast<std::uint32_t>(i * turn * kSlabRowBytes),
          {held[i].x, held[i].y, held[i].z, held[i].w});
    }
  };
  uint4 held[kTurns] = {};
  {
    uint4 second[kTurns] = {};
    fetch_b(held);
    if (steps > 1) fetch_b(second);
    keep_b(held, 0);
    if (steps > 2) fetch_b(held);
    if (steps > 1) keep_b(second, b_bytes);
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
    load_wide_hidden(p, h, 0, rank, lane, v);
    make_fragments<T, kSlabs>(v, rank, lane, to, fragments);
  }
  std::uint32_t stage = 0, last = (kYStages - 1) * kYBytes, place = 0;
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    __syncthreads();  // B of this step is there, and all have left the step before
    if (has_rows) {
      if (step + kYStages - 1 < steps) copy_y(last);
      commit_copies();
      float sums[kGroups][4][4] = {};
#pragma unroll
      for (int s = 0; s < kSlabs; ++s) {
        if (s < slabs)
          multiply_groups<T>(sums, fragments[s], shared_b + place + s * kCols * kSlabRowBytes,
                             lane);
      }
      wait_copies<kYStages - 1>();
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        finish_group<TY, true>(to, sums[group], group, 8, own + stage, 0);
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) to.y[r] += stride;
    }
    if (step > 0 && step + 1 < steps) {
      keep_b(held, b_bytes - place);
      if (step + 2 < steps) fetch_b(held);
    }
    last = stage;
    stage = stage == (kYStages - 1) * kYBytes ? 0 : stage + kYBytes;
    place = b_bytes - place;
  }
}

template <class T, class TY, int kSlabs>
Status launch_expand(ExpandParams& params, std::int64_t row_blocks, bool overlaps,
                     cudaStream_t stream) {
  static std::atomic<std::uint64_t> prepared{0};
  constexpr int kYBytes = kWarps<kSlabs> * kWarpBytes;
  params.slabs =
      static_cast<int>(std::min<std::int64_t>(kSlabs, divide_up(params.max_rank, kSlab)));
  const int b_bytes = params.slabs * kColumns<TY> * kSlabRowBytes;
  const int any_bytes = kAnyStages * (kYBytes + b_bytes + kColumns<TY> * 4);
  return launch_shaped(&expand_columns<T, TY, kSlabs>,
                       {.blocks = params.parts,
                        .blocks_y = std::min<std::int64_t>(row_blocks, kRowBlocksY),
                        .blocks_z = divide_up(row_blocks, kRowBlocksY),
                        .threads = kWarps<kSlabs> * 32,
                        .shared_bytes = std::max(kYStages * kYBytes + 2 * b_bytes, any_bytes),
                        .overlaps = overlaps},
                       &prepared, stream, params);
}

std::int64_t count_parts(const TableShape& shape, std::int64_t columns, std::int64_t steps) {
  std::int64_t parts = 0;
  for (int s = 0; s < shape.num_slices; ++s)
    parts += divide_up(divide_up(shape.out[s], columns), steps);
  return parts;
}

/// Steps of a block: few enough that the device is full, many enough that beginning a block costs
/// little.
std::int64_t choose_steps(std::int64_t row_blocks, const TableShape& shape, std::int64_t columns,
                          std::int64_t slots) {
  std::int64_t best = 2, best_cost = INT64_MAX;
  for (std::int64_t steps = 2; steps <= 8; ++steps) {
    const std::int64_t blocks = row_blocks * count_parts(shape, columns, steps);
    // In hundredths of a wave; the last wave is on average half empty.
    const std::int64_t waves = blocks <= slots ? 100 : blocks * 100 / slots + 50;
    const std::int64_t cost = waves * (steps + 2);
    if (cost < best_cost) {
      best_cost = cost;
      best = steps;
    }
  }
  return best;
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
  const bool few = shape.max_rank <= kSlab;
  const int block_rows = (few ? kWarps<1> : kWarps<4>)*kWarpRows;
  const std::int64_t row_blocks = row_block_bound(kind, active_rows, rows.max_segments, block_rows);
  const std::int64_t steps =
      plan.expand_steps > 0
          ? plan.expand_steps
          : choose_steps(row_blocks, shape, columns, std::int64_t{device.num_sms} * (few ? 4 : 2));
  for (int s = 0; s < shape.num_slices; ++s) {
    const std::int64_t all = divide_up(shape.out[s], columns);
    const std::int64_t parts = divide_up(all, steps);
    params.out[s] = shape.out[s];
    params.first_part[s] = params.parts;
    params.part_count[s] = static_cast<int>(parts);
    params.part_steps[s] = parts > 0 ? static_cast<int>(all / parts) : 0;
    params.more_steps[s] = parts > 0 ? static_cast<int>(all % parts) : 0;
    params.parts += static_cast<int>(parts);
  }
  params.interleaved = plan.expand_in_a_row ? 0 : 1;
  if (active_rows == 0 || params.parts == 0) return {};
  params.wide_y =
      reinterpret_cast<std::uintptr_t>(y.data) % 16 == 0 && y.strides[0] * width % 16 == 0;
  params.overwrites = options.mode == YMode::overwrite;
  params.with_bias = options.with_bias;
  params.made_h = options.made_h;
  const bool overlaps = options.overlaps_shrink && device.is_hopper;
  const auto run = [&]<class T, class TY>(const T*, const TY*) {
    return few ? launch_expand<T, TY, 1>(params, row_blocks, overlaps, stream)
               : launch_expand<T, TY, 4>(params, row_blocks, overlaps, stream);
  };
  const float* const f32 = nullptr;
  const __half* const f16 = nullptr;
  const __nv_bfloat16* const bf16 = nullptr;
  if (shape.b_dtype == DType::f16) return y.dtype == DType::f32 ? run(f16, f32) : run(f16, f16);
  return y.dtype == DType::f32 ? run(bf16, f32) : run(bf16, bf16);
}

RANKFOLD_CUDA_MODULE(prefill_expand)

}  // namespace cuda
RANKFOLD_NAMESPACE_END
