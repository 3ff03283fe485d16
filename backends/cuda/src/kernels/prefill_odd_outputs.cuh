// y of prefill_expand.cu where its rows are no multiples of 16 bytes: by whole words, of which
// funnel shifts make elements.
#pragma once

#include "prefill_operands.cuh"
#include "prefill_words.cuh"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

namespace {

/// The lane's pieces of y in a stage, 512 bytes apart.
template <class TY>
__device__ constexpr int piece_index(int group, int r, int i) {
  return (group * 2 + r) * static_cast<int>(sizeof(TY) / 2) + i;
}

/// Of the lane's first columns, whether a row of y begins there.
template <bool kOdd>
struct RowBegin {};
template <>
struct RowBegin<true> {
  int all_left;  // columns from the lane's first one on where that is the first of the row; or -1
};

/// A piece of eight elements of 16 bits comes in the five words that it touches: four stand in the
/// piece, the fifth behind all pieces of the warp.
constexpr int kTailBytes = 4 * 32 * 4;
/// Of y of a warp in a stage.
template <bool kOdd>
__device__ __forceinline__ int warp_bytes(const ExpandParams& p) {
  if constexpr (kOdd) {
    return p.warp_bytes;
  } else {
    return kWarpBytes;
  }
}

/// own: the lane's first piece.
__device__ __forceinline__ std::uint32_t tail_of(std::uint32_t own, int piece) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  return own - static_cast<std::uint32_t>(lane * 12) +
         static_cast<std::uint32_t>(kWarpBytes + piece * 128);
}
template <class TY>
__device__ __forceinline__ bool is_odd(const TY* at) {
  return sizeof(TY) == 2 && (reinterpret_cast<std::uintptr_t>(at) & 2) != 0;
}
/// `count` of up to eight elements at any address on their way into the lane's pieces from `piece`
/// on; nothing outside of the row is touched (begins_row: they are its first).
template <class TY>
__device__ __forceinline__ void ask_for_words(const TY* from, std::uint32_t own, int piece,
                                              int count, bool begins_row) {
  const std::uint32_t to = own + static_cast<std::uint32_t>(piece * 512);
  const bool odd = is_odd(from);
  const char* const words = reinterpret_cast<const char*>(from) - (odd ? 2 : 0);
  const int bytes = max(count, 0) * static_cast<int>(sizeof(TY)) + (odd ? 2 : 0);
  constexpr int kWords = sizeof(TY) == 4 ? 8 : 5;
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    const int present = count > 0 ? min(bytes - i * 4, 4) : 0;
    if (present <= 0) break;
    const std::uint32_t at = sizeof(TY) == 4
                                 ? to + static_cast<std::uint32_t>(i / 4 * 512 + i % 4 * 4)
                             : i < 4 ? to + static_cast<std::uint32_t>(i * 4)
                                     : tail_of(own, piece);
    // Half a word is an element: a copy of two bytes reads four.
    const bool first_alone = i == 0 && odd && begins_row;
    if (first_alone || present == 2) {
      const std::uint32_t half = first_alone ? 2 : 0;
      const unsigned short bits = *reinterpret_cast<const unsigned short*>(words + i * 4 + half);
      asm volatile("st.shared.u16 [%0], %1;" ::"r"(at + half), "h"(bits) : "memory");
      continue;
    }
    copy_4(at, words + i * 4, present);
  }
}
/// The words of a piece as eight elements of what stands at y.
template <class TY>
__device__ __forceinline__ void join_words(const TY* y, std::uint32_t own, int piece,
                                           std::uint32_t (&words)[4]) {
  if (!is_odd(y)) return;
  std::uint32_t last;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(last) : "r"(tail_of(own, piece)) : "memory");
#pragma unroll
  for (int w = 0; w < 4; ++w)
    words[w] = __funnelshift_r(words[w], w < 3 ? words[w < 3 ? w + 1 : 3] : last, 16);
}
/// Up to eight elements, as they stand in registers, to any address.
template <class TY, int kPieces>
__device__ __forceinline__ void put_words(TY* to, const uint4 (&bits)[kPieces], int count) {
  if constexpr (sizeof(TY) == 4) {
    const std::uint32_t v[8] = {bits[0].x, bits[0].y, bits[0].z, bits[0].w,
                                bits[1].x, bits[1].y, bits[1].z, bits[1].w};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (i < count) reinterpret_cast<std::uint32_t*>(to)[i] = v[i];
    }
  } else {
    const std::uint32_t v[4] = {bits[0].x, bits[0].y, bits[0].z, bits[0].w};
    unsigned short* const halves = reinterpret_cast<unsigned short*>(to);
    const int odd = is_odd(to) ? 1 : 0;
    if (odd != 0 && count > 0) halves[0] = static_cast<unsigned short>(v[0]);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      // Elements 2i + odd and the next.
      const std::uint32_t word =
          odd != 0 ? __funnelshift_r(v[i], i < 3 ? v[i < 3 ? i + 1 : 3] : 0u, 16) : v[i];
      const int element = 2 * i + odd;
      if (element + 1 < min(count, 8)) {
        *reinterpret_cast<std::uint32_t*>(halves + element) = word;
      } else if (element < min(count, 8)) {
        halves[element] = static_cast<unsigned short>(word);
      }
    }
  }
}

}  // namespace

}  // namespace cuda
RANKFOLD_NAMESPACE_END
