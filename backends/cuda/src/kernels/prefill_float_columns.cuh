// What prefill_expand_floats.cuh is made of: columns of B of float32 on their way into shared
// memory, as sums of two parts of f16.
#pragma once

#include "prefill_float_products.cuh"
#include "prefill_outputs.cuh"
#include "prefill_words.cuh"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

namespace {

constexpr int kFloatThreads = 384;
constexpr int kFloatMultipliers = 256;  // the first threads of them
constexpr int kFloatLoaders = kFloatThreads - kFloatMultipliers;

/// Of y of a warp in a stage.
template <class TY, bool kOdd>
constexpr int kYWarpBytes = kWarpBytes + (kOdd && sizeof(TY) == 2 ? kTailBytes : 0);

/// Of the block, how B and y stand in shared memory: places of B in parts, each with the powers of
/// two of its columns and the bias, a ring of y, and barriers of the places.
template <class TY, int kSlabs, bool kOdd>
struct FloatStages {
  static constexpr int kCols = kColumns<TY>;
  static constexpr int kPartBytes = kSlabs * kCols * kSlabRowBytes;
  static constexpr int kScales = 2 * kPartBytes;
  static constexpr int kBias = kScales + 256;
  static constexpr int kPlaceBytes = kBias + kBiasBytes;
  static constexpr int kPlaces = 3;
  static constexpr int kY = kPlaces * kPlaceBytes;
  static constexpr int kYBytes = kFloatMultipliers / 32 * kYWarpBytes<TY, kOdd>;
  static constexpr int kCount = kOdd ? 5 : 6;          // of y
  static constexpr int kFull = kY + kCount * kYBytes;  // barriers: B is there,
  static constexpr int kEmpty = kFull + kPlaces * 8;   // and its place is free
  static constexpr int kBytes = kEmpty + kPlaces * 8;
  static_assert(kBytes <= kFloatExpandBytes);
  // Pieces of eight ranks of a column are neighbouring threads.
  static constexpr int kPieces = 2 * kSlabs;
  static constexpr int kTurn = kFloatLoaders / kPieces;  // columns
  static constexpr int kTurns = kCols > kTurn ? kCols / kTurn : 1;
};

/// The thread's pieces of B of a step.
template <class TY, int kSlabs, bool kOdd, bool kWide>
struct FloatColumns {
  using S = FloatStages<TY, kSlabs, kOdd>;
  const float* b;     // any address
  const float* from;  // the thread's piece of its first column, of the step that is fetched
  std::int64_t stride;
  int count;  // of the piece's ranks
  int left;   // columns from the thread's first one on
  std::uint32_t words[S::kTurns][8];

  __device__ __forceinline__ void fetch(int i) {
    const int present = i * S::kTurn < left ? count : 0;
    const float* const at = present > 0 ? from + i * S::kTurn * stride : b;
#pragma unroll
    for (int j = 0; j < 8; ++j) words[i][j] = 0u;
    if constexpr (kWide) {
      load_four_if(*reinterpret_cast<std::uint32_t(*)[4]>(&words[i][0]), present >= 4, at);
      load_four_if(*reinterpret_cast<std::uint32_t(*)[4]>(&words[i][4]), present >= 8, at + 4);
    } else {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        if (j < present) words[i][j] = __float_as_uint(at[j]);
      }
    }
  }
  __device__ __forceinline__ void advance() {
    from += S::kCols * stride;
    left -= S::kCols;
  }
  /// Into a place; each piece is fetched anew as soon as it is stored.
  __device__ __forceinline__ void store_and_fetch(std::uint32_t place) {
    float most[S::kTurns];
#pragma unroll
    for (int i = 0; i < S::kTurns; ++i) {
      most[i] = fabsf(__uint_as_float(words[i][0]));
#pragma unroll
      for (int j = 1; j < 8; ++j) most[i] = fmaxf(most[i], fabsf(__uint_as_float(words[i][j])));
    }
    bool is_finite = true;
    most_of_columns(most);
#pragma unroll
    for (int i = 0; i < S::kTurns; ++i) is_finite &= most[i] <= 3.402823466e38f;
    // A maximum passes over NaN, whose parts are NaN without care.
    if (__all_sync(0xffffffffu, is_finite)) return store_parts<false>(place, most);
#pragma unroll
    for (int i = 0; i < S::kTurns; ++i) {
      most[i] = 0.0f;
#pragma unroll
      for (int j = 0; j < 8; ++j)
        most[i] = fmaxf(most[i], finite_magnitude(__uint_as_float(words[i][j])));
    }
    most_of_columns(most);
    store_parts<true>(place, most);
  }
  __device__ __forceinline__ static void most_of_columns(float (&most)[S::kTurns]) {
#pragma unroll
    for (int step = 1; step < S::kPieces; step *= 2) {
#pragma unroll
      for (int i = 0; i < S::kTurns; ++i)
        most[i] = fmaxf(most[i], __shfl_xor_sync(0xffffffffu, most[i], step));
    }
  }
  template <bool kCareful>
  __device__ __forceinline__ void store_parts(std::uint32_t place, const float (&most)[S::kTurns]) {
    const int thread = static_cast<int>(threadIdx.x) - kFloatMultipliers;
    const int piece = thread % S::kPieces, n = thread / S::kPieces;
#pragma unroll
    for (int i = 0; i < S::kTurns; ++i) {
      float fit, unfit;
      fit_f16(most[i], fit, unfit);
      std::uint32_t high[4], low[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float first = __uint_as_float(words[i][2 * j]) * fit;
        const float second = __uint_as_float(words[i][2 * j + 1]) * fit;
        if constexpr (kCareful) {
          split_pair<__half>(first, second, high[j], low[j]);
        } else {
          split_finite<__half>(first, second, high[j], low[j]);
        }
      }
      const int c = n + i * S::kTurn;
      if (S::kTurn <= S::kCols || c < S::kCols) {
        const std::uint32_t at = place +
                                 static_cast<std::uint32_t>(piece / 2 * S::kCols * kSlabRowBytes) +
                                 slab_offset(permuted(c), piece % 2);
        store_shared_16(at, high);
        store_shared_16(at + S::kPartBytes, low);
        if (piece == 0) {
          asm volatile("st.shared.f32 [%0], %1;" ::"r"(place + S::kScales + c * 4), "f"(unfit)
                       : "memory");
        }
      }
      fetch(i);
    }
  }
};

}  // namespace

}  // namespace cuda
RANKFOLD_NAMESPACE_END
