#include "../elements.cuh"
#include "../launch.hpp"
#include "../tensor.cuh"
#include "decode.hpp"
#include "decode_rows.cuh"
#include "modules.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * 32;
constexpr int kColumns = 32;    // of a tile, which one warp makes
constexpr int kAhead = 2;       // tiles whose B and y are asked for before the first is computed
constexpr int kRankGroup = 64;  // ranks whose h stands in shared memory at a time
constexpr unsigned kAll = 0xffffffffu;

__device__ __forceinline__ std::uint64_t join(std::uint32_t low, std::uint32_t high) {
  return static_cast<std::uint64_t>(high) << 32 | low;
}

struct DecodeExpandParams {
  SplitHidden h;
  float* h_out;
  std::int64_t h_out_stride;
  const float* token_weights;
  const AdapterEntry* entries;
  std::int64_t slot_stride;
  Grouping grouping;
  void* y;
  std::int64_t y_stride;
  std::int64_t out[kMaxSlices];
  std::int32_t chunks[kMaxSlices];   ///< of columns, before and in the slice
  std::int64_t columns[kMaxSlices];  ///< of y, before the slice
  int kind;
  int num_slices;
  int max_rank;
  int tiles_per_warp;
  int with_bias;
  int made_h;
  int wide_y;  ///< rows of y are aligned
  int wide_h;  ///< rows of h are aligned
  int pinned;  ///< the order of sums does not depend on the rows
};

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

// What a lane knows of its work before h is there.
template <class TY, class TB>
struct Work {
  TY* y[2];  ///< rows g and g + 8 at the lane's eight columns of the warp's first tile; null past
             ///< the count
  const TB* b;  ///< the first of the lane's four rows of B in the warp's first tile
  std::int64_t b_stride;
  const float* bias;  ///< at the lane's columns of the warp's first tile, or null
  int left;           ///< columns of the slice from those of the lane on
  int b_left;         ///< and from the lane's rows of B on
  int tiles;          ///< of the warp
  int rank;
  int count;  ///< rows of the block
  int h_column;
  bool first_chunk;
  float strength[2];  ///< f of the two rows
};
constexpr int kTileStep = kWarps * kColumns;  // from one tile of a warp to its next

template <class TY, class TB, int kSteps>
struct Operands {
  Four<TB> b[kSteps][4];  ///< of 16 ranks, four rows
  Eight<TY> y[2];
};

template <class TY, class TB, int kSteps>
__device__ __forceinline__ void clear(Operands<TY, TB, kSteps>& o) {
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
#pragma unroll
    for (int j = 0; j < 4; ++j) o.b[s][j] = {};
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) o.y[i] = {};
}

// Rows of B past the slice's end may stay what they are: the columns that they make are not stored.
template <bool kWide, class TY, class TB, int kSteps>
__device__ __forceinline__ void load_operands(const Work<TY, TB>& w, int tile, int first_rank,
                                              bool with_y, Operands<TY, TB, kSteps>& o) {
  const int t = static_cast<int>(threadIdx.x) % 4;
  const int step = tile * kTileStep;
  const bool exists = tile < w.tiles;
  const TB* const b = w.b + step * w.b_stride + first_rank;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const bool there = exists && step + (kWide ? 0 : j) < w.b_left;
    load_row<kWide, TB, kSteps>(b + j * w.b_stride, there, w.rank - first_rank, t, j, o.b);
  }
  if constexpr (kWide) {
    if (!with_y) return;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (i == 1 && w.count <= 8) break;
      const bool there = exists && w.y[i] != nullptr && step < w.left;
#pragma unroll
      for (int part = 0; part < static_cast<int>(sizeof(TY)) / 2; ++part) {
        load_into_if<true>(o.y[i].part[part], there, w.y[i] + step + part * (16 / sizeof(TY)));
      }
    }
  }
}

// Sums c[0] (row g) or c[2] (row g + 8) of product j stand at column j of the lane's eight, c[1] or
// c[3] at 4 + j. y of both rows += undo times the sums + strength times the bias, in float32, one
// rounding.
template <bool kWide, class TY, class TB>
__device__ __forceinline__ void add_to_y(const Work<TY, TB>& w, int tile, const float (&sums)[4][4],
                                         const float (&undo)[2], const Eight<TY> (&old)[2]) {
  const int step = tile * kTileStep;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (i == 1 && w.count <= 8) break;
    if (w.y[i] == nullptr || step >= w.left) continue;
    TY* const to = w.y[i] + step;
    float values[8] = {};
    if constexpr (kWide) {
      unpack(old[i], values);
    } else {
#pragma unroll
      for (int c = 0; c < 8; ++c) {
        if (step + c < w.left) values[c] = widen(to[c]);
      }
    }
    if (w.bias == nullptr) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        values[j] = fmaf(sums[j][2 * i], undo[i], values[j]);
        values[4 + j] = fmaf(sums[j][2 * i + 1], undo[i], values[4 + j]);
      }
    } else {
      // The delta is whole before it is added.
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float first = step + j < w.left ? w.bias[step + j] : 0.0f;
        const float second = step + 4 + j < w.left ? w.bias[step + 4 + j] : 0.0f;
        values[j] += fmaf(first, w.strength[i], sums[j][2 * i] * undo[i]);
        values[4 + j] += fmaf(second, w.strength[i], sums[j][2 * i + 1] * undo[i]);
      }
    }
    if constexpr (kWide) {
      store_eight(to, values);
    } else {
#pragma unroll
      for (int c = 0; c < 8; ++c) {
        if (step + c < w.left) to[c] = narrow<TY>(values[c]);
      }
    }
  }
}

// Four ranks of a row of h in one split, zero past the rank.
__device__ __forceinline__ float4 read_partial(const float* at, int has, bool wide) {
  if (wide) return load_partial_if(has == 4, at);
  float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  if (has > 0) v.x = __ldcg(at);
  if (has > 1) v.y = __ldcg(at + 1);
  if (has > 2) v.z = __ldcg(at + 2);
  if (has > 3) v.w = __ldcg(at + 3);
  return v;
}
__device__ __forceinline__ void add(float4& sum, const float4& v) {
  sum.x += v.x;
  sum.y += v.y;
  sum.z += v.z;
  sum.w += v.w;
}
__device__ __forceinline__ void keep_h(const DecodeExpandParams& p, int row, int column, int has,
                                       const float4& sum) {
  float* const to = p.h_out + static_cast<std::int64_t>(row) * p.h_out_stride + column;
  if (has > 0) to[0] = sum.x;
  if (has > 1) to[1] = sum.y;
  if (has > 2) to[2] = sum.z;
  if (has > 3) to[3] = sum.w;
}

// Sums the splits of ranks [first, first + kRanks) into shared memory; columns past the rank and
// rows past the count become zero. Threads stand for outputs and groups of splits: a group is
// summed in ascending order, then the groups are.
template <int kRanks>
__device__ __forceinline__ void sum_partials(const DecodeExpandParams& p, const int* rows,
                                             int count, int h_column, int rank, int first,
                                             float (*h)[kRankGroup + 4], float4* groups_of,
                                             bool keep) {
  constexpr int kQuads = kRanks / 4, kOutputs = kDecodeRows * kQuads, kGroups = kThreads / kOutputs;
  constexpr int kBatch = 4;
  const int thread = static_cast<int>(threadIdx.x);
  const int quad = thread % kQuads, token = thread / kQuads % kDecodeRows,
            group = thread / kOutputs;
  const int r = first + 4 * quad;
  const int has = token < count ? min(max(rank - r, 0), 4) : 0;
  const float* from =
      p.h.data + static_cast<std::int64_t>(rows[token]) * p.h.row_stride + h_column + r;
  const int begin = p.h.splits * group / kGroups, end = p.h.splits * (group + 1) / kGroups;
  from += begin * p.h.split_stride;
  float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  if (p.wide_h != 0 && rank % 4 == 0) {
#pragma unroll 1
    for (int s = begin; s < end; s += kBatch) {
      float4 v[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        v[i] = load_partial_if(has == 4 && s + i < end, from);
        from += p.h.split_stride;
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) add(sum, v[i]);
    }
  } else {
#pragma unroll 1
    for (int s = begin; s < end; ++s) {
      add(sum, read_partial(from, has, false));
      from += p.h.split_stride;
    }
  }
  if constexpr (kGroups > 1) {
    groups_of[thread] = sum;
    __syncthreads();
    if (group == 0) {
#pragma unroll
      for (int i = 1; i < kGroups; ++i) add(sum, groups_of[i * kOutputs + thread]);
    }
  }
  if (group == 0) {
    *reinterpret_cast<float4*>(&h[token][4 * quad]) = sum;
    if (keep) keep_h(p, rows[token], h_column + r, has, sum);
  }
  __syncthreads();
}

// The same for a block of one row, by each warp for itself: lanes that have no row take other
// splits, and a fixed tree adds them up. Lanes with g = 0 have the row, the others zero.
template <class TB, int kSteps>
__device__ __forceinline__ void sum_one_row(const DecodeExpandParams& p, int row, int h_column,
                                            int rank, bool keep, float4 (&h)[kSteps]) {
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
  const float* from =
      p.h.data + static_cast<std::int64_t>(row) * p.h.row_stride + h_column + g * p.h.split_stride;
  const bool wide = p.wide_h != 0 && rank % 4 == 0;
#pragma unroll
  for (int s = 0; s < kSteps; ++s) h[s] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 1
  for (int split = g; split < p.h.splits; split += 16) {
    float4 v[2][kSteps];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        const int r = rank_of<TB, kSteps>(s, t);
        const int has = split + 8 * i < p.h.splits ? min(max(rank - r, 0), 4) : 0;
        v[i][s] = read_partial(from + r, has, wide);
      }
      from += 8 * p.h.split_stride;
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int s = 0; s < kSteps; ++s) add(h[s], v[i][s]);
    }
  }
  __syncwarp();
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
#pragma unroll
    for (int step = 4; step < 32; step *= 2) {
      h[s].x += __shfl_xor_sync(kAll, h[s].x, step);
      h[s].y += __shfl_xor_sync(kAll, h[s].y, step);
      h[s].z += __shfl_xor_sync(kAll, h[s].z, step);
      h[s].w += __shfl_xor_sync(kAll, h[s].w, step);
    }
    const int r = rank_of<TB, kSteps>(s, t);
    if (keep && threadIdx.x < 4) keep_h(p, row, h_column + r, min(max(rank - r, 0), 4), h[s]);
    if (g > 0) h[s] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  }
}

// The same where there are many splits: each warp has every eighth eight of them.
template <class TB, int kSteps>
__device__ __forceinline__ void sum_one_row_of_many(const DecodeExpandParams& p, int row,
                                                    int h_column, int rank, bool keep,
                                                    float4* of_warps, float4 (&h)[kSteps]) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int g = lane / 4, t = lane % 4;
  const float* const from = p.h.data + static_cast<std::int64_t>(row) * p.h.row_stride + h_column;
  const bool wide = p.wide_h != 0 && rank % 4 == 0;
#pragma unroll
  for (int s = 0; s < kSteps; ++s) h[s] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 1
  for (int split = 8 * warp + g; split < p.h.splits; split += 8 * kWarps) {
    float4 v[kSteps];
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const int r = rank_of<TB, kSteps>(s, t);
      v[s] = read_partial(from + split * p.h.split_stride + r, min(max(rank - r, 0), 4), wide);
    }
#pragma unroll
    for (int s = 0; s < kSteps; ++s) add(h[s], v[s]);
  }
  __syncwarp();
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
#pragma unroll
    for (int step = 4; step < 32; step *= 2) {
      h[s].x += __shfl_xor_sync(kAll, h[s].x, step);
      h[s].y += __shfl_xor_sync(kAll, h[s].y, step);
      h[s].z += __shfl_xor_sync(kAll, h[s].z, step);
      h[s].w += __shfl_xor_sync(kAll, h[s].w, step);
    }
    if (g == 0) of_warps[(warp * kSteps + s) * 4 + t] = h[s];
  }
  __syncthreads();
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
    float4 sum = of_warps[s * 4 + t];
#pragma unroll
    for (int i = 1; i < kWarps; ++i) add(sum, of_warps[(i * kSteps + s) * 4 + t]);
    const int r = rank_of<TB, kSteps>(s, t);
    if (keep && threadIdx.x < 4) keep_h(p, row, h_column + r, min(max(rank - r, 0), 4), sum);
    h[s] = g == 0 ? sum : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
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

template <class TB, int kSteps>
__device__ __forceinline__ void read_rows(const float (*h)[kRankGroup + 4],
                                          float4 (&rows)[2][kSteps]) {
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      rows[i][s] = *reinterpret_cast<const float4*>(&h[g + 8 * i][rank_of<TB, kSteps>(s, t)]);
    }
  }
}

struct Shared {
  float h[kDecodeRows][kRankGroup + 4];
  float4 groups[kThreads];
  /// The left operand of four steps, a lane's parts: the same for all warps, and too much for their
  /// registers.
  uint4 left[4][3][32];
  int rows[kDecodeRows];
};

// What a lane asks for of a tile: rows of B at b, y at both rows. Beyond what the slice has, things
// stay what they are: the columns that they make are not stored. Ranks past the rank are never
// loaded, and so stay zero.
template <bool kTwo, class TY, class TB, int kSteps>
__device__ __forceinline__ void load_tile(const TB* b, std::int64_t stride, bool there, int rank,
                                          const TY* y0, bool y0_there, const TY* y1, bool y1_there,
                                          Operands<TY, TB, kSteps>& o) {
  const int t = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int j = 0; j < 4; ++j) load_row<true, TB, kSteps>(b + j * stride, there, rank, t, j, o.b);
#pragma unroll
  for (int part = 0; part < static_cast<int>(sizeof(TY)) / 2; ++part) {
    load_into_if<true>(o.y[0].part[part], y0_there, y0 + part * (16 / sizeof(TY)));
    if (kTwo) load_into_if<true>(o.y[1].part[part], y1_there, y1 + part * (16 / sizeof(TY)));
  }
}

template <class TY>
__device__ __forceinline__ void add_row(TY* to, const float (&sums)[4][4], int row, float undo,
                                        const Eight<TY>& old) {
  float values[8];
  unpack(old, values);
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    values[j] = fmaf(sums[j][2 * row], undo, values[j]);
    values[4 + j] = fmaf(sums[j][2 * row + 1], undo, values[4 + j]);
  }
  store_eight(to, values);
}

// Aligned rows, no bias, the whole rank at once. kTwo: there may be more than eight rows.
template <bool kTwo, class TY, class TB, int kSteps>
__device__ __forceinline__ void expand_tiles(const DecodeExpandParams& p, const Work<TY, TB>& w,
                                             Shared& shared) {
  constexpr int kDepth = kSteps <= 2 ? kAhead : 1;
  Operands<TY, TB, kSteps> ahead[kDepth];
  const TB* b = w.b;
  TY *y0 = w.y[0], *y1 = w.y[1];
  const std::int64_t b_step = kTileStep * w.b_stride;
  // Tiles of which the lane's rows of B exist, and its columns of y in each of its two rows.
  const int b_tiles = min(w.tiles, (w.b_left + kTileStep - 1) / kTileStep);
  const int y_tiles = min(w.tiles, (w.left + kTileStep - 1) / kTileStep);
  const int y0_tiles = y0 != nullptr ? y_tiles : 0, y1_tiles = kTwo && y1 != nullptr ? y_tiles : 0;
#pragma unroll
  for (int i = 0; i < kDepth; ++i) {
    clear(ahead[i]);
    load_tile<kTwo>(b, w.b_stride, i < b_tiles, w.rank, y0 + i * kTileStep, i < y0_tiles,
                    y1 + i * kTileStep, i < y1_tiles, ahead[i]);
    b += b_step;
  }
  wait_for_previous();
  const bool keep = p.h_out != nullptr && w.first_chunk;
  float4 rows[2][kSteps];
  if (!kTwo && w.count == 1 && p.pinned == 0) {
    if (p.h.splits <= 16) {
      sum_one_row<TB, kSteps>(p, shared.rows[0], w.h_column, w.rank, keep, rows[0]);
    } else {
      sum_one_row_of_many<TB, kSteps>(p, shared.rows[0], w.h_column, w.rank, keep, shared.groups,
                                      rows[0]);
    }
  } else {
    sum_partials<16 * kSteps>(p, shared.rows, w.count, w.h_column, w.rank, 0, shared.h,
                              shared.groups, keep);
    read_rows<TB, kSteps>(shared.h, rows);
  }
  if constexpr (!kTwo) {
#pragma unroll
    for (int s = 0; s < kSteps; ++s) rows[1][s] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  }
  float undo[2];
  scale_rows<TB, kSteps>(rows, w.strength, undo);
  // Sixteen-bit weights of several steps: warp s makes step s for all.
  constexpr bool kShares = kSteps > 1 && sizeof(TB) == 2;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  Left<TB> left[kShares ? 1 : kSteps];
  if constexpr (kShares) {
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      if (static_cast<int>(threadIdx.x) / 32 != s) continue;
      const Left<TB> own = make_left<TB>(rows[0][s], rows[1][s]);
#pragma unroll
      for (int i = 0; i < kPartsOf<TB>; ++i) shared.left[s][i][lane] = own.part[i][0];
    }
    __syncthreads();
  } else {
#pragma unroll
    for (int s = 0; s < kSteps; ++s) left[s] = make_left<TB>(rows[0][s], rows[1][s]);
  }
#pragma unroll 1
  for (int tile = 0; tile < w.tiles; tile += kDepth) {
#pragma unroll
    for (int i = 0; i < kDepth; ++i) {
      if (kDepth > 1 && tile + i >= w.tiles) break;
      float sums[4][4] = {};
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        if constexpr (kShares) {
#pragma unroll
          for (int part = 0; part < kPartsOf<TB>; ++part)
            left[0].part[part][0] = shared.left[s][part][lane];
        }
        multiply_step<TB>(sums, left[kShares ? 0 : s], ahead[i].b[s]);
      }
      if (tile + i < y0_tiles) add_row(y0 + i * kTileStep, sums, 0, undo[0], ahead[i].y[0]);
      if (kTwo && tile + i < y1_tiles) add_row(y1 + i * kTileStep, sums, 1, undo[1], ahead[i].y[1]);
      const int next = tile + i + kDepth;
      load_tile<kTwo>(b, w.b_stride, next < b_tiles, w.rank, y0 + (i + kDepth) * kTileStep,
                      next < y0_tiles, y1 + (i + kDepth) * kTileStep, next < y1_tiles, ahead[i]);
      b += b_step;
    }
    y0 += kDepth * kTileStep;
    y1 += kDepth * kTileStep;
  }
}

// Any alignment, any rank, a bias. Ranks over those of kSteps come group by group; the sums of all
// tiles of a warp cannot be kept, so tiles are outermost and h is summed again for each. Bits are
// those of expand_tiles.
template <bool kWide, int kSteps, class TY, class TB>
__device__ __noinline__ void expand_in_groups(const DecodeExpandParams& p, const Work<TY, TB>& w,
                                              Shared& shared) {
  constexpr int kRanks = 16 * kSteps;
  wait_for_previous();
#pragma unroll 1
  for (int tile = 0; tile < p.tiles_per_warp; ++tile) {
    float total[4][4] = {};
    float undo[2] = {1.0f, 1.0f};
    Operands<TY, TB, kSteps> o;
    clear(o);
    if (w.rank == 0) load_operands<kWide>(w, tile, 0, true, o);
#pragma unroll 1
    for (int first = 0; first < w.rank; first += kRanks) {
      if (first > 0) clear(o);
      load_operands<kWide>(w, tile, first, true, o);
      __syncthreads();
      const bool keep = p.h_out != nullptr && w.first_chunk && tile == 0;
      sum_partials<kRanks>(p, shared.rows, w.count, w.h_column, w.rank, first, shared.h,
                           shared.groups, keep);
      float4 rows[2][kSteps];
      read_rows<TB, kSteps>(shared.h, rows);
      scale_rows<TB, kSteps>(rows, w.strength, undo);
      float sums[4][4] = {};
#pragma unroll
      for (int s = 0; s < kSteps; ++s)
        multiply_step<TB>(sums, make_left<TB>(rows[0][s], rows[1][s]), o.b[s]);
      if (w.rank <= kRanks) {
#pragma unroll
        for (int i = 0; i < 16; ++i) total[i / 4][i % 4] = sums[i / 4][i % 4];
      } else {
#pragma unroll
        for (int i = 0; i < 16; ++i) {
          total[i / 4][i % 4] = fmaf(sums[i / 4][i % 4], undo[i % 4 / 2], total[i / 4][i % 4]);
        }
      }
    }
    if (w.rank > kRanks) undo[0] = undo[1] = 1.0f;
    if (tile < w.tiles) add_to_y<kWide>(w, tile, total, undo, o.y);
  }
}

// kMaxSteps: of 16 ranks, what max_rank needs; over 4 there is no limit.
template <class TB>
constexpr int residency(int max_steps) {
  return max_steps == 1 && sizeof(TB) == 2 ? 3 : max_steps <= 4 && sizeof(TB) == 2 ? 2 : 1;
}
template <class TY, class TB, int kMaxSteps, Lookup kLookup>
__global__ void __launch_bounds__(kThreads, residency<TB>(kMaxSteps))
    decode_expand_rows(const __grid_constant__ DecodeExpandParams p) {
  __shared__ __align__(16) Shared shared;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int g = lane / 4, t = lane % 4;
  const RowBlock block =
      find_decode_block<kLookup>(p.grouping, p.kind, static_cast<int>(blockIdx.x));
  if (block.slot < 0) {
    // Who follows in the stream must not pass the shrink because this kernel had nothing to do.
    wait_for_previous();
    return;
  }
  const int chunk = static_cast<int>(blockIdx.y);
  int slice = 0;
  while (slice + 1 < p.num_slices && chunk >= p.chunks[slice]) ++slice;
  const int own = chunk - (slice > 0 ? p.chunks[slice - 1] : 0);
  // In straight line, so that one wait serves all of it.
  const AdapterEntry* const entry = p.entries + block.slot * p.slot_stride + slice;
  const uint4 pointers = load_shared_use(&entry->a);
  const uint4 numbers = load_shared_use(&entry->rank);
  const uint4 strides = load_shared_use(&entry->a_row_stride);
  const int row = decode_row<kLookup>(p.grouping, p.kind, block, lane);
  const auto b_stride = static_cast<std::int64_t>(join(strides.z, strides.w));
  const bool has_a = (pointers.x | pointers.y) != 0;
  const TB* const b = reinterpret_cast<const TB*>(join(pointers.z, pointers.w));
  const int given = min(max(static_cast<int>(numbers.x), 0), p.max_rank);
  const float scaling = __uint_as_float(numbers.y);
  const float* const bias =
      p.with_bias != 0 ? reinterpret_cast<const float*>(join(numbers.z, numbers.w)) : nullptr;
  if (threadIdx.x < kDecodeRows) shared.rows[threadIdx.x] = row;
  Work<TY, TB> w;
  w.count = block.count;
  w.rank = (p.made_h != 0 && !has_a) || b == nullptr ? 0 : given;
  // Rank 0: this adapter does not touch this slice.
  if (w.rank == 0) {
    wait_for_previous();
    return;
  }
  // Warps take turns at tiles.
  const int width = static_cast<int>(p.out[slice]);
  const std::int64_t column = p.columns[slice];
  const int at = (own * p.tiles_per_warp * kWarps + warp) * kColumns;
  w.bias = bias != nullptr ? bias + at + 8 * t : nullptr;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const std::int64_t mine = __shfl_sync(kAll, row, g + 8 * i);
    w.y[i] = g + 8 * i < block.count
                 ? static_cast<TY*>(p.y) + mine * p.y_stride + column + at + 8 * t
                 : nullptr;
    w.strength[i] = p.token_weights != nullptr ? scaling * p.token_weights[mine] : scaling;
  }
  // Lane g has rows 4g to 4g + 3 of B, so that it ends with eight consecutive columns.
  w.b = b + (at + 4 * g) * b_stride;
  w.b_stride = b_stride;
  w.left = width - at - 8 * t;
  w.b_left = width - at - 4 * g;
  w.tiles = min(p.tiles_per_warp, max(0, (width - at + kTileStep - 1) / kTileStep));
  w.h_column = slice * p.max_rank;
  w.first_chunk = own == 0;
  const int unit = w.rank <= 16 ? 4 : 16 / static_cast<int>(sizeof(TB));  // ranks of a load
  const bool wide =
      p.wide_y != 0 && (column * sizeof(TY) % 16 | width % 8 | w.rank % unit) == 0 &&
      (reinterpret_cast<std::uintptr_t>(b) | static_cast<std::uintptr_t>(b_stride * sizeof(TB))) %
              (unit * sizeof(TB)) ==
          0;
  __syncthreads();  // the rows
  const auto expand = [&]<int kSteps>(std::integral_constant<int, kSteps>) {
    if (block.count > 8) {
      expand_tiles<true, TY, TB, kSteps>(p, w, shared);
    } else {
      expand_tiles<false, TY, TB, kSteps>(p, w, shared);
    }
  };
  if (wide && bias == nullptr && w.rank <= kRankGroup) {
    if (w.rank <= 16) {
      expand(std::integral_constant<int, 1>());
    } else if constexpr (kMaxSteps > 1) {
      if (w.rank <= 32) {
        expand(std::integral_constant<int, 2>());
      } else {
        expand(std::integral_constant<int, 4>());
      }
    }
    return;
  }
  const Work<TY, TB> copy = w;  // what is passed by address would stand in memory all along
  if (w.rank <= 16) {
    expand_in_groups<false, 1, TY, TB>(p, copy, shared);
  } else if constexpr (kMaxSteps > 1) {
    if (w.rank <= 32) {
      expand_in_groups<false, 2, TY, TB>(p, copy, shared);
    } else if (kMaxSteps > 4 && wide) {
      expand_in_groups<true, 4, TY, TB>(p, copy, shared);
    } else {
      expand_in_groups<false, 4, TY, TB>(p, copy, shared);
    }
  }
}

template <class TY, class TB>
Status launch_expand(const DecodeExpandParams& p, dim3 grid, bool overlaps, cudaStream_t stream) {
  constexpr bool kOwed =
      std::is_same_v<TY, TB> && sizeof(TB) == 2;  // the combination that serving is measured on
  if constexpr (kOwed) {
    if (p.kind == Grouping::uniform && p.max_rank <= 16) {
      return launch(&decode_expand_rows<TY, TB, 1, Lookup::uniform>, grid, kThreads, stream, p,
                    overlaps);
    }
    if (p.kind == Grouping::uniform && p.max_rank <= kRankGroup) {
      return launch(&decode_expand_rows<TY, TB, 4, Lookup::uniform>, grid, kThreads, stream, p,
                    overlaps);
    }
    if (p.max_rank <= 16) {
      return launch(&decode_expand_rows<TY, TB, 1, Lookup::any>, grid, kThreads, stream, p,
                    overlaps);
    }
    if (p.max_rank <= kRankGroup) {
      return launch(&decode_expand_rows<TY, TB, 4, Lookup::any>, grid, kThreads, stream, p,
                    overlaps);
    }
  }
  return launch(&decode_expand_rows<TY, TB, 5, Lookup::any>, grid, kThreads, stream, p, overlaps);
}

// Tiles a warp makes: as few as keep all blocks resident at once, else few enough that uneven
// blocks even out; see docs/cuda-kernels.md.
int choose_tiles(const TableShape& shape, std::int64_t blocks, bool uneven, int num_sms) {
  const std::int64_t resident = (shape.max_rank <= 16 ? 3 : 2) * static_cast<std::int64_t>(num_sms);
  std::int64_t widest = 0;
  for (int i = 0; i < shape.num_slices; ++i) widest = std::max(widest, shape.out[i]);
  const std::int64_t most = std::max<std::int64_t>(divide_up(widest, kTileStep), 1);
  const auto blocks_with = [&](std::int64_t tiles) {
    std::int64_t chunks = 0;
    for (int i = 0; i < shape.num_slices; ++i) chunks += divide_up(shape.out[i], kTileStep * tiles);
    return chunks * blocks;
  };
  std::int64_t tiles = 1;
  while (tiles < most && blocks_with(tiles) > resident) ++tiles;
  if (blocks_with(tiles) <= resident && (!uneven || tiles <= 6)) return static_cast<int>(tiles);
  return static_cast<int>(std::min<std::int64_t>(most, uneven ? 4 : 8));
}

}  // namespace

bool decode_expand_takes(DType b, DType y) noexcept {
  return b == y || y == DType::f32
             ? b == DType::f16 || b == DType::bf16 || y != DType::f32 || b == DType::f32
             : b == DType::f32;
}

Status decode_expand(const DecodeExpand& call, const AdapterTableView& table,
                     const Grouping& grouping, Grouping::Kind kind, std::int64_t blocks,
                     const TensorView& y, int num_sms, cudaStream_t stream) {
  const TableShape& shape = table.shape;
  if (blocks == 0 || shape.max_rank == 0 || shape.num_slots == 0) return {};
  DecodeExpandParams params{};
  params.h = call.h;
  params.h_out = call.h_out;
  params.h_out_stride = call.h_out_stride;
  params.token_weights = call.token_weights;
  params.entries = table.entries;
  params.slot_stride = table.slot_stride;
  params.grouping = grouping;
  params.y = y.data;
  params.y_stride = y.strides[0];
  params.kind = kind;
  params.num_slices = shape.num_slices;
  params.max_rank = shape.max_rank;
  params.tiles_per_warp = call.tiles_per_warp > 0
                              ? call.tiles_per_warp
                              : choose_tiles(shape, blocks, call.uneven, num_sms);
  params.with_bias = call.with_bias ? 1 : 0;
  params.made_h = call.made_h ? 1 : 0;
  params.pinned = call.pinned ? 1 : 0;
  const std::int64_t size = y.dtype == DType::f32 ? 4 : 2;
  params.wide_y =
      reinterpret_cast<std::uintptr_t>(y.data) % 16 == 0 && y.strides[0] * size % 16 == 0 ? 1 : 0;
  const bool wide_h = reinterpret_cast<std::uintptr_t>(call.h.data) % 16 == 0 &&
                      call.h.row_stride % 4 == 0 && call.h.split_stride % 4 == 0 &&
                      shape.max_rank % 4 == 0;
  params.wide_h = wide_h ? 1 : 0;
  std::int64_t chunks = 0;
  for (int i = 0; i < shape.num_slices; ++i) {
    params.out[i] = shape.out[i];
    params.columns[i] = i > 0 ? params.columns[i - 1] + shape.out[i - 1] : 0;
    chunks += divide_up(shape.out[i], kWarps * kColumns * params.tiles_per_warp);
    params.chunks[i] = static_cast<std::int32_t>(chunks);
  }
  if (chunks == 0) return {};
  const dim3 grid = grid_of(blocks, chunks);
  const auto with_y = [&]<class TY>(const TY*) {
    return with_element(shape.b_dtype, [&]<class TB>(const TB*) -> Status {
      if constexpr (std::is_same_v<TY, TB> || sizeof(TY) == 4 || sizeof(TB) == 4) {
        return launch_expand<TY, TB>(params, grid, call.after_shrink, stream);
      } else {
        return Status(StatusCode::internal, "decode_expand: B and y of two 16-bit dtypes");
      }
    });
  };
  return with_element(y.dtype, with_y);
}

RANKFOLD_CUDA_MODULE(decode_expand)

}  // namespace cuda
RANKFOLD_NAMESPACE_END
