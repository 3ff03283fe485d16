// Windows, strides, far rows and the workspace of the operations of experts.
#include <doctest/doctest.h>
#include <sys/mman.h>

#include <cmath>
#include <cstring>

#include "expert_batch.hpp"

using namespace rankfold;
using namespace rankfold::reference_test;

namespace {

ExpertSpec layout(ExpertMode mode, XRows x_rows, DType dtype = DType::bf16) {
  return {.tokens = 45,
          .top_k = 3,
          .in = 300,
          .out = {60, 30},
          .slots = 3,
          .experts = 6,
          .max_rank = 12,
          .mode = mode,
          .x_rows = x_rows,
          .x = dtype,
          .y = dtype,
          .weights = dtype,
          .strengths = true};
}

constexpr std::pair<ExpertMode, XRows> kLayouts[] = {{ExpertMode::grouped, XRows::own},
                                                     {ExpertMode::grouped, XRows::token},
                                                     {ExpertMode::gather, XRows::own},
                                                     {ExpertMode::gather, XRows::token}};

/// Address space without memory: only the pages that are touched exist.
class FarMemory {
 public:
  explicit FarMemory(std::size_t bytes) : bytes_(bytes) {
    memory_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    REQUIRE(memory_ != MAP_FAILED);
    (void)madvise(memory_, bytes, MADV_NOHUGEPAGE);
  }
  FarMemory(const FarMemory&) = delete;
  FarMemory& operator=(const FarMemory&) = delete;
  ~FarMemory() { munmap(memory_, bytes_); }
  template <class T>
  T* as() const {
    return static_cast<T*>(memory_);
  }

 private:
  std::size_t bytes_;
  void* memory_;
};

}  // namespace

TEST_CASE("windows give the bits of the whole, leave the rest alone and need their own workspace") {
  for (const auto& [mode, x_rows] : kLayouts) {
    for (const SharedA shared : {SharedA::none, SharedA::by_both}) {
      ExpertSpec spec = layout(mode, x_rows);
      spec.shared = shared;
      spec.same_ranks = shared != SharedA::none;
      const ExpertBatch batch(spec);
      Elements whole = batch.y;
      REQUIRE(run(batch.apply(whole)).ok());
      std::vector<float> whole_h(static_cast<std::size_t>(batch.rows() * batch.h_columns()), -1.0f);
      REQUIRE(run(batch.shrink(whole_h)).ok());
      const auto row_bytes = whole.bytes.size() / static_cast<std::size_t>(batch.rows());
      for (const std::int64_t step : {1, 7, 31, 64, 135}) {
        for (std::int64_t begin = 0; begin < batch.rows(); begin += step) {
          const std::int64_t end = std::min(begin + step, batch.rows());
          ExpertAddressing window = batch.addressing();
          window.row_begin = begin;
          window.row_end = end;
          window.bound_rows = step;
          Elements part = batch.y;
          ApplyExpertsArgs args = batch.apply(part);
          args.addressing = window;
          args.options.batch_invariant = begin % 2 == 0 ? BatchInvariant::on : BatchInvariant::off;
          REQUIRE(run(args).ok());
          std::vector<float> h(whole_h.size(), -1.0f);
          ShrinkExpertsArgs shrink_args = batch.shrink(h);
          shrink_args.addressing = window;
          REQUIRE(run(shrink_args).ok());
          Elements apart = batch.y;
          ExpandExpertsArgs expand_args = batch.expand(whole_h, apart);
          expand_args.addressing = window;
          REQUIRE(run(expand_args).ok());
          const auto from = static_cast<std::ptrdiff_t>(row_bytes) * begin;
          const auto to = static_cast<std::ptrdiff_t>(row_bytes) * end;
          Elements wanted = batch.y;
          std::copy(whole.bytes.begin() + from, whole.bytes.begin() + to,
                    wanted.bytes.begin() + from);
          CHECK(part.bytes == wanted.bytes);
          CHECK(apart.bytes == wanted.bytes);
          std::vector<float> wanted_h(h.size(), -1.0f);
          std::copy(whole_h.begin() + begin * batch.h_columns(),
                    whole_h.begin() + end * batch.h_columns(),
                    wanted_h.begin() + begin * batch.h_columns());
          CHECK(std::memcmp(h.data(), wanted_h.data(), h.size() * sizeof(float)) == 0);
        }
      }
    }
  }
}

TEST_CASE(
    "overwriting a window: its rows without adapter become zero, other rows keep their bits") {
  for (const auto& [mode, x_rows] : kLayouts) {
    const ExpertBatch batch(layout(mode, x_rows, DType::f32));
    const std::vector<double> exact = batch.oracle_y(YMode::overwrite);
    Elements got = batch.y;
    ApplyExpertsArgs args = batch.apply(got);
    args.addressing.row_begin = 11;
    args.addressing.row_end = 131;
    args.options.y_mode = YMode::overwrite;
    REQUIRE(run(args).ok());
    std::vector<double> wanted = batch.base();
    std::copy(exact.begin() + 11 * 90, exact.begin() + 131 * 90, wanted.begin() + 11 * 90);
    CHECK(close(got, wanted, batch.base(YMode::overwrite)));
    for (std::int64_t r = 0; r < batch.rows(); ++r) {
      const bool inside = r >= 11 && r < 131;
      if (inside && batch.entry_of(r) >= 0) continue;
      for (std::int64_t c = 0; c < 90; ++c) {
        CHECK(got.get(r * 90 + c) == (inside ? 0.0 : batch.y.get(r * 90 + c)));
      }
    }
  }
}

TEST_CASE("rows are strided: padding keeps its bits, x of row stride 0 is one row for all") {
  for (const auto& [mode, x_rows] : kLayouts) {
    ExpertBatch batch(layout(mode, x_rows, DType::f32));
    for (std::int64_t i = 300; i < batch.x.size(); ++i) {
      batch.x.set(i, static_cast<float>(batch.x.get(i % 300)));
    }
    Elements wanted = batch.y;
    REQUIRE(run(batch.apply(wanted)).ok());
    Elements padded;
    padded.resize(DType::f32, batch.rows() * 97);
    for (std::int64_t i = 0; i < padded.size(); ++i) {
      padded.set(i, i % 97 < 90 ? static_cast<float>(batch.y.get(i / 97 * 90 + i % 97)) : 4.0f);
    }
    ApplyExpertsArgs args = batch.apply(padded);
    args.x.strides[0] = 0;
    args.y = matrix(padded.bytes.data(), DType::f32, batch.rows(), 90, {}, 97);
    REQUIRE(run(args).ok());
    std::vector<float> h(static_cast<std::size_t>(batch.rows() * 30), -1.0f);
    ShrinkExpertsArgs shrink_args = batch.shrink(h);
    shrink_args.x.strides[0] = 0;
    shrink_args.h = matrix(h.data(), batch.rows(), 24, {}, 30);
    REQUIRE(run(shrink_args).ok());
    Elements apart = batch.y;
    ExpandExpertsArgs expand_args = batch.expand(h, apart);
    expand_args.h = const_matrix(h.data(), batch.rows(), 24, {}, 30);
    REQUIRE(run(expand_args).ok());
    CHECK(apart.bytes == wanted.bytes);
    int wrong = 0;
    for (std::int64_t i = 0; i < padded.size(); ++i) {
      const double exact = i % 97 < 90 ? wanted.get(i / 97 * 90 + i % 97) : 4.0;
      wrong += padded.get(i) != exact ? 1 : 0;
    }
    for (std::size_t i = 0; i < h.size(); ++i) wrong += i % 30 >= 24 && h[i] != -1.0f ? 1 : 0;
    CHECK(wrong == 0);
  }
}

TEST_CASE("B1: a window behind row 2^31 of a gathered batch") {
  constexpr std::int64_t kTokens = (std::int64_t{1} << 29) + 16;
  constexpr std::int64_t kRows = 4 * kTokens;
  constexpr std::int64_t kBegin = (std::int64_t{1} << 31) + 6;
  constexpr std::int64_t kCount = 50;
  static_assert(kBegin + kCount <= kRows);
  const ExpertBatch small(
      {.tokens = 14, .top_k = 4, .in = 8, .out = {2}, .same_ranks = true, .strengths = true});
  // Rows 2 to 52 of the small batch stand at kBegin.
  constexpr std::int64_t kFirst = kBegin - 2;
  static_assert(kFirst % 4 == 0);
  const FarMemory ids(kRows * 4), y(kRows * 8), slots(kTokens * 4), rows(kRows * 4),
      tokens(kTokens * 4), x(kTokens * 32);
  for (std::int64_t r = 0; r < 56; ++r) {
    const auto at = static_cast<std::size_t>(r);
    ids.as<std::int32_t>()[kFirst + r] = small.ids[at];
    rows.as<float>()[kFirst + r] = small.row_weights[at];
    std::memcpy(y.as<float>() + 2 * (kFirst + r), small.y.bytes.data() + 8 * r, 8);
  }
  for (std::int64_t t = 0; t < 14; ++t) {
    slots.as<std::int32_t>()[kFirst / 4 + t] = small.slots[static_cast<std::size_t>(t)];
    tokens.as<float>()[kFirst / 4 + t] = small.token_weights[static_cast<std::size_t>(t)];
    std::memcpy(x.as<float>() + 8 * (kFirst / 4 + t), small.x.bytes.data() + 32 * t, 32);
  }
  Elements dense = small.y;
  ApplyExpertsArgs args = small.apply(dense);
  args.addressing.row_begin = 2;
  args.addressing.row_end = 2 + kCount;
  REQUIRE(run(args).ok());
  CHECK(dense.bytes != small.y.bytes);
  args.x = const_matrix(x.as<float>(), kTokens, 8);
  args.y = matrix(y.as<float>(), kRows, 2);
  args.addressing.num_tokens = kTokens;
  args.addressing.num_rows = kRows;
  args.addressing.row_begin = kBegin;
  args.addressing.row_end = kBegin + kCount;
  args.addressing.bound_rows = kCount;
  args.addressing.expert_ids = ids.as<std::int32_t>();
  args.addressing.token_slots = slots.as<std::int32_t>();
  args.addressing.row_weights = rows.as<float>();
  args.addressing.token_weights = tokens.as<float>();
  const Status status = run(args);
  CAPTURE(status.message());
  REQUIRE(status.ok());
  CHECK(std::memcmp(y.as<float>() + 2 * kFirst, dense.bytes.data(), dense.bytes.size()) == 0);
}

TEST_CASE("B1: rows of y that are 2^20 elements apart") {
  constexpr std::int64_t kStride = std::int64_t{1} << 20;
  const ExpertBatch batch({.tokens = 550,
                           .top_k = 4,
                           .in = 8,
                           .out = {3, 2},
                           .max_rank = 2,
                           .x = DType::bf16,
                           .y = DType::bf16,
                           .weights = DType::bf16});
  static_assert(kStride * 2200 > (std::int64_t{1} << 31));
  Elements dense = batch.y;
  REQUIRE(run(batch.apply(dense)).ok());
  const FarMemory far(static_cast<std::size_t>(kStride) * 2200 * 2);
  const auto row = [&](std::int64_t r) { return far.as<std::byte>() + 2 * r * kStride; };
  for (std::int64_t r = 0; r < 2200; ++r) std::memcpy(row(r), batch.y.bytes.data() + 10 * r, 10);
  ApplyExpertsArgs args = batch.apply(dense);
  args.y = matrix(far.as<void>(), DType::bf16, 2200, 5, {}, kStride);
  REQUIRE(run(args).ok());
  int wrong = 0;
  for (std::int64_t r = 0; r < 2200; ++r) {
    wrong += std::memcmp(row(r), dense.bytes.data() + 10 * r, 10) != 0 ? 1 : 0;
  }
  CHECK(wrong == 0);
}

TEST_CASE("the workspace is monotone in every bound, and of the window's bound") {
  for (const Op op : {Op::shrink_experts, Op::expand_experts, Op::apply_experts}) {
    for (const auto& [mode, x_rows] : kLayouts) {
      Elements none;
      Problem problem = make_problem(ExpertBatch(layout(mode, x_rows)).apply(none));
      problem.op = op;
      const auto bytes = [&] { return workspace_bytes(device(), problem).value(); };
      const Bounds bounds = problem.bounds;
      for (std::int64_t Bounds::*const bound :
           {&Bounds::rows, &Bounds::tokens, &Bounds::segments, &Bounds::active_rows}) {
        problem.bounds = bounds;
        std::uint64_t last = 0;
        for (std::int64_t value = 0; value < 5000; value += 61) {
          problem.bounds.*bound = value;
          CHECK(bytes() >= last);
          last = bytes();
        }
      }
      problem.bounds = bounds;
      problem.bounds.rows = std::int64_t{1} << 31;
      CHECK(supports(device(), problem).status().code() == StatusCode::unsupported);
      problem.bounds.rows = 16;
      const std::uint64_t window = bytes();
      problem.bounds.rows = 1 << 20;
      CHECK(bytes() > window + (std::uint64_t{8} << 20));
    }
  }
}
