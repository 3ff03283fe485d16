// What decode_expand.cu multiplies, included there alone: rows of y and B, and h in parts.
#pragma once

#include "elements.cuh"
#include "rankfold/export.hpp"
#include "tensor.cuh"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

namespace {

constexpr unsigned kAll = 0xffffffffu;

// Eight consecutive elements of a row of y.
template <class T>
struct Eight {
  uint4 part[sizeof(T) / 2];
};

template <class T>
__device__ __forceinline__ void unpack(const Eight<T>& v, float (&values)[8]) {
  if constexpr (sizeof(T) == 4) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      values[4 * i] = __uint_as_float(v.part[i].x);
      values[4 * i + 1] = __uint_as_float(v.part[i].y);
      values[4 * i + 2] = __uint_as_float(v.part[i].z);
      values[4 * i + 3] = __uint_as_float(v.part[i].w);
    }
  } else {
    const std::uint32_t words[4] = {v.part[0].x, v.part[0].y, v.part[0].z, v.part[0].w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 pair = widen_pair<T>(words[i]);
      values[2 * i] = pair.x;
      values[2 * i + 1] = pair.y;
    }
  }
}

template <class T>
__device__ __forceinline__ void store_eight(T* p, const float (&values)[8]) {
  if constexpr (sizeof(T) == 4) {
    reinterpret_cast<float4*>(p)[0] = make_float4(values[0], values[1], values[2], values[3]);
    reinterpret_cast<float4*>(p)[1] = make_float4(values[4], values[5], values[6], values[7]);
  } else {
    *reinterpret_cast<uint4*>(p) =
        make_uint4(narrow_pair<T>(values[0], values[1]), narrow_pair<T>(values[2], values[3]),
                   narrow_pair<T>(values[4], values[5]), narrow_pair<T>(values[6], values[7]));
  }
}

// Of a row of B what a lane needs of 16 ranks: four. Sixteen-bit weights come eight at a time where
// there are 32 ranks, so that a row is read in 64 bytes.
template <class T>
struct Four {
  std::uint32_t words[sizeof(T)];
};

template <class T, int kSteps>
constexpr bool kPaired = sizeof(T) == 2 && kSteps >= 2;

// The first of the four ranks that lane t has in step s of 16.
template <class T, int kSteps>
__device__ __forceinline__ int rank_of(int s, int t) {
  if constexpr (kPaired<T, kSteps>) {
    return 32 * (s / 2) + 8 * t + 4 * (s % 2);
  } else {
    return 16 * s + 4 * t;
  }
}

template <class T>
__device__ __forceinline__ Four<T> four_elements(const T* p, int left) {
  Four<T> v{};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (i >= left) continue;
    if constexpr (sizeof(T) == 2) {
      const std::uint32_t bits = reinterpret_cast<const std::uint16_t*>(p)[i];
      v.words[i / 2] |= bits << (16 * (i % 2));
    } else {
      v.words[i] = reinterpret_cast<const std::uint32_t*>(p)[i];
    }
  }
  return v;
}

// Row j of B, ranks [0, rank) of the 16 kSteps from p on. kWide: where not wanted v stays what it
// is.
template <bool kWide, class T, int kSteps>
__device__ __forceinline__ void load_row(const T* p, bool wanted, int rank, int t, int j,
                                         Four<T> (&v)[kSteps][4]) {
  if constexpr (!kWide) {
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const int r = rank_of<T, kSteps>(s, t);
      v[s][j] = four_elements(p + r, wanted ? rank - r : 0);
    }
  } else if constexpr (kPaired<T, kSteps>) {
#pragma unroll
    for (int s = 0; s < kSteps; s += 2) {
      const int r = rank_of<T, kSteps>(s, t);
      uint4 both = make_uint4(v[s][j].words[0], v[s][j].words[1], v[s + 1][j].words[0],
                              v[s + 1][j].words[1]);
      load_into_if<true>(both, wanted && r < rank, p + r);
      v[s][j].words[0] = both.x;
      v[s][j].words[1] = both.y;
      v[s + 1][j].words[0] = both.z;
      v[s + 1][j].words[1] = both.w;
    }
  } else {
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const int r = rank_of<T, kSteps>(s, t);
      std::uint32_t* const words = v[s][j].words;
      if constexpr (sizeof(T) == 2) {
        uint2 two = make_uint2(words[0], words[1]);
        load_into_8_if(two, wanted && r < rank, p + r);
        words[0] = two.x;
        words[1] = two.y;
      } else {
        uint4 four = make_uint4(words[0], words[1], words[2], words[3]);
        load_into_if<true>(four, wanted && r < rank, p + r);
        words[0] = four.x;
        words[1] = four.y;
        words[2] = four.z;
        words[3] = four.w;
      }
    }
  }
}

// Parts that h is the sum of, so that nothing of a float32 is lost where products cancel: three of
// bf16 or, as rows are scaled, two of f16; two of TF32 for weights of float32.
template <class T>
constexpr int kPartsOf = std::is_same_v<T, __nv_bfloat16> ? 3 : 2;

// h of rows g and g + 8 as the left operand, 16 ranks.
template <class T>
struct Left {
  uint4 part[kPartsOf<T>][sizeof(T) / 2];
};

template <class T>
__device__ __forceinline__ Left<T> make_left(const float4& row, const float4& other) {
  Left<T> left;
  if constexpr (sizeof(T) == 2) {
    constexpr int kParts = kPartsOf<T>;
    std::uint32_t parts[4][kParts];
    split_pair<T, kParts>(row.x, row.y, parts[0]);
    split_pair<T, kParts>(other.x, other.y, parts[1]);
    split_pair<T, kParts>(row.z, row.w, parts[2]);
    split_pair<T, kParts>(other.z, other.w, parts[3]);
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      left.part[i][0] = make_uint4(parts[0][i], parts[1][i], parts[2][i], parts[3][i]);
    }
  } else {
    // Two steps of eight ranks: places t, t + 4 are ranks x, y and then z, w.
    split_tf32(row.x, left.part[0][0].x, left.part[1][0].x);
    split_tf32(other.x, left.part[0][0].y, left.part[1][0].y);
    split_tf32(row.y, left.part[0][0].z, left.part[1][0].z);
    split_tf32(other.y, left.part[0][0].w, left.part[1][0].w);
    split_tf32(row.z, left.part[0][1].x, left.part[1][1].x);
    split_tf32(other.z, left.part[0][1].y, left.part[1][1].y);
    split_tf32(row.w, left.part[0][1].z, left.part[1][1].z);
    split_tf32(other.w, left.part[0][1].w, left.part[1][1].w);
  }
  return left;
}

// sums += the step of h times the rows of B, the smallest parts first.
template <class T>
__device__ __forceinline__ void multiply_step(float (&sums)[4][4], const Left<T>& h,
                                              const Four<T> (&b)[4]) {
  if constexpr (sizeof(T) == 2) {
#pragma unroll
    for (int i = kPartsOf<T> - 1; i >= 0; --i) {
      const uint4 a = h.part[i][0];
#pragma unroll
      for (int j = 0; j < 4; ++j)
        multiply<T>(sums[j], a.x, a.y, a.z, a.w, b[j].words[0], b[j].words[1]);
    }
  } else {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint4 big = h.part[0][i], small = h.part[1][i];
        std::uint32_t high[2], low[2];
        split_tf32(__uint_as_float(b[j].words[2 * i]), high[0], low[0]);
        split_tf32(__uint_as_float(b[j].words[2 * i + 1]), high[1], low[1]);
        multiply_tf32(sums[j], small.x, small.y, small.z, small.w, high[0], high[1]);
        multiply_tf32(sums[j], big.x, big.y, big.z, big.w, low[0], low[1]);
        multiply_tf32(sums[j], big.x, big.y, big.z, big.w, high[0], high[1]);
      }
    }
  }
}

// f16 has no room for h as it comes: a row is scaled by the power of two that brings its largest
// value near 2^14, which loses nothing, and its sums are scaled back.
__device__ __forceinline__ float scale_for_f16(float largest) {
  const int exponent = static_cast<int>(__float_as_uint(largest) >> 23);  // biased
  if (exponent == 0 || exponent == 255) return 1.0f;
  return __uint_as_float(static_cast<std::uint32_t>(min(max(127 + 14 - (exponent - 127), 1), 254))
                         << 23);
}

// h of rows g and g + 8 times f, or for f16 times a power of two; undo gives f h back.
template <class TB, int kSteps>
__device__ __forceinline__ void scale_rows(float4 (&rows)[2][kSteps], const float (&strength)[2],
                                           float (&undo)[2]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float scale = strength[i];
    undo[i] = 1.0f;
    if constexpr (std::is_same_v<TB, __half>) {
      float largest = 0.0f;
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        largest = fmaxf(fmaxf(largest, fmaxf(fabsf(rows[i][s].x), fabsf(rows[i][s].y))),
                        fmaxf(fabsf(rows[i][s].z), fabsf(rows[i][s].w)));
      }
      largest = fmaxf(largest, __shfl_xor_sync(kAll, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(kAll, largest, 2));
      // f itself comes back at the end, as it need not be a power of two.
      scale = scale_for_f16(largest);
      undo[i] = strength[i] / scale;
    }
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      rows[i][s].x *= scale;
      rows[i][s].y *= scale;
      rows[i][s].z *= scale;
      rows[i][s].w *= scale;
    }
  }
}

}  // namespace

}  // namespace cuda
RANKFOLD_NAMESPACE_END
