// What prefill_expand.cu is made of, included there alone: h in parts, B in slabs.
#pragma once

#include <cstdint>

#include "elements.cuh"
#include "prefill_expand.hpp"
#include "rows.cuh"
#include "wgmma.cuh"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

namespace {

constexpr int kWarpRows = 16;
constexpr int kWarpBytes =
    2048;  // of y of a warp in a stage: 16 rows of 128 bytes, four pieces of 16 a lane
constexpr int kSlab = 16;  // ranks of one matrix instruction
constexpr int kSlabRowBytes = 32;
constexpr int kFewStages = 6, kManyStages = 4;
constexpr unsigned kRowBlocksY = 32768;  // of the grid's y; more go into its z

/// Columns of a step: 64 of 16 bits, 32 of 32.
template <class TY>
constexpr int kColumns = kWarpBytes / kWarpRows / static_cast<int>(sizeof(TY));

/// Where the 16-byte half of a row of B stands in a slab. Rows are permuted so that a lane's sums
/// are eight columns in a row: of every 32 rows, row n is row `permuted(n)` of the slab.
__device__ __forceinline__ int permuted(int n) {
  return (n & ~31) + (n % 8 / 2) * 8 + (n / 8 % 4) * 2 + n % 2;
}
/// Bias of a step; slabs begin at multiples of 256 bytes.
constexpr int kBiasBytes = 256;
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

/// h of all ranks, at most four slabs of it on their way at a time.
template <int kSlabs>
__device__ __forceinline__ void load_slabs_of_hidden(const ExpandParams& p,
                                                     const float* const (&h)[2], int rank, int lane,
                                                     float (&v)[kSlabs][8]) {
  constexpr int kAtOnce = kSlabs < 4 ? kSlabs : 4;
#pragma unroll
  for (int s = 0; s < kSlabs; s += kAtOnce) {
    if (s * kSlab >= rank) break;
    load_hidden(p, h, s * kSlab, rank, lane, reinterpret_cast<float(&)[kAtOnce][8]>(v[s]));
  }
}

/// The power of two that brings `most` to 2^14 to 2^15, and back.
__device__ __forceinline__ void fit_f16(float most, float& fit, float& unfit) {
  const int exponent = static_cast<int>(__float_as_uint(most) >> 23);
  const int shift = most > 0.0f ? min(14 + 127 - exponent, 126) : 0;
  fit = __uint_as_float(static_cast<std::uint32_t>(127 + shift) << 23);
  unfit = __uint_as_float(static_cast<std::uint32_t>(127 - shift) << 23);
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
      fit_f16(most[r], fit[r], unfit[r]);
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

/// sums[i][j]: rows g and g + 8, columns 8t + 2j and the next, of group i of 32 columns, over the
/// ranks of a slab. The smallest parts of all first: no instruction waits for the one before.
template <class T, int kGroups>
__device__ __forceinline__ void multiply_slab(float (&sums)[kGroups][4][4], const Fragment<T>& h,
                                              std::uint32_t slab, int lane) {
  std::uint32_t b[kGroups * 2][4];
  const std::uint32_t at = slab + slab_offset(lane / 16 * 8 + lane % 8, lane / 8 % 2);
#pragma unroll
  for (int i = 0; i < kGroups * 2; ++i)
    load_matrices(b[i], at + static_cast<std::uint32_t>(i * 16 * kSlabRowBytes));
#pragma unroll
  for (int part = Fragment<T>::kParts - 1; part >= 0; --part) {
#pragma unroll
    for (int i = 0; i < kGroups * 4; ++i) {
      multiply<T>(sums[i / 4][i % 4], h.part[part][0], h.part[part][1], h.part[part][2],
                  h.part[part][3], b[i / 2][i % 2 * 2], b[i / 2][i % 2 * 2 + 1]);
    }
  }
}
/// The same of `count` slabs, at most kSlabs, by all warps of a warpgroup; count is the same in all
/// of them, and the compiler must see that it is in a warp. A kernel that has this may call no
/// function that has it: each matrix instruction would wait for the one before.
template <int kSlabs, class T, int kGroups>
__device__ __forceinline__ void multiply_slabs(float (&sums)[kGroups][4][4],
                                               const Fragment<T>* fragments, std::uint32_t slab,
                                               int count, int lane) {
  if constexpr (kSlabs > 1) {
    if (count < kSlabs) return multiply_slabs<kSlabs - 1, T>(sums, fragments, slab, count, lane);
  }
  constexpr int kSlabBytes = kGroups * 32 * kSlabRowBytes;
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  (void)lane;
  warpgroup_begin();
#pragma unroll
  for (int s = 0; s < kSlabs; ++s) {
#pragma unroll
    for (int part = Fragment<T>::kParts - 1; part >= 0; --part) {
      warpgroup_multiply_rows<T, kGroups>(&sums[0][0][0], fragments[s].part[part],
                                          slab_descriptor(slab + s * kSlabBytes));
    }
  }
  warpgroup_commit();
  warpgroup_wait(reinterpret_cast<float(&)[kGroups * 16]>(sums));
#else
#pragma unroll
  for (int s = 0; s < kSlabs; ++s) multiply_slab(sums, fragments[s], slab + s * kSlabBytes, lane);
#endif
}

/// How rows of B are copied where they may be: 16 bytes at a time or, with kOdd, by 8.
template <bool kOdd>
struct RowCopy {
  static constexpr int kBytes = 16;

  __device__ __forceinline__ RowCopy(const void*, std::int64_t) {}
  /// The first `present` bytes of a piece of 16.
  __device__ __forceinline__ void copy(std::uint32_t to, const void* from, int present) const {
    copy_16(to, from, present);
  }
};
template <>
struct RowCopy<true> {
  static constexpr int kBytes = 8;
  bool wide;

  __device__ __forceinline__ RowCopy(const void* b, std::int64_t stride)
      : wide(reinterpret_cast<std::uintptr_t>(b) % 16 == 0 && stride % 8 == 0) {}
  __device__ __forceinline__ void copy(std::uint32_t to, const void* from, int present) const {
    if (wide) return copy_16(to, from, present);
    copy_8(to, from, min(present, 8));
    copy_8(to + 8, static_cast<const char*>(from) + (present > 8 ? 8 : 0), max(present - 8, 0));
  }
};

/// kRows rows of B from `column` on, ranks [first, first + count), in slabs.
template <class T, int kRows, bool kOdd>
__device__ __forceinline__ void load_b(std::uint32_t to, const T* b, std::int64_t stride,
                                       bool copies, const RowCopy<kOdd>& way, std::int64_t column,
                                       std::int64_t out, int first, int count) {
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
    if (copies) {
      way.copy(at, from, present * 2);
    } else {
      std::uint32_t v[4];
      gather_16(v, from, present);
      store_shared_16(at, v);
    }
  }
}

}  // namespace

}  // namespace cuda
RANKFOLD_NAMESPACE_END
