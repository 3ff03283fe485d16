// y of prefill_expand.cu, included there alone: a step of it in pieces of 16 bytes in shared
// memory, and back to its rows.
#pragma once

#include "prefill_odd_outputs.cuh"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

namespace {

/// What a lane needs to finish eight columns of two rows.
template <class TY, bool kOdd = false>
struct Finish : RowBegin<kOdd> {
  TY* y[2];  // at the lane's first column of the step
  bool has[2];
  float f[2];      // scaling * token_weight
  float f_sum[2];  // the same for a sum that was multiplied to fit
  bool with_bias;
  bool wide;
  bool overwrites;
};

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
template <class TY, bool kPlain, bool kOdd>
__device__ __forceinline__ void finish_group(const Finish<TY, kOdd>& to, const float (&sums)[4][4],
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
        std::uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
        if constexpr (kOdd && !kPlain) {
          if (!full) join_words(to.y[r], own, piece_index<TY>(group, r, i), words);
        }
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
    } else if constexpr (kOdd) {
      put_words(to.y[r] + group * 32, bits, left);
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
template <class TY, bool kOdd>
__device__ __forceinline__ void load_y(const Finish<TY, kOdd>& to, int ahead, bool whole, int left,
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
#pragma unroll(kOdd ? kGroups : 1)
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
        if constexpr (kOdd) {
          ask_for_words(from, own, piece_index<TY>(group, r, 0), present,
                        group == 0 && left == to.all_left);
        } else {
          fetch_elements(from, piece, present);
        }
      }
    }
  }
}

}  // namespace

}  // namespace cuda
RANKFOLD_NAMESPACE_END
