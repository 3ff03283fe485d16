// How a block of the fused experts' kernel finds its rows: those of one (expert, slot).
#pragma once

#include <cstdint>

#include "rankfold/adapter_table.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {
namespace experts {

enum Finder : int {
  kByKey = 0,  ///< a block an (expert, slot), which looks through the rows
  kByRow = 1,  ///< a block a row; it leaves again where an earlier one has the row
  kPlain = 2,  ///< a block a row, for itself
};

inline constexpr int kWordsOfSegment = 128;
inline constexpr int kSegment =
    kWordsOfSegment * 32;  ///< rows that are looked at in a round; most of kByRow

struct Params {
  const void* x;
  void* y;
  const AdapterEntry* entries;
  const std::int32_t* expert_offsets;  // grouped
  const std::int32_t* row_tokens;      // grouped
  const std::int32_t* expert_ids;      // gather
  const std::int32_t* token_slots;
  const float* row_weights;
  const float* token_weights;
  std::int64_t x_stride, y_stride;
  std::int64_t slot_stride;
  std::int64_t first_row;    // of the window
  std::int64_t first_token;  // gather: of the first row
  std::int64_t num_tokens;
  std::int64_t expert_base;
  int first_choice;            // gather: of the first row
  std::uint32_t choice_magic;  // gather: n / top_k = n * magic >> shift for n < 2^31
  int choice_shift;
  int num_rows;  // of the window
  int num_slots, num_experts, num_slices, slices_per_block;
  int max_rank, in;
  int own_x, overwrites, x_is_wide;
  int ids_are_wide;    // of the window: at a multiple of 16 bytes
  unsigned y_is_wide;  // a bit a slice
  int finder;
  int out[kMaxSlices];
  std::int64_t y_column[kMaxSlices];
};

#if defined(__CUDACC__)

/// Without a branch, at whose end the load would be waited for.
__device__ __forceinline__ int load_int_if(const std::int32_t* p, bool wanted, int otherwise) {
  int v;
  asm volatile(
      "{\n .reg .pred p;\n setp.ne.b32 p, %2, 0;\n mov.b32 %0, %3;\n @p ld.global.b32 %0, [%1];\n}"
      : "=&r"(v)
      : "l"(p), "r"(static_cast<int>(wanted)), "r"(otherwise));
  return v;
}

/// 1 where it is not wanted.
__device__ __forceinline__ float load_float_if(const float* p, bool wanted) {
  float v;
  asm volatile(
      "{\n .reg .pred p;\n setp.ne.b32 p, %2, 0;\n mov.f32 %0, 0f3F800000;\n @p ld.global.f32 %0, "
      "[%1];\n}"
      : "=&f"(v)
      : "l"(p), "r"(static_cast<int>(wanted)));
  return v;
}

/// Four neighbours, of which `count` are there. wide: they stand at a multiple of 16 bytes.
__device__ __forceinline__ void load_quad_if(int* v, const std::int32_t* p, bool wide, int count) {
  if (wide && count >= 4) {
    asm volatile("ld.global.v4.b32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                 : "l"(p));
    return;
  }
#pragma unroll
  for (int j = 0; j < 4; ++j) v[j] = load_int_if(p + j, j < count, 0);
}

/// The token of row i of the window, in mode gather.
__device__ __forceinline__ std::int64_t token_of_choice(const Params& p, int i) {
  const auto n = static_cast<std::uint64_t>(static_cast<unsigned>(p.first_choice + i));
  return p.first_token + static_cast<std::int64_t>((n * p.choice_magic) >> p.choice_shift);
}

/// In shared memory.
template <int kRows>
struct RowsOfBlock {
  std::uint32_t words[kWordsOfSegment];  // a bit a row of the segment
  int rows[kRows];                       // in the window
  const void* x[kRows];
  void* y[kRows];
  float row_weights[kRows], token_weights[kRows];
  int count, first_wanted, expert;
};

template <int kThreads, int kRows>
__device__ __forceinline__ void clear_marks(RowsOfBlock<kRows>& s) {
  for (int i = static_cast<int>(threadIdx.x); i < kWordsOfSegment; i += kThreads) s.words[i] = 0;
}

/// Looks at rows, kAhead of each thread at once. Gathered rows come four neighbours at a time, and
/// with them the slots of the first one's and of the last one's token: mostly there are no others.
template <int kThreads, int kAhead>
struct Look {
  static_assert(kAhead % 4 == 0);
  int id[kAhead];        // gather: expert; grouped: token
  int slot[kAhead / 2];  // gather

  /// Loads what is needed of rows base + ... < n of the segment that begins at row `begin` of the
  /// window.
  __device__ __forceinline__ void ask(const Params& p, int begin, int n, int base) {
    if (p.expert_ids != nullptr) {
#pragma unroll
      for (int u = 0; u < kAhead / 4; ++u) {
        if (u > 0 && base + u * kThreads * 4 >= n) break;
        const int i = first_of(base, u);
        const std::int32_t* const ids = p.expert_ids + p.first_row + begin + i;
        load_quad_if(id + u * 4, ids, p.ids_are_wide != 0, n - i);
        const int last = max(min(i + 3, n - 1), 0);
        const bool wanted = i < n && p.token_slots != nullptr;
        slot[2 * u] =
            load_int_if(p.token_slots + token_of_choice(p, begin + min(i, last)), wanted, 0);
        slot[2 * u + 1] = load_int_if(p.token_slots + token_of_choice(p, begin + last), wanted, 0);
      }
      return;
    }
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      if (u > 0 && base + u * kThreads >= n) break;
      const int i = base + u * kThreads + static_cast<int>(threadIdx.x);
      const std::int64_t row = p.first_row + begin + i;
      id[u] =
          load_int_if(p.row_tokens + row, i < n && p.row_tokens != nullptr, static_cast<int>(row));
    }
  }
  /// Sets the bits of rows that are of the pair. Those of gathered rows were zero before.
  template <int kRows>
  __device__ __forceinline__ void mark(const Params& p, RowsOfBlock<kRows>& s, int begin, int n,
                                       int base, int expert, int wanted_slot) {
    if (p.expert_ids != nullptr) {
      const std::int64_t wanted = expert + p.expert_base;
#pragma unroll
      for (int u = 0; u < kAhead / 4; ++u) {
        if (u > 0 && base + u * kThreads * 4 >= n) break;
        const int i = first_of(base, u);
        unsigned bits = 0;
#pragma unroll
        for (int j = 0; j < 4; ++j) bits |= id[u * 4 + j] == wanted && i + j < n ? 1u << j : 0u;
        if (bits == 0) continue;
        const std::int64_t first = token_of_choice(p, begin + i);
        const std::int64_t last = token_of_choice(p, begin + min(i + 3, n - 1));
        for (int j = 0; j < 4; ++j) {
          const std::int64_t token = token_of_choice(p, begin + i + j);
          int of_token = slot[2 * u];
          if (token == last) of_token = slot[2 * u + 1];
          if (token != first && token != last && (bits >> j & 1u) != 0 && p.token_slots != nullptr)
            of_token = p.token_slots[token];
          if (of_token != wanted_slot) bits &= ~(1u << j);
        }
        if (bits != 0) atomicOr(&s.words[i / 32], bits << i % 32);
      }
      return;
    }
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    int found[kAhead];
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      const int i = base + u * kThreads + static_cast<int>(threadIdx.x);
      const bool known = i < n && (p.row_tokens == nullptr || (id[u] >= 0 && id[u] < p.num_tokens));
      found[u] =
          load_int_if(p.token_slots + id[u], known && p.token_slots != nullptr, known ? 0 : -1);
    }
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      if (u > 0 && base + u * kThreads >= n) break;
      const int i = base + u * kThreads + static_cast<int>(threadIdx.x);
      const unsigned bits = __ballot_sync(0xffffffffu, i < n && found[u] == wanted_slot);
      const int word = (base + u * kThreads) / 32 + warp;
      if (lane == 0 && word < kWordsOfSegment) s.words[word] = bits;
    }
  }

 private:
  static __device__ __forceinline__ int first_of(int base, int u) {
    return base + (u * kThreads + static_cast<int>(threadIdx.x)) * 4;
  }
};

/// One warp: takes the marked rows with numbers [wanted, wanted + kRows) among all, `before` of
/// which stood in earlier segments. Returns how many are marked in this one.
template <int kRows>
__device__ inline int take_rows(RowsOfBlock<kRows>& s, int begin, int n, int before, int wanted) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  constexpr int kEach = kWordsOfSegment / 32;
  std::uint32_t words[kEach];
  int own = 0;
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const int word = lane * kEach + j;
    words[j] = word * 32 < n ? s.words[word] : 0;
    own += __popc(words[j]);
  }
  int sum = own;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int other = __shfl_up_sync(0xffffffffu, sum, step);
    if (lane >= step) sum += other;
  }
  int number = before + sum - own - wanted;
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    std::uint32_t bits = words[j];
    while (bits != 0 && number < kRows) {
      if (number >= 0)
        s.rows[number] = begin + (lane * kEach + j) * 32 + __ffs(static_cast<int>(bits)) - 1;
      bits &= bits - 1;
      ++number;
    }
  }
  return __shfl_sync(0xffffffffu, sum, 31);
}

/// One warp: how many rows before `row` of the segment are marked.
template <int kRows>
__device__ inline int marked_before(const RowsOfBlock<kRows>& s, int row) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int count = 0;
  for (int word = lane; word * 32 < row; word += 32) {
    const int left = row - word * 32;
    count += __popc(left >= 32 ? s.words[word] : s.words[word] & ((1u << left) - 1));
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) count += __shfl_xor_sync(0xffffffffu, count, step);
  return count;
}

/// The (expert, slot) of a row of the window; expert -1: none. All threads call it.
template <int kThreads, int kRows>
__device__ inline int2 key_of_row(const Params& p, RowsOfBlock<kRows>& s, int own_row) {
  const std::int64_t row = p.first_row + own_row;
  std::int64_t expert = 0;
  int slot = 0;
  if (p.expert_ids != nullptr) {
    const int id = load_int_if(p.expert_ids + row, true, 0);
    slot = load_int_if(p.token_slots + token_of_choice(p, own_row), p.token_slots != nullptr, 0);
    expert = id - p.expert_base;
  } else {
    if (threadIdx.x == 0) s.expert = -1;
    __syncthreads();
    for (int e = static_cast<int>(threadIdx.x); e < p.num_experts; e += kThreads) {
      if (p.expert_offsets[e] <= row && row < p.expert_offsets[e + 1]) s.expert = e;
    }
    const int token =
        load_int_if(p.row_tokens + row, p.row_tokens != nullptr, static_cast<int>(row));
    const bool known = p.row_tokens == nullptr || (token >= 0 && token < p.num_tokens);
    slot = load_int_if(p.token_slots + token, known && p.token_slots != nullptr, known ? 0 : -1);
    __syncthreads();
    expert = s.expert;
  }
  const bool good = expert >= 0 && expert < p.num_experts && slot >= 0 && slot < p.num_slots;
  return make_int2(good ? static_cast<int>(expert) : -1, slot);
}

#endif  // __CUDACC__

}  // namespace experts
}  // namespace cuda
RANKFOLD_NAMESPACE_END
